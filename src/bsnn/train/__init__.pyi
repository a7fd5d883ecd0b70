from bsnn.train.averaging import average_buffers as average_buffers
from bsnn.train.config import Config as Config
from bsnn.train.distributed import (
    TrainedApart as TrainedApart,
    World as World,
    check_identical as check_identical,
    distribute as distribute,
    joined_world as joined_world,
    summed as summed,
)
from bsnn.train.load import TrainedNetwork as TrainedNetwork, evaluate_run as evaluate_run, load_network as load_network
from bsnn.train.loop import train as train
from bsnn.train.method import Method as Method
from bsnn.train.recipes import Recipe as Recipe
from bsnn.train.trainer import Trainer as Trainer
