from bsnn.train.config import Config as Config
from bsnn.train.loop import evaluate_run as evaluate_run, train as train
from bsnn.train.trainer import Trainer as Trainer
