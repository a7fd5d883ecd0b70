"""How many bytes a network takes, counted from what is stored (paper, Table 2).

Counted are parameters: a binary one as its packed bits, every other with its own type. BatchNorm's running
statistics do not count, because a deployed network holds them folded into the same two numbers per channel.
"""

from typing import NamedTuple

from torch import nn

from bsnn.nn.bits import BinaryParameter


class ModelSize(NamedTuple):
    """Bytes of a network as it is, and as it would be with every weight real-valued."""

    stored_bytes: int
    real_bytes: int
    binary_weights: int
    real_weights: int


def model_size(net: nn.Module) -> ModelSize:
    """Counts a network's parameters.

    Example:
        >>> model_size(nn.Sequential(bsnn.BinaryLinear(16, 4), nn.Linear(4, 2)))
        ModelSize(stored_bytes=48, real_bytes=296, binary_weights=64, real_weights=10)
    """
    stored = real = binary_weights = real_weights = 0
    for parameter in net.parameters():
        dense = parameter.numel() * parameter.element_size()
        real += dense
        if isinstance(parameter, BinaryParameter):
            stored += parameter.bits.numel()
            binary_weights += parameter.numel()
        else:
            stored += dense
            real_weights += parameter.numel()
    return ModelSize(stored, real, binary_weights, real_weights)
