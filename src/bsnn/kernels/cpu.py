"""The `cpu` backend: operations in C, in single precision, if the library was built (csrc/, setup.py).

Currents equal those of torch's convolution to the bit, and so do spikes and membranes; gradients agree within 1e-6.
"""

from bsnn.kernels._flips import flip as flip
from bsnn.kernels._library import fastest
from bsnn.kernels._neurons import neurons as neurons
from bsnn.kernels._synapse import (
    convolve as convolve,
    input_gradient as input_gradient,
    signs as signs,
    tile_bytes as tile_bytes,
    weight_gradient as weight_gradient,
)


def available() -> bool:
    """Whether the library was built."""
    return fastest() is not None


def _left_to_torch(*_arguments: object) -> None:
    """What torch computes as fast."""


folded = folds = mean_square = fold = mixed_loss = _left_to_torch
