"""The numbers of a deployed layer as the C engine reads them."""

from dataclasses import dataclass

import numpy as np

from bsnn.deploy.schema import LARGEST, Artifact, Scale, Synapse, Value
from bsnn.errors import UserError

ALIGNMENT = 64
"""Bytes of a cache line."""

_MOST_WINDOWS = 16  # `BSNN_MAX_WINDOWS` of csrc/convolution.h
_SLACK = 64  # bytes that vectors may read beyond the last row; words, up to 3


@dataclass(frozen=True, eq=False)
class Weights:
    """The numbers of a synapse or a scale as the C reads them."""

    weight: np.ndarray
    """Bytes of the rows, then a row of zeros and what vectors read beyond the end; see `weights`."""
    row: int
    """Bytes of a row."""
    multiplier: np.ndarray
    offset: np.ndarray
    wide: bool
    """Whether products need 64 bits, or results a cut."""


def weights(layer: Synapse | Scale, value: Value, small: bool = False, vector: int = 0) -> Weights:
    """What the C reads of a layer that `value` enters.

    Args:
        layer: The layer.
        value: What it takes.
        small: Whether the C is built with `BSNN_SMALL`, which reads less beyond the end.
        vector: Bytes of a vector of the C, which short rows of weights fill together; see `windows_of`.
    """
    multiplier, offset = (np.ascontiguousarray(v, np.int32) for v in (layer.multiplier, layer.offset))
    rows = np.empty((0, 0), np.uint8)
    largest = value.magnitude
    if isinstance(layer, Synapse):
        rows, largest = layer.weight, layer.largest_sum(value)
        if layer.weights == "bits" and not counts(layer, value):
            rows = layer.signs().astype(np.int16)
        rows = np.ascontiguousarray(rows).view(np.uint8)
        windows = windows_of(layer, value, vector)
        if windows > 1:
            rows = _side_by_side(layer, rows, windows, vector)
    if rows.size + rows.shape[1] >= 2**31:
        raise UserError(f"layer {layer.name}: {rows.size} bytes of weights; the C engine supports fewer than 2^31.")
    beyond = rows.shape[1] + _SLACK
    if small:
        beyond = rows.shape[1] + 3 if isinstance(layer, Synapse) and counts(layer, value) else 0
    padded = zeros_aligned(rows.size + beyond)
    padded[: rows.size] = rows.ravel()
    product = largest * _magnitude(multiplier) + (1 << layer.shift >> 1)
    wide = product >= 2**31 or (product >> layer.shift) + 1 + _magnitude(offset) > LARGEST
    return Weights(padded, rows.shape[1], multiplier, offset, wide)


def windows_of(layer: Synapse, value: Value, vector: int) -> int:
    """How many windows side by side one row of weights serves, so that it fills a vector of so many bytes.

    A row has a bit for each channel of the output. With several windows, it has the bits that its spike meets in the
    first one, then those that it meets in the second: spikes of columns that the windows share are counted only once.
    """
    room = -(-layer.out // 32) * 32
    fits = min(8 * vector // room, layer.output([value]).shape[2], _MOST_WINDOWS)
    shares = layer.stride[1] < layer.kernel[1] and layer.dilation[1] == 1 and layer.groups == 1
    return fits if fits > 1 and shares and counts(layer, value) else 1


def _side_by_side(layer: Synapse, rows: np.ndarray, windows: int, vector: int) -> np.ndarray:
    """Rows of weights `[taps · C, bytes]` for several windows, `[taps' · C, vector]`: see csrc/convolution.h."""
    (height, width), stride, channels = layer.kernel, layer.stride[1], len(rows) // (layer.kernel[0] * layer.kernel[1])
    taps = rows.reshape(height, width, channels, -1)
    room = -(-layer.out // 32) * 4
    made = np.zeros((height, width + (windows - 1) * stride, channels, vector), np.uint8)
    for n in range(windows):
        made[:, n * stride : n * stride + width, :, n * room : n * room + taps.shape[-1]] = taps
    return made.reshape(-1, vector)


def all_weights(artifact: Artifact, small: bool = False, vector: int = 0) -> dict[int, Weights]:
    """What the C reads of each layer that has numbers of its own, by the layer's place; see `weights`."""
    return {
        i: weights(layer, artifact.values[layer.inputs[0]], small, vector)
        for i, layer in enumerate(artifact.layers)
        if isinstance(layer, Synapse | Scale)
    }


def zeros_aligned(size: int) -> np.ndarray:
    """Bytes that begin with a cache line; vectors across two lines cost twice."""
    room = np.zeros(size + ALIGNMENT, np.uint8)
    return room[-room.ctypes.data % ALIGNMENT :][:size]


def _magnitude(numbers: np.ndarray) -> int:
    return int(np.abs(numbers.astype(np.int64)).max(initial=0))


def counts(layer: Synapse, value: Value) -> bool:
    """Whether a synapse is computed by counting rows of bits; others multiply 16-bit weights."""
    return layer.weights == "bits" and value.kind in ("spikes", "counts")
