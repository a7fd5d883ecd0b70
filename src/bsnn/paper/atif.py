"""ATIF: neurons with a trainable threshold that is also the size of their spikes (Table 5).

The neuron is `TrainableThresholdIF` in `nn/compared.py`: no leak, and the gradient passes the reset; the surrogate is a
sigmoid's with α = 1. The network is a CIFAR-style ResNet-18 in full precision, which comes to the 44.74 MB of Table 5.
How ATIF was trained is not public. We chose AdamW without decay (which is Adam), 1e-3 along a cosine, and the epochs,
batches and data of our own recipes.
"""

from typing import Any

from bsnn.models.basic import basic_resnet
from bsnn.nn.compared import TrainableThresholdIF
from bsnn.nn.network import ImageNetwork
from bsnn.nn.surrogate import Sigmoid
from bsnn.nn.synapse import Weights


def network(weights: Weights, **shared: Any) -> ImageNetwork:
    """A ResNet-18 whose layers each begin at a threshold of their own; see `basic_resnet` for the arguments."""
    net = basic_resnet(weights=weights, **shared)
    for module in net.modules():
        if isinstance(module, TrainableThresholdIF):
            module.reset_parameters()
    return net


def slope1() -> Sigmoid:
    """ATIF's surrogate."""
    return Sigmoid(alpha=1.0)
