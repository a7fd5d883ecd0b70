"""The numbers that a network takes: normalized ones, rounded in training as they are on a device.

A deployed network takes integers of 16 bits. A network that was trained on finer numbers would see others there, and
where a current is near the threshold, some of its neurons would fire otherwise.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bsnn.data.dataset import Kind


class Grid(NamedTuple):
    """How raw values become integers, of which one stands for 2^-bits."""

    bits: int
    multiplier: tuple[int, ...]
    """Of each channel, for raw bytes."""
    offset: tuple[int, ...]
    shift: int

    def from_bytes(self, raw: np.ndarray) -> np.ndarray:
        """Integers, int16, from raw bytes `[..., C, H, W]`.

        Example:
            >>> import numpy as np
            >>> grid_of((0.5,), (0.25,), 255.0).from_bytes(np.array([[[0, 255]]], np.uint8)).tolist()
            [[[-16384, 16384]]]
        """
        return np.clip(self.whole(raw), -32768, 32767).astype(np.int16)

    def whole(self, raw: np.ndarray) -> np.ndarray:
        """The same without a limit, int64: raw values that are larger than `grid_of` was told."""
        multiplier, offset = (np.array(v, np.int64).reshape(-1, 1, 1) for v in (self.multiplier, self.offset))
        product = raw.astype(np.int64) * multiplier + offset
        return (product + ((1 << self.shift) >> 1)) >> self.shift


def grid_of(mean: Sequence[float], std: Sequence[float], scale: float, kind: Kind = "image") -> Grid:
    """The grid of data that is normalized as (raw / scale − mean) / std.

    Args:
        mean: Of each channel, of values divided by `scale`.
        std: Likewise.
        scale: The largest raw value; of events, which are counted in bytes, what a count is divided by.
        kind: Of the data.
    """
    highest = 255 / scale if kind == "event" else 1.0
    largest = max(max(m, highest - m) / s for m, s in zip(mean, std, strict=True))
    return finest(mean, std, scale, largest)


def finest(mean: Sequence[float], std: Sequence[float], scale: float, largest: float) -> Grid:
    """The finest grid on which 16 bits hold normalized values up to `largest`."""
    bits = max(0, min(15, math.floor(math.log2(32767 / largest))))
    gains = [2.0**bits / (scale * s) for s in std]
    offsets = [-m / s * 2.0**bits for m, s in zip(mean, std, strict=True)]
    shift = shift_for(max(max(abs(v) for v in gains + offsets), 2.0**-10))
    multiplier, offset = (tuple(to_int32(np.array(v) * 2.0**shift).tolist()) for v in (gains, offsets))
    return Grid(bits, multiplier, offset, shift)


def to_int32(x: np.ndarray) -> np.ndarray:
    """Rounded, and cut to 32 bits."""
    return np.clip(np.rint(x), -(2**31) + 1, 2**31 - 1).astype(np.int32)


def shift_for(largest: float) -> int:
    """The shift that goes with multipliers up to `largest`, so that they are as fine as 32 bits allow."""
    return max(0, min(40, 30 - math.ceil(math.log2(largest))))


@functools.lru_cache
def values_of_bytes(grid: Grid) -> np.ndarray:
    """What each byte of each channel becomes in training, `[C, 256]`."""
    raw = np.arange(256).reshape(1, 1, 256).repeat(len(grid.multiplier), 0)
    return (grid.whole(raw) * 2.0**-grid.bits).astype(np.float32)[:, 0]
