"""The deployed network in NumPy: the reference of the C engine, and what runs if that was not built.

Arrays are channels-last, `[B, H, W, C]`. Sums of a synapse are computed by floating matrix products, which are exact
here: in single precision below 2^24, in double precision below 2^31.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from bsnn.deploy.schema import (
    LARGEST,
    Add,
    Artifact,
    AveragePool,
    Concat,
    Layer,
    Lif,
    MaxPool,
    Pool,
    Scale,
    Synapse,
    Value,
)

Arrays = Sequence[np.ndarray]

_BLOCK_BYTES = 2**26


class Plain:
    """Runs a deployed network with NumPy.

    Args:
        artifact: The network.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._matrices = {
            i: _matrix(layer, artifact.values[layer.inputs[0]])
            for i, layer in enumerate(artifact.layers)
            if isinstance(layer, Synapse)
        }

    def run(
        self, frames: np.ndarray, time_steps: int, membranes: Arrays | None, record: Arrays | None = None
    ) -> np.ndarray:
        """Outputs summed over time steps, `[B, O]`, int64.

        Args:
            frames: Integers `[S, B, H, W, C]`, int16; S is 1 for a still input, else `time_steps`.
            time_steps: How many.
            membranes: One per layer of neurons, `[B, H, W, C]`, int32, changed in place; None to begin at 0.
            record: Where to write spikes, one per layer of neurons, `[T, B, H, W, C]`, uint8.
        """
        layers, total = self.artifact.layers, np.zeros((frames.shape[1], len(self.artifact.classes)), np.int64)
        if membranes is None:
            membranes = self.artifact.membranes(len(total))
        values: list[np.ndarray] = [frames[0].astype(np.int32)] + [frames] * len(layers)
        still = self.artifact.unchanging(len(frames) == 1)
        for t in range(time_steps):
            if not still[0]:
                values[0] = frames[t].astype(np.int32)
            neurons = 0
            for i, layer in enumerate(layers):
                if t and still[i + 1]:
                    continue
                inputs = [values[k] for k in layer.inputs]
                if isinstance(layer, Lif):
                    values[i + 1] = _fire(layer, inputs[0], membranes[neurons])
                    if record is not None:
                        record[neurons][t] = values[i + 1]
                    neurons += 1
                else:
                    values[i + 1] = self._apply(i, layer, inputs)
            total += values[-1].reshape(total.shape)
        return total

    def _apply(self, i: int, layer: Layer, inputs: list[np.ndarray]) -> np.ndarray:
        fixed = self.artifact.values[layer.inputs[0]].kind == "fixed"
        if isinstance(layer, Synapse):
            return _multiply(layer, inputs[0], self._matrices[i])
        if isinstance(layer, Scale):
            return _scaled(inputs[0].astype(np.int64), layer)
        if isinstance(layer, Add):
            total = inputs[0].astype(np.int64) + inputs[1]
            return _saturate(total) if fixed else total.astype(np.int32)
        if isinstance(layer, Concat):
            return np.concatenate(inputs, axis=-1)
        if isinstance(layer, MaxPool):
            return _windows(layer, inputs[0], -LARGEST).max((-2, -1))
        assert isinstance(layer, AveragePool)
        total = _windows(layer, inputs[0], 0).sum((-2, -1), dtype=np.int64)
        if fixed:
            places = _places(layer, inputs[0].shape[1:3])[:, :, None]
            total = (2 * total + places) // (2 * places)
        return total.astype(np.int32)


def _saturate(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -LARGEST, LARGEST).astype(np.int32)


def _round_shift(x: np.ndarray, shift: int) -> np.ndarray:
    return (x + ((1 << shift) >> 1)) >> shift


def _scaled(x: np.ndarray, layer: Scale | Synapse) -> np.ndarray:
    return _saturate(_round_shift(x * layer.multiplier.astype(np.int64), layer.shift) + layer.offset)


