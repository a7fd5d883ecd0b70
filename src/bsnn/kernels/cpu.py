"""What training computes in C where the engine's kernel was built, in single precision on a CPU.

Synapses: spikes are bits, so what they add up to is a count. Sums of ±1 over spikes, or over means of four spikes, are
whole numbers of quarters, which single precision holds exactly in any order of addition: the kernel gives the very bits
that torch's convolution gives. Their gradients: by Winograd's algorithm, a quarter of a plain convolution's
multiplications and nearly its rounding. Neurons: all of a time step while an image is in the cache, rounded as torch
rounds.
"""

import contextlib
import ctypes
import mmap
import threading
from collections.abc import Sequence
from enum import IntEnum
from functools import cache, lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bsnn.deploy.engine.native import OpTable, SynapseLayout, Threads, libraries
from bsnn.kernels.memory import program_with
from bsnn.nn import surrogate as surrogates
from bsnn.nn.bits import unpack
from bsnn.nn.surrogate import Surrogate
from bsnn.nn.trace import OTTT, SLTT, GradientRule

# `bsnn_training_version` of work.c.
_VERSION = 2

# Fewer channels than this leave bits of a word of the kernel idle; then torch is as fast.
_MIN_CHANNELS = 64

# Fewer channels, or fewer pixels in a tile of 16, and a plain convolution is as fast.
_MIN_TILE_CHANNELS = 64
_MIN_TILE_PIXELS = 9

# Floats that tiles take on either side of their product, and that sums of products take: what a cache holds.
_POINTS = 5 << 19
_SUMS = 5 << 19

_SURROGATES = {  # as neurons.c numbers them, and the name of their parameter
    surrogates.Sigmoid: (0, "alpha"),
    surrogates.Rectangle: (1, "width"),
    surrogates.Triangle: (2, "width"),
    surrogates.Arctan: (3, "alpha"),
}

_Pair = tuple[int, int]
_threads = cache(Threads)
_layout = lru_cache(256)(SynapseLayout)


class _Function(IntEnum):
    """As work.c numbers them."""

    ROWS, CURRENTS, SIGNS, FIRE, QUARTERS, THROUGH_NEURONS, THROUGH_NORM = range(7)
    PIXELS_TO_POINTS, FILTERS_TO_POINTS, POINTS_TO_PIXELS, SIGNS_TO_POINTS, POINTS_TO_TAPS = range(7, 12)


