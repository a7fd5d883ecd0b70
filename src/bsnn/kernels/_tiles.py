"""Images in tiles of 4 by 4 pixels for Winograd's algorithm (csrc/winograd.c), and the memory that tiles work in.

A tile becomes its values at 36 points; `Tiling` says how many images and channels are worked on at a time.
"""

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bsnn.kernels._library import Function, run
from bsnn.kernels.operations import Geometry
from bsnn.kernels.torch_internals import after_backward_pass, backward_pass

# With fewer channels, or fewer pixels in a tile of 16, a plain convolution is as fast.
_MIN_CHANNELS = 64
_MIN_PIXELS = 9

# Floats that tiles take on either side of their product, and that sums of products take: what a cache holds.
_POINTS = 5 << 19
_SUMS = 5 << 19

_Pair = tuple[int, int]


class _TileTable(ctypes.Structure):
    """`bsnn_tiles` of train.h."""

    _fields_ = [
        (name, ctypes.c_int32)
        for name in ("images", "height", "width", "channels", "step", "down", "across", "top", "left", "narrow")
    ]


class Tiles:
    """Images `[B, H, W, C]` in tiles of 4 by 4 pixels.

    Args:
        images: The images, channels last.
        made: Height and width of what the tiles cover.
        before: Rows and columns by which the first tile begins before the image.
        channels: Some of its channels.
        narrow: Whether values at the points are bf16 instead of single precision.
    """

    def __init__(
        self, images: Tensor, made: _Pair, before: _Pair, channels: slice = slice(None), *, narrow: bool = False
    ) -> None:
        _, height, width, step = images.shape
        down, across = -(-made[0] // 4), -(-made[1] // 4)
        self._images = images[..., channels]
        self.channels = self._images.shape[3]
        self._table = _TileTable(0, height, width, self.channels, step, down, across, *before, narrow)

    def run(self, library: ctypes.CDLL, function: Function, images: slice, points: Tensor) -> None:
        """Works on some of the images; `points` has room for at least as many."""
        part = self._images[images]
        self._table.images = len(part)
        run(library, function, self._table, part, points)


def num_tiles(size: _Pair) -> int:
    """How many tiles cover an image."""
    return -(-size[0] // 4) * -(-size[1] // 4)


def at_points(points: Tensor, tiles: int, channels: int) -> Tensor:
    """Values of so many tiles as `[36, tiles, channels]`."""
    return points[: 36 * tiles * channels].view(36, tiles, channels)


def tiles_pay(shape: torch.Size, made: _Pair, geometry: Geometry) -> bool:
    """Whether tiles are faster: with 3 by 3 adjacent taps, if channels are many and tiles are full."""
    outs, ins, *taps = shape
    padding = geometry.padding
    plain = taps == [3, 3] and geometry == Geometry(padding=padding) and max(padding) < 3
    full = made[0] * made[1] >= max(1, _MIN_PIXELS * num_tiles(made))
    # torch can be told to round products to fewer bits; then tiles would lose more than a convolution.
    exact = torch.get_float32_matmul_precision() == "highest"
    return plain and full and exact and min(outs, ins) >= _MIN_CHANNELS


class Tiling(NamedTuple):
    """How much is worked on at a time."""

    images: int
    channels: int
    """Output channels of a weight gradient."""
    room: tuple[int, int, int]
    """Numbers on either side of the product, and in what is left of it or is made for it."""


def input_tiling(batch: int, shape: torch.Size, size: _Pair, *, narrow: bool = False) -> Tiling:
    """For the gradient of images of `size`; narrow numbers are half as long, so there is room for twice as many."""
    outs, ins, *_ = shape
    tiles = 36 * num_tiles(size)
    images = max(1, min(batch, (1 + narrow) * (_POINTS // (tiles * max(outs, ins)))))
    return Tiling(images, outs, (images * tiles * outs, images * tiles * ins, 6 * outs * ins))


def weight_tiling(batch: int, shape: torch.Size, size: _Pair) -> Tiling:
    """For the gradient of weights, from images of `size` that leave."""
    outs, ins, *_ = shape
    tiles = 36 * num_tiles(size)
    channels = -(-outs // -(-36 * outs * ins // _SUMS))
    images = max(1, min(batch, _POINTS // (tiles * max(channels, ins))))
    return Tiling(images, channels, (images * tiles * ins, images * tiles * channels, 36 * channels * ins))


class _Room:
    """Memory that the tiles of all layers share during a backward pass.

    It is apart from what malloc provides, which would lie in pieces between longer-lived tensors afterwards, and in
    huge pages if the system has them: fresh small pages for each layer take more time than the tiles themselves.
    """

    def __init__(self) -> None:
        self.floats = torch.empty(0)
        self._pass: int | None = None

    def take(self, *numbers: int) -> Sequence[Tensor]:
        """Room for so many floats each, with anything in it."""
        if len(self.floats) < sum(numbers):
            self._clear()
            memory = torch.frombuffer(_own_memory(4 * sum(numbers)), dtype=torch.float32)
            # A tensor of its own, so that `peak_bytes` counts it; a view it would not.
            self.floats = torch.empty(0, dtype=torch.float32).set_(memory.untyped_storage())
        taken, running = self.floats[: sum(numbers)].split(numbers), backward_pass()
        if running is None:
            self._clear()
        elif running != self._pass:
            self._pass = running
            after_backward_pass(self._clear)
        return taken

    def _clear(self) -> None:
        self.floats = torch.empty(0)


class _Rooms(threading.local):
    """One for each thread."""

    def __init__(self) -> None:
        self.own = _Room()


rooms = _Rooms()


def _own_memory(number: int) -> mmap.mmap:
    """So many bytes that a forked process does not share."""
    try:
        if not hasattr(mmap, "MAP_PRIVATE"):
            return mmap.mmap(-1, number)
        memory = mmap.mmap(-1, number, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"gradients in tiles: no {number:,} bytes are left ({error.strerror}).") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
