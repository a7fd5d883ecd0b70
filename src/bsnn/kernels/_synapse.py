"""Convolutions with one-bit weights in C: forward by counting bits, both gradients by Winograd's algorithm.

A weight gradient is made from the inputs that are not zero instead, if these are few (`_events`). Sums of ±1 over
spikes, or over means of four spikes, are whole quarters, which single precision holds exactly in any order of addition:
the currents equal those of torch's convolution to the bit. Gradients in tiles take a quarter of a plain convolution's
multiplications and have about its rounding.
"""

import ctypes

import torch
from torch import Tensor

from bsnn.kernels import _events
from bsnn.kernels._library import Function, fastest, library_for, run
from bsnn.kernels._tiles import Tiles, at_points, input_tiling, num_tiles, rooms, tiles_pay, weight_tiling
from bsnn.kernels.images import channels_as_rows, channels_last, empty_images
from bsnn.kernels.operations import Geometry
from bsnn.kernels.precision import precision
from bsnn.kernels.torch_internals import multiplies_bf16

# With fewer channels, bits of a word stay idle, and torch is as fast.
_MIN_CHANNELS = 64

_Pair = tuple[int, int]


class _SynapseTable(ctypes.Structure):
    """`bsnn_synapse` of train.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("batch", "channels", "height", "width", "outs")),
        *((name, ctypes.c_int32 * 2) for name in ("made", "kernel", "stride", "padding", "dilation")),
        ("groups", ctypes.c_int32),
    ]


def convolve(x: Tensor, bits: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor | None:
    """See `operations.convolve`."""
    library, (outs, ins, *kernel), groups = library_for(x), shape, geometry.groups
    if library is None or library_for(bits, torch.uint8) is None or outs // groups < _MIN_CHANNELS:
        return None
    if x.shape[1] != ins * groups:
        return None  # torch says what is wrong
    x = channels_last(x.detach())
    made = _made((x.shape[2], x.shape[3]), (kernel[0], kernel[1]), geometry)
    if min(made) < 1:
        return None
    stride, padding, dilation, _ = geometry
    table = _SynapseTable(*x.shape, outs, made, tuple(kernel), stride, padding, dilation, groups)
    sizes = (ctypes.c_int64 * 2)()
    library.bsnn_synapse_sizes(ctypes.byref(table), sizes)
    weight_bytes, workspace_bytes = sizes
    if weight_bytes >= 2**31:
        return None
    rows = x.new_zeros(weight_bytes, dtype=torch.uint8)
    run(library, Function.ROWS, table, bits, rows)
    currents = empty_images(x, (len(x), outs, *made))
    workspace = x.new_empty(torch.get_num_threads(), workspace_bytes, dtype=torch.uint8)
    supported = run(library, Function.CURRENTS, table, rows, x, currents, workspace)
    return currents if supported else None


def _made(size: _Pair, kernel: _Pair, geometry: Geometry) -> _Pair:
    """Height and width of what leaves a convolution."""
    stride, padding, dilation, _ = geometry
    high, wide = (
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    )
    return high, wide


def input_gradient(grad: Tensor, bits: Tensor, shape: torch.Size, size: _Pair, geometry: Geometry) -> Tensor | None:
    """See `operations.input_gradient`; None also if tiles do not pay. If bf16 is set, values at the points have it."""
    library, (outs, ins, *_) = library_for(grad), shape
    if library is None or library_for(bits, torch.uint8) is None or not tiles_pay(shape, size, geometry):
        return None
    if grad.shape[1:] != (outs, *_made(size, (3, 3), geometry)):
        return None  # torch says what is wrong
    made, padding = empty_images(grad, (len(grad), ins, *size)), geometry.padding
    narrow = _in_bf16()
    entering = Tiles(_pixels(grad), size, (2 - padding[0], 2 - padding[1]), narrow=narrow)
    leaving = Tiles(channels_as_rows(made), size, (0, 0), narrow=narrow)
    tiling = input_tiling(len(grad), shape, size, narrow=narrow)
    dtype = torch.bfloat16 if narrow else torch.float32
    floats = (-(-number // (1 + narrow)) for number in tiling.room)
    points, products, row = (room.view(dtype) for room in rooms.own.take(*floats))
    for start in range(0, len(grad), tiling.images):
        images = slice(start, start + tiling.images)
        tiles = min(tiling.images, len(grad) - start) * num_tiles(size)
        entering.run(library, Function.PIXELS_TO_POINTS, images, points)
        for number in range(6):
            six = slice(6 * number, 6 * number + 6)
            run(library, Function.SIGNS_TO_POINTS, bits, (ctypes.c_int32 * 4)(outs, ins, number, narrow), row)
            product, weights = at_points(products, tiles, ins)[six], row[: 6 * outs * ins].view(6, outs, ins)
            torch.bmm(at_points(points, tiles, outs)[six], weights, out=product)
        leaving.run(library, Function.POINTS_TO_PIXELS, images, products)
    return made


def weight_gradient(grad: Tensor, x: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor | None:
    """See `operations.weight_gradient`; None also if tiles do not pay."""
    library, (outs, ins, *_) = library_for(x), shape
    size = (grad.shape[2], grad.shape[3])
    if library is None or library_for(grad) is None or not tiles_pay(shape, size, geometry):
        return None
    if grad.shape != (len(x), outs, *_made((x.shape[2], x.shape[3]), (3, 3), geometry)) or x.shape[1] != ins:
        return None  # torch says what is wrong
    made = grad.new_empty(shape)
    grad, x = _pixels(grad), _pixels(x)
    entering = Tiles(x, size, geometry.padding)
    tiling = weight_tiling(len(x), shape, size)
    (room,) = rooms.own.take(sum(tiling.room))
    if _events.weight_gradient(library, grad, x, geometry, room, made):
        return made
    if _in_bf16():
        return None  # torch is as fast, and tiles would round each sum of a part of the images
    points, filters, products = room.split(tiling.room)
    for first in range(0, outs, tiling.channels):
        leaving = Tiles(grad, size, (0, 0), slice(first, first + tiling.channels))
        sums = at_points(products, leaving.channels, ins)
        for start in range(0, len(x), tiling.images):
            images = slice(start, start + tiling.images)
            tiles = min(tiling.images, len(x) - start) * num_tiles(size)
            if first == 0 or tiling.images < len(x):  # else they are there from the channels before
                entering.run(library, Function.PIXELS_TO_POINTS, images, points)
            leaving.run(library, Function.FILTERS_TO_POINTS, images, filters)
            factors = at_points(filters, tiles, leaving.channels).transpose(1, 2), at_points(points, tiles, ins)
            torch.baddbmm(sums, *factors, beta=int(start > 0), out=sums)
        run(library, Function.POINTS_TO_TAPS, sums, (ctypes.c_int32 * 2)(leaving.channels, ins), made[first:])
    return made


def _in_bf16() -> bool:
    return precision() == "bf16" and multiplies_bf16()


def tile_bytes(batch: int, shape: torch.Size, entering: _Pair, leaving: _Pair, geometry: Geometry) -> int:
    """See `operations.tile_bytes`."""
    if fastest() is None:
        return 0
    sides = (input_tiling, entering), (weight_tiling, leaving)
    tilings = [tiling(batch, shape, size) for tiling, size in sides if tiles_pay(shape, size, geometry)]
    return 4 * max((sum(tiling.room) for tiling in tilings), default=0)


def signs(bits: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor | None:
    """See `operations.signs`."""
    library = library_for(bits, torch.uint8)
    if library is None or dtype != torch.float32:
        return None
    made = bits.new_empty(shape, dtype=dtype)
    run(library, Function.SIGNS, bits, (ctypes.c_int64 * 1)(made.numel()), made)
    return made


def _pixels(x: Tensor) -> Tensor:
    return channels_as_rows(channels_last(x))
