"""Flat tensors one piece at a time, so that what lies between two operations takes little memory and stays in cache."""

from collections.abc import Iterator

import torch
from torch import Tensor

# Elements of a piece: one megabyte in single precision.
_PIECE = 1 << 18


def pieces(number: int) -> Iterator[slice]:
    """Cuts `number` elements into slices; all but the last hold a multiple of 256.

    Example:
        >>> list(pieces(300_000))
        [slice(0, 262144, None), slice(262144, 300000, None)]
    """
    return (slice(start, min(start + _PIECE, number)) for start in range(0, number, _PIECE))


def mean_square(x: Tensor) -> Tensor:
    """The mean of the squares, in double precision: no single-precision value overflows, and tiny ones do not vanish.

    Example:
        >>> mean_square(torch.tensor([3.0, 4.0]))
        tensor(12.5000, dtype=torch.float64)
    """
    parts = (part.double() for part in x.reshape(-1).split(_PIECE >> 2))
    return torch.stack([part.dot(part) for part in parts]).sum() / x.numel()
