"""The weight gradient of a convolution from its events, the inputs that are not zero (csrc/events.c).

Spikes are few: an event costs nine additions per output channel, and what is zero costs nothing.
"""

import ctypes

import torch
from torch import Tensor

from bsnn.kernels._library import Function, run
from bsnn.kernels.operations import Geometry

# If more of the inputs are not zero, tiles are faster.
_MAX_SHARE = 0.3

# Bytes of the gradients of a chunk: what the first cache holds.
_CHUNK_BYTES = 32 << 10
# Places of a chunk have 16 bits.
_MAX_PLACES = 1 << 16


class _EventTable(ctypes.Structure):
    """`bsnn_event_table` of train.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("batch", "channels", "height", "width", "outs")),
        *((name, ctypes.c_int32 * 2) for name in ("made", "padding")),
        ("images", ctypes.c_int32),
    ]


def weight_gradient(
    library: ctypes.CDLL, grad: Tensor, x: Tensor, geometry: Geometry, room: Tensor, made: Tensor
) -> bool:
    """Writes the weight gradient of a convolution of 3 by 3 taps and stride 1; returns whether events are few.

    Args:
        library: The library of training.
        grad: Gradient of what leaves, `[B, H, W, O]`.
        x: What enters, `[B, H, W, C]`.
        geometry: Of the convolution.
        room: Floats to work in; if they are too few, nothing is done.
        made: The weight gradient, `[O, C, 3, 3]`; written to.
    """
    batch, height, width, channels = x.shape
    outs, lanes = grad.shape[3], library.bsnn_event_lanes()
    area = (height + 2) * (width + 2)
    if area > _MAX_PLACES:
        return False
    images = min(batch, max(1, min(_CHUNK_BYTES // (4 * lanes), _MAX_PLACES) // area))
    chunks = -(-batch // images)
    table = _EventTable(batch, channels, height, width, outs, grad.shape[1:3], geometry.padding, images)
    work = torch.get_num_threads() * lanes * (images * area + 9 * channels)
    lists = chunks * channels
    if lists + work > len(room):
        return False
    work_room, ends, room = room[:work], room[work:].view(torch.int32)[:lists], room[work + lists :]
    run(library, Function.COUNT_EVENTS, table, x, ends)
    counts = ends.cumsum(0, dtype=torch.int64)
    number = int(counts[-1])
    if number > _MAX_SHARE * x.numel() or number + -(-number // 2) > len(room):
        return False
    ends.copy_(counts - ends)
    values, places = room[:number], room[number:].view(torch.int16)
    run(library, Function.LIST_EVENTS, table, x, ends, values, places)
    run(library, Function.WEIGHTS_FROM_EVENTS, table, grad, ends, values, places, work_room, made)
    return True
