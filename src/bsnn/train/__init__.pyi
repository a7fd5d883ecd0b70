from bsnn.train.loop import evaluate_run as evaluate_run, train as train
from bsnn.train.recipes import Config as Config, recipe as recipe
from bsnn.train.trainer import Trainer as Trainer
