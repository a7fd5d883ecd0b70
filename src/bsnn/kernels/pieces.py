"""Flat tensors one piece at a time, so that what lies between two operations takes little memory and stays in cache."""

from collections.abc import Iterator

import torch
from torch import Tensor

from bsnn import kernels

# Elements of a piece: one megabyte in single precision.
_PIECE = 1 << 18

_APPLE = "mps"


def is_whole(x: Tensor) -> bool:
    """Whether work on a tensor is not cut up, and its numbers are not read: on a GPU, both would make it wait.

    Tensors that Triton's interpreter works on are treated likewise, so that it can be tested.
    """
    return x.device.type != "cpu" or _is_whole_on_cpu()


def _is_whole_on_cpu() -> bool:
    return kernels.is_interpreted() and kernels.backend() == "triton"


def is_apple(device: torch.device) -> bool:
    """Whether a device is one of Apple's GPUs, which differ from others in what they have and what is fast there."""
    return device.type == _APPLE


def widest(device: torch.device) -> torch.dtype:
    """The most precise type of a device: double precision or, on Apple's GPUs, which have none, single.

    Example:
        >>> widest(torch.device("cpu")), widest(torch.device("mps"))
        (torch.float64, torch.float32)
    """
    return torch.float32 if is_apple(device) else torch.float64


def pieces(number: int, whole: bool = False) -> Iterator[slice]:
    """Cuts `number` elements into slices, all but the last of a multiple of 256; into one if they are to stay whole.

    Example:
        >>> list(pieces(300_000))
        [slice(0, 262144, None), slice(262144, 300000, None)]
    """
    size = max(1, number) if whole else _PIECE
    return (slice(start, min(start + size, number)) for start in range(0, number, size))


def mean_square(x: Tensor) -> Tensor:
    """The mean of the squares, in double precision: no single-precision value overflows, and tiny ones do not vanish.

    On a device without it, a root mean square above 2⁶⁴ is infinite, and one below 2⁻⁷⁵ is 0.

    Example:
        >>> mean_square(torch.tensor([3.0, 4.0]))
        tensor(12.5000, dtype=torch.float64)
    """
    if is_whole(x):
        return torch.linalg.vector_norm(x, dtype=widest(x.device)).square_().div_(x.numel())
    parts = (part.double() for part in x.reshape(-1).split(_PIECE >> 2))
    return torch.stack([part.dot(part) for part in parts]).sum() / x.numel()