class _Task(ctypes.Structure):
    """`bsnn_task` of train.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("function", "threads", "refused")),
        *((name, ctypes.c_void_p) for name in ("rank", "size")),
        ("arguments", ctypes.c_void_p * 9),
    ]


def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that torch has loaded, if it is one of GNU's kind."""
    return program_with("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


def _run(
    library: ctypes.CDLL, function: _Function, *arguments: Tensor | ctypes.Structure | ctypes.Array | None
) -> bool:
    """Runs a function of the kernel on as many threads as torch takes; returns whether it served."""
    task = _Task(function, torch.get_num_threads())
    for place, argument in enumerate(arguments):
        found = argument.data_ptr() if isinstance(argument, Tensor) else argument and ctypes.addressof(argument)
        task.arguments[place] = found
    openmp = _openmp()
    if task.threads == 1 or openmp is None:
        _threads(task.threads).run(partial(library.bsnn_work_as, ctypes.byref(task)))
    else:
        for name, of in (("rank", openmp.omp_get_thread_num), ("size", openmp.omp_get_num_threads)):
            setattr(task, name, ctypes.cast(of, ctypes.c_void_p))
        openmp.GOMP_parallel(library.bsnn_work, ctypes.byref(task), task.threads, 0)
    return not task.refused


def _library(x: Tensor, dtype: torch.dtype = torch.float32) -> ctypes.CDLL | None:
    """The fastest kernel, if one serves: for plain tensors in memory, not for what stands for one while tracing."""
    if x.device.type != "cpu" or x.dtype != dtype or not x.numel() or type(x) not in (Tensor, nn.Parameter):
        return None
    return _newest()


def _newest() -> ctypes.CDLL | None:
    library = next(reversed(libraries().values()), None)
    return library if library is not None and _version(library) == _VERSION else None


@cache
def _version(library: ctypes.CDLL) -> int:
    """Of what the library has for training; one that was built before the package was changed may differ."""
    return library.bsnn_training_version() if hasattr(library, "bsnn_training_version") else 0


class Geometry(NamedTuple):
    """How a convolution moves its filters."""

    stride: _Pair = (1, 1)
    padding: _Pair = (0, 0)
    dilation: _Pair = (1, 1)
    groups: int = 1


def convolve(x: Tensor, bits: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor | None:
    """The convolution of spikes with one-bit weights of `shape`, channels last; None where the kernel does not serve.

    It serves for spikes and means of four spikes.
    """
    library, (outs, ins, height, width), groups = _library(x), shape, geometry.groups
    if library is None or _library(bits, torch.uint8) is None or outs // groups < _MIN_CHANNELS:
        return None
    if x.shape[1] != ins * groups:
        return None  # torch says what is wrong
    x = _channels_last(x.detach())
    layout = _layout(tuple(x.shape[1:]), tuple(shape), *geometry)
    if min(layout.made) < 1 or layout.weight_bytes >= 2**31:
        return None
    rows = x.new_zeros(layout.weight_bytes, dtype=torch.uint8)
    _run(library, _Function.ROWS, bits, (ctypes.c_int32 * 5)(outs, ins, height * width, groups, layout.op.row), rows)
    op = OpTable.from_buffer_copy(layout.op)
    op.weight = rows.data_ptr()
    currents = _empty_images(x, (len(x), *layout.made))
    sizes = (ctypes.c_int64 * 3)(len(x), layout.values_bytes, layout.workspace_bytes)
    workspace = x.new_empty(torch.get_num_threads(), layout.workspace_bytes, dtype=torch.uint8)
    served = _run(library, _Function.CURRENTS, op, layout.values, x, currents, sizes, workspace)
    return currents if served else None


class _TileTable(ctypes.Structure):
    """`bsnn_tiles` of train.h."""

    _fields_ = [
        (name, ctypes.c_int32)
        for name in ("images", "height", "width", "channels", "step", "down", "across", "top", "left")
    ]


class _Tiles:
    """Images `[B, H, W, C]` in tiles of 4 by 4 pixels.

    Args:
        images: The images, channels last.
        made: Height and width of what the tiles cover.
        before: Rows and columns that the first tile begins before the image.
        channels: Some of its channels.
    """

    def __init__(self, images: Tensor, made: _Pair, before: _Pair, channels: slice = slice(None)) -> None:
        _, height, width, step = images.shape
        down, across = -(-made[0] // 4), -(-made[1] // 4)
        self._images = images[..., channels]
        self.channels = self._images.shape[3]
        self._table = _TileTable(0, height, width, self.channels, step, down, across, *before)

    def run(self, library: ctypes.CDLL, function: _Function, images: slice, points: Tensor) -> None:
        """Works on some of the images; `points` has room for as many at least."""
        part = self._images[images]
        self._table.images = len(part)
        _run(library, function, self._table, part, points)


def _in_tiles(shape: torch.Size, made: _Pair, geometry: Geometry) -> bool:
    """Whether tiles pay: for 3 by 3 taps next to each other, where channels are many and tiles are full."""
    outs, ins, *taps = shape
    padding = geometry.padding
    plain = taps == [3, 3] and geometry == Geometry(padding=padding) and max(padding) < 3
    full = made[0] * made[1] >= max(1, _MIN_TILE_PIXELS * _num_tiles(made))
    # With products rounded to fewer bits, which can be asked of torch, tiles would lose more than a convolution.
    exact = torch.get_float32_matmul_precision() == "highest"
    return plain and full and exact and min(outs, ins) >= _MIN_TILE_CHANNELS


def _leaving(size: _Pair, geometry: Geometry) -> _Pair:
    """Height and width behind 3 by 3 taps next to each other."""
    return size[0] + 2 * geometry.padding[0] - 2, size[1] + 2 * geometry.padding[1] - 2


def _num_tiles(size: _Pair) -> int:
    return -(-size[0] // 4) * -(-size[1] // 4)


class _Room:
    """Memory that tiles of all layers of a backward pass share.

    It is apart from what malloc gives, which would lie in pieces between longer-lived tensors afterwards, and in large
    pages where the system has them: with fresh small ones for each layer, these take more time than the tiles.
    """

    def __init__(self) -> None:
        self._floats = torch.empty(0)
        self._pass = -1

    def take(self, *numbers: int) -> Sequence[Tensor]:
        """Room for so many floats each, with anything in it."""
        if len(self._floats) < sum(numbers):
            self._clear()
            memory = torch.frombuffer(_own_memory(4 * sum(numbers)), dtype=torch.float32)
            # So that whoever counts tensors (`bsnn.kernels.memory`) sees it, as a view it would not.
            self._floats = torch.empty(0, dtype=torch.float32).set_(memory.untyped_storage())
        taken = self._floats[: sum(numbers)].split(numbers)
        running = torch._C._current_graph_task_id()
        if running < 0:  # not in a backward pass
            self._clear()
        elif running != self._pass:
            self._pass = running
            torch.autograd.Variable._execution_engine.queue_callback(self._clear)  # pyright: ignore
        return taken

    def _clear(self) -> None:
        self._floats = torch.empty(0)


def _own_memory(number: int) -> mmap.mmap:
    """So many bytes that a forked process does not share."""
    try:
        if not hasattr(mmap, "MAP_PRIVATE"):
            return mmap.mmap(-1, number)
        memory = mmap.mmap(-1, number, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"gradients in tiles: no {number:,} bytes are left ({error.strerror}).") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a system without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class _Rooms(threading.local):
    """One for each thread."""

    def __init__(self) -> None:
        self.own = _Room()


_rooms = _Rooms()


class _Plan(NamedTuple):
    """How much is worked on at a time."""

    images: int
    channels: int
    """Output channels of a weight gradient."""
    room: tuple[int, int, int]
    """Floats on either side of the product, and in what is left of it or is made for it."""


def _plan_for_input(batch: int, shape: torch.Size, size: _Pair) -> _Plan:
    outs, ins, *_ = shape
    tiles = 36 * _num_tiles(size)
    images = max(1, min(batch, _POINTS // (tiles * max(outs, ins))))
    return _Plan(images, outs, (images * tiles * outs, images * tiles * ins, 6 * outs * ins))


def _plan_for_weight(batch: int, shape: torch.Size, size: _Pair) -> _Plan:
    outs, ins, *_ = shape
    tiles = 36 * _num_tiles(size)
    channels = -(-outs // -(-36 * outs * ins // _SUMS))
    images = max(1, min(batch, _POINTS // (tiles * max(channels, ins))))
    return _Plan(images, channels, (images * tiles * ins, images * tiles * channels, 36 * channels * ins))


def tile_bytes(batch: int, shape: torch.Size, entering: _Pair, leaving: _Pair, geometry: Geometry) -> int:
    """The room that the gradients of a convolution with one-bit weights take; 0 where they are left to torch.

    Args:
        batch: Images.
        shape: Of the weights.
        entering: Height and width of what enters.
        leaving: Height and width of what leaves.
        geometry: Of the convolution.
    """
    if _newest() is None:
        return 0
    sides = (_plan_for_input, entering), (_plan_for_weight, leaving)
    plans = [plan(batch, shape, size) for plan, size in sides if _in_tiles(shape, size, geometry)]
    return 4 * max((sum(plan.room) for plan in plans), default=0)


def input_gradient(grad: Tensor, bits: Tensor, shape: torch.Size, size: _Pair, geometry: Geometry) -> Tensor | None:
    """The gradient of images of `size` that enter a convolution with one-bit weights; None where tiles do not pay."""
    library, (outs, ins, *_) = _library(grad), shape
    if library is None or _library(bits, torch.uint8) is None or not _in_tiles(shape, size, geometry):
        return None
    if grad.shape[1:] != (outs, *_leaving(size, geometry)):
        return None  # torch says what is wrong
    made, padding = _empty_images(grad, (len(grad), ins, *size)), geometry.padding
    entering = _Tiles(_pixels(grad), size, (2 - padding[0], 2 - padding[1]))
    leaving = _Tiles(made.permute(0, 2, 3, 1), size, (0, 0))
    plan = _plan_for_input(len(grad), shape, size)
    points, products, row = _rooms.own.take(*plan.room)
    for start in range(0, len(grad), plan.images):
        images = slice(start, start + plan.images)
        tiles = min(plan.images, len(grad) - start) * _num_tiles(size)
        entering.run(library, _Function.PIXELS_TO_POINTS, images, points)
        for number in range(6):
            six = slice(6 * number, 6 * number + 6)
            _run(library, _Function.SIGNS_TO_POINTS, bits, (ctypes.c_int32 * 3)(outs, ins, number), row)
            torch.bmm(_planes(points, tiles, outs)[six], row.view(6, outs, ins), out=_planes(products, tiles, ins)[six])
        leaving.run(library, _Function.POINTS_TO_PIXELS, images, products)
    return made


def weight_gradient(grad: Tensor, x: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor | None:
    """The weight gradient of a convolution that `x`, spikes or a trace, enters; None where tiles do not pay."""
    library, (outs, ins, *_) = _library(x), shape
    size = (grad.shape[2], grad.shape[3])
    if library is None or _library(grad) is None or not _in_tiles(shape, size, geometry):
        return None
    if grad.shape != (len(x), outs, *_leaving((x.shape[2], x.shape[3]), geometry)) or x.shape[1] != ins:
        return None  # torch says what is wrong
    made = grad.new_empty(shape)
    grad, x = _pixels(grad), _pixels(x)
    entering = _Tiles(x, size, geometry.padding)
    plan = _plan_for_weight(len(x), shape, size)
    points, filters, room = _rooms.own.take(*plan.room)
    for first in range(0, outs, plan.channels):
        leaving = _Tiles(grad, size, (0, 0), slice(first, first + plan.channels))
        sums = _planes(room, leaving.channels, ins)
        for start in range(0, len(x), plan.images):
            images = slice(start, start + plan.images)
            tiles = min(plan.images, len(x) - start) * _num_tiles(size)
            if first == 0 or plan.images < len(x):  # else they are there from the channels before
                entering.run(library, _Function.PIXELS_TO_POINTS, images, points)
            leaving.run(library, _Function.FILTERS_TO_POINTS, images, filters)
            planes = _planes(filters, tiles, leaving.channels).transpose(1, 2), _planes(points, tiles, ins)
            torch.baddbmm(sums, *planes, beta=int(start > 0), out=sums)
        _run(library, _Function.POINTS_TO_TAPS, sums, (ctypes.c_int32 * 2)(leaving.channels, ins), made[first:])
    return made


def _planes(points: Tensor, tiles: int, channels: int) -> Tensor:
    return points[: 36 * tiles * channels].view(36, tiles, channels)


class _NeuronTable(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("batch", "height", "width", "channels", "pooled", "surrogate", "quarters")
        ),
        *((name, ctypes.c_float) for name in ("parameter", "leak", "threshold")),
    ]


class Neurons:
    """A layer of neurons on the kernel; all tensors have their channels last.

    Args:
        library: The kernel.
        x: What enters, `[B, C, H, W]` or `[B, C]`.
        pooled: Whether means of two by two pixels are sent on.
        number: Of the surrogate.
        parameter: Of the surrogate.
        leak: λ.
        threshold: V_th.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        x: Tensor,
        pooled: bool,
        number: int,
        parameter: float,
        leak: float,
        threshold: float,
    ) -> None:
        batch, channels, *size = x.shape
        height, width = size or (1, 1)
        self._library = library
        self._table = _NeuronTable(batch, height, width, channels, pooled, number, 0, parameter, leak, threshold)

    def _run(self, function: _Function, *arguments: Tensor | None) -> None:
        _run(self._library, function, self._table, *arguments)

    def fire(self, x: Tensor, membrane: Tensor, trace: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        """Moves membrane and trace one step on, in place, and writes spikes over the currents `x`.

        Returns:
            The spikes and the trace that are sent on, and the spikes as bits.
        """
        table, sent, sent_trace = self._table, x, trace
        if table.pooled:
            size = (table.batch, table.channels, table.height // 2, table.width // 2)
            sent = _empty_images(x, size)
            sent_trace = None if trace is None else torch.empty_like(sent)
        bits = x.new_empty(table.batch, -(-x[0].numel() // 8), dtype=torch.uint8)
        self._run(_Function.FIRE, x, membrane, trace, sent, sent_trace, bits)
        for changed in (membrane, trace):
            if changed is not None and not changed.is_inference():
                # So that autograd notices, as it does with torch's own functions.
                torch.autograd.graph.increment_version(changed)
        return sent, sent_trace, bits

    def keep(self, current: Tensor) -> Tensor:
        """What `through` is given of a current: those of binary synapses are quarters, which take half the room."""
        quarters = torch.empty_like(current, dtype=torch.int16)
        self._table.quarters = _run(self._library, _Function.QUARTERS, self._table, current, quarters)
        return quarters if self._table.quarters else current

    def through(
        self, sent: Tensor, membrane: Tensor, bits: Tensor, current: Tensor | None, mean: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """∂L/∂u from that of what was sent on; sums of it and of its product with I − mean."""
        gradient, number = torch.empty_like(membrane), torch.get_num_threads()
        sums = gradient.new_zeros(number, 2, self._table.channels, dtype=torch.float64)
        work = gradient.new_empty(number, 2, self._table.channels)
        self._run(_Function.THROUGH_NEURONS, sent, membrane, bits, current, mean, gradient, sums, work)
        total, products = sums.sum(0)
        return gradient, total, products

    def through_norm_(self, gradient: Tensor, current: Tensor, scale: Tensor, slope: Tensor, shift: Tensor) -> None:
        """Replaces ∂L/∂BN(I) by ∂L/∂I = scale · ∂L/∂BN(I) + slope · I + shift."""
        self._run(_Function.THROUGH_NORM, gradient, current, scale, slope, shift)


def signs(bits: Tensor, number: int, dtype: torch.dtype) -> Tensor:
    """As `bsnn.nn.bits.unpack`."""
    library = _library(bits, torch.uint8)
    if library is None or dtype != torch.float32:
        return unpack(bits, number, dtype)
    made = bits.new_empty(number, dtype=dtype)
    _run(library, _Function.SIGNS, bits, (ctypes.c_int64 * 1)(number), made)
    return made


def neurons(
    x: Tensor, pooled: bool, rule: GradientRule, surrogate: Surrogate, leak: float, threshold: float
) -> Neurons | None:
    """The neurons that `x` enters on the kernel; None where it does not serve: NDOT, and a user's own surrogate."""
    library = _library(x)
    number, parameter = _SURROGATES.get(type(surrogate), (None, ""))  # pyright: ignore[reportArgumentType]
    odd = pooled and (x.shape[2] % 2 or x.shape[3] % 2)
    if library is None or number is None or type(rule) not in (OTTT, SLTT) or odd:
        return None
    return Neurons(library, x, pooled, number, getattr(surrogate, parameter), leak, threshold)


def _empty_images(like: Tensor, size: tuple[int, ...]) -> Tensor:
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _pixels(x: Tensor) -> Tensor:
    return _channels_last(x).permute(0, 2, 3, 1)