def _fire(layer: Lif, current: np.ndarray, membrane: np.ndarray) -> np.ndarray:
    potential = _saturate(_round_shift(membrane.astype(np.int64) * layer.leak, 16) + current)
    spikes = potential >= layer.threshold
    np.subtract(potential, layer.threshold, out=potential, where=spikes)
    membrane[...] = potential
    return spikes.astype(np.int32)


def _matrix(layer: Synapse, value: Value) -> np.ndarray:
    """The weights as floating numbers, `[G, taps · C/G, O/G]`."""
    dtype = np.float32 if layer.largest_sum(value) < 2**24 else np.float64
    outs, channels = layer.out // layer.groups, value.shape[0] // layer.groups
    grouped = layer.rows().astype(dtype).reshape(-1, layer.groups, channels, outs)
    return np.ascontiguousarray(grouped.transpose(1, 0, 2, 3)).reshape(layer.groups, -1, outs)


def _multiply(layer: Synapse, x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    x = np.clip(_round_shift(x.astype(np.int64), layer.input_shift), -32768, 32767)
    (up, left), groups = layer.padding, layer.groups
    x = np.pad(x.astype(matrix.dtype), ((0, 0), (up, up), (left, left), (0, 0)))
    reach = [d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel, strict=True)]
    windows = sliding_window_view(x, reach, axis=(1, 2))
    windows = windows[:, :: layer.stride[0], :: layer.stride[1], :, :: layer.dilation[0], :: layer.dilation[1]]
    batch, rows, columns, channels = windows.shape[:4]
    result = np.empty((batch, rows, columns, layer.out), np.int32)
    # Unfolded windows are as many times larger as there are taps, so a few rows at a time, or parts of one.
    fitting = max(1, _BLOCK_BYTES // (groups * matrix.shape[1] * x.itemsize))
    down, across = max(1, fitting // columns), min(columns, fitting)
    for image, top, left in itertools.product(range(batch), range(0, rows, down), range(0, columns, across)):
        block = image, slice(top, top + down), slice(left, left + across)
        part = windows[block]  # [rows, columns, C, taps down, taps across]
        unfolded = part.reshape(*part.shape[:2], groups, channels // groups, *layer.kernel)
        unfolded = unfolded.transpose(2, 0, 1, 4, 5, 3).reshape(groups, -1, matrix.shape[1])
        sums = (unfolded @ matrix).astype(np.int64).transpose(1, 0, 2).reshape(*part.shape[:2], layer.out)
        result[block] = _scaled(sums, layer)
    return result


def _windows(pool: Pool, x: np.ndarray, fill: int) -> np.ndarray:
    """Views of all windows, `[B, rows, columns, C, kh, kw]`; what lies outside the input is `fill`."""
    _, rows, columns = pool.pooled((x.shape[3], *x.shape[1:3]))
    pads = [
        (p, max(0, (length - 1) * s + k - side - p))
        for side, length, k, s, p in zip(
            x.shape[1:3], (rows, columns), pool.kernel, pool.stride, pool.padding, strict=True
        )
    ]
    x = np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=fill)
    windows = sliding_window_view(x, pool.kernel, axis=(1, 2))
    return windows[:, :: pool.stride[0], :: pool.stride[1]][:, :rows, :columns]


def _places(pool: AveragePool, sides: Sequence[int]) -> np.ndarray:
    """How many places of each window lie in the input, `[rows, columns]`."""
    _, *lengths = pool.pooled((1, sides[0], sides[1]))
    counts = []
    for side, length, k, s, p in zip(sides, lengths, pool.kernel, pool.stride, pool.padding, strict=True):
        first = np.arange(length, dtype=np.int64) * s - p
        edge = p if pool.count_padding else 0
        counts.append(np.minimum(first + k, side + edge) - np.maximum(first, -edge))
    return counts[0][:, None] * counts[1]
