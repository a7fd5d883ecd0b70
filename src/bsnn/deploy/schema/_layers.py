"""The layers of a deployed network: their numbers, and what each makes of its inputs."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np

from bsnn.deploy.schema._value import BadModel, Kind, Pair, Shape, Value

_SPARE_PADDING = 7


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer: a name, and the numbers of the values that it takes."""

    op: ClassVar[str]
    num_inputs: ClassVar[int | None] = 1
    """None for any number."""
    name: str
    inputs: tuple[int, ...]

    def output(self, inputs: Sequence[Value]) -> Value:
        """What it makes of such inputs.

        Raises:
            BadModel: If it cannot take them.
        """
        raise NotImplementedError

    def additions(self, taken: Value, made: Value) -> int:
        """How many additions one time step takes if every element of the first input is there."""
        return made.size

    @property
    def num_bytes(self) -> int:
        """Bytes of its weights, multipliers and offsets: the one count that files, reports and exports go by."""
        numbers = (getattr(self, f.name) for f in fields(self))
        return sum(part.nbytes for part in numbers if isinstance(part, np.ndarray))

    def _takes(self, value: Value, *kinds: Kind) -> None:
        if value.kind not in kinds:
            raise BadModel(f"layer {self.name}: {self.op} takes {' or '.join(kinds)}, and it is given {value.kind}.")


@dataclass(frozen=True, eq=False)
class Synapse(Layer):
    """A convolution with one-bit or 16-bit weights, then one multiplication, shift and addition per channel."""

    op = "synapse"
    out: int
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    weights: Literal["bits", "int16"]
    input_shift: int
    shift: int
    weight: np.ndarray
    """One row for each tap and input channel: `ceil(out / groups / 8)` bytes, or `out / groups` int16."""
    multiplier: np.ndarray
    offset: np.ndarray

    def signs(self) -> np.ndarray:
        """One-bit weights as −1 and +1, int8: a row of `out / groups` for each tap and input channel.

        Example:
            >>> import numpy as np
            >>> rows, ones = np.array([[0b001], [0b110]], np.uint8), np.ones(3, np.int32)
            >>> layer = Synapse("s", (0,), 3, (1, 1), (1, 1), (0, 0), (1, 1), 1, "bits", 0, 0, rows, ones, ones)
            >>> layer.signs().tolist()
            [[1, -1, -1], [-1, 1, 1]]
        """
        assert self.weights == "bits"
        bits = np.unpackbits(self.weight, axis=1, count=self.out // self.groups, bitorder="little")
        return bits.view(np.int8) * np.int8(2) - np.int8(1)

    def rows(self) -> np.ndarray:
        """Weights as integers, whatever they are stored as; laid out as `signs`."""
        return self.signs() if self.weights == "bits" else self.weight

    def dense(self) -> np.ndarray:
        """Weights as integers `[O, C/G, kh, kw]`, as PyTorch lays them out."""
        grouped = self.rows().reshape(*self.kernel, self.groups, -1, self.out // self.groups)
        return grouped.transpose(2, 4, 3, 0, 1).reshape(self.out, -1, *self.kernel)

    def output(self, inputs: Sequence[Value]) -> Value:
        """See `Layer.output`."""
        (value,) = inputs
        self._takes(value, "input", "spikes", "counts", "fixed")
        if self.input_shift and value.kind != "fixed":
            raise BadModel(f"layer {self.name}: input_shift is {self.input_shift}; only fixed values are shifted.")
        channels, *sides = value.shape
        if channels % self.groups or self.out % self.groups:
            raise BadModel(f"layer {self.name}: {self.groups} groups do not divide {channels} and {self.out} channels.")
        outs = self.out // self.groups
        row = outs if self.weights == "int16" else -(-outs // 8)
        expected = self.kernel[0] * self.kernel[1] * channels, row
        if self.weight.shape != expected:
            raise BadModel(
                f"layer {self.name}: its weights are {self.weight.shape}; expected {expected} for {channels} input "
                "channels."
            )
        largest = self.largest_sum(value)
        if largest >= 2**30:
            raise BadModel(f"layer {self.name}: a sum can reach {largest}; it must stay below 2^30.")
        reach = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
        _check_padding(self, reach, sides)
        rows, columns = (
            (side + 2 * p - r) // s + 1 if side + 2 * p >= r else 0
            for side, p, r, s in zip(sides, self.padding, reach, self.stride, strict=True)
        )
        if rows < 1 or columns < 1:
            raise BadModel(f"layer {self.name}: a kernel that reaches over {reach} does not fit into {sides}.")
        return Value.fixed((self.out, rows, columns))

    def additions(self, taken: Value, made: Value) -> int:
        """See `Layer.additions`."""
        return made.size * self.kernel[0] * self.kernel[1] * (taken.shape[0] // self.groups)

    def num_weights(self, taken: Value) -> int:
        """How many weights it has."""
        return self.kernel[0] * self.kernel[1] * taken.shape[0] * self.out // self.groups

    def largest_input(self, value: Value) -> int:
        """The largest magnitude that meets a weight."""
        largest = value.magnitude
        return min(largest + (1 << self.input_shift) >> self.input_shift, 32768) if self.input_shift else largest

    def largest_sum(self, value: Value) -> int:
        """The largest magnitude that a sum can have, for any input."""
        taps, channels = self.kernel[0] * self.kernel[1], value.shape[0]
        largest = min(self.largest_input(value), 32768)
        if self.weights == "bits":
            return taps * (channels // self.groups) * largest
        grouped = self.weight.reshape(taps, self.groups, channels // self.groups, -1)
        return int(np.abs(grouped.astype(np.int64)).sum((0, 2)).max(initial=0)) * largest


@dataclass(frozen=True, eq=False)
class Lif(Layer):
    """Neurons with a leak of `leak` / 2^16 and a threshold."""

    op = "lif"
    leak: int
    threshold: int
    firing_rate: float | None = None
    """Measured when the network was exported; None if it was exported without samples."""

    def output(self, inputs: Sequence[Value]) -> Value:
        """See `Layer.output`."""
        self._takes(inputs[0], "fixed")
        return Value("spikes", inputs[0].shape, 0, 1)


@dataclass(frozen=True, eq=False)
class Pool(Layer):
    """Base of the layers that make one number of each window."""

    kernel: Pair
    stride: Pair
    padding: Pair
    ceil: bool

    def additions(self, taken: Value, made: Value) -> int:
        """See `Layer.additions`."""
        return made.size * self.kernel[0] * self.kernel[1]

    def pooled(self, shape: Shape) -> Shape:
        """The shape after pooling; with `ceil` rounded up, as PyTorch rounds."""
        _check_padding(self, self.kernel, shape[1:])
        sides = []
        for side, k, s, p in zip(shape[1:], self.kernel, self.stride, self.padding, strict=True):
            length = -(-(side + 2 * p - k) // s) + 1 if self.ceil else (side + 2 * p - k) // s + 1
            if self.ceil and (length - 1) * s >= side + p:
                length -= 1
            if side + 2 * p < k or length < 1:
                raise BadModel(f"layer {self.name}: a window of {self.kernel} does not fit into {shape[1:]}.")
            sides.append(length)
        return shape[0], sides[0], sides[1]


@dataclass(frozen=True, eq=False)
class AveragePool(Pool):
    """The sum over a window of spikes or counts; the rounded average of fixed values."""

    op = "average_pool"
    count_padding: bool

    def output(self, inputs: Sequence[Value]) -> Value:
        """See `Layer.output`."""
        self._takes(inputs[0], "spikes", "counts", "fixed")
        shape = self.pooled(inputs[0].shape)
        if inputs[0].kind == "fixed":
            return Value.fixed(shape)
        return Value.counts(shape, inputs[0].high * self.kernel[0] * self.kernel[1], self.name)


@dataclass(frozen=True, eq=False)
class MaxPool(Pool):
    """The largest value of a window."""

    op = "max_pool"

    def output(self, inputs: Sequence[Value]) -> Value:
        """See `Layer.output`."""
        self._takes(inputs[0], "spikes", "counts", "fixed")
        value = inputs[0]
        return Value(value.kind, self.pooled(value.shape), value.low, value.high)


@dataclass(frozen=True, eq=False)
class Add(Layer):
    """The sum of two values."""

    op = "add"
    num_inputs = 2

    def output(self, inputs: Sequence[Value]) -> Value:
        """See `Layer.output`."""
        first, second = inputs
        if first.shape != second.shape or (first.kind == "fixed") != (second.kind == "fixed"):
            raise BadModel(
                f"layer {self.name}: adds {first.kind} of shape {first.shape} and {second.kind} of shape "
                f"{second.shape}; expected the same shape, and both fixed or neither."
            )
        for value in inputs:
            self._takes(value, "spikes", "counts", "fixed")
        if first.kind == "fixed":
            return Value.fixed(first.shape)
        return Value.counts(first.shape, first.high + second.high, self.name)


@dataclass(frozen=True, eq=False)
class Concat(Layer):
    """Values one after another along the channels."""

    op = "concat"
    num_inputs = None

    def output(self, inputs: Sequence[Value]) -> Value:
        """See `Layer.output`."""
        for value in inputs:
            self._takes(value, "spikes", "counts", "fixed")
        kinds = {value.kind for value in inputs}
        if len({value.shape[1:] for value in inputs}) > 1 or ("fixed" in kinds and len(kinds) > 1):
            shapes = ", ".join(f"{value.kind} {value.shape}" for value in inputs)
            raise BadModel(f"layer {self.name}: joins {shapes}; expected one kind, and the same height and width.")
        shape = (sum(value.shape[0] for value in inputs), *inputs[0].shape[1:])
        kind: Kind = "counts" if "counts" in kinds else inputs[0].kind
        return Value(kind, shape, min(v.low for v in inputs), max(v.high for v in inputs))


@dataclass(frozen=True, eq=False)
class Scale(Layer):
    """One multiplication, shift and addition per channel."""

    op = "scale"
    shift: int
    multiplier: np.ndarray
    offset: np.ndarray

    def output(self, inputs: Sequence[Value]) -> Value:
        """See `Layer.output`."""
        (value,) = inputs
        if len(self.multiplier) != value.shape[0]:
            raise BadModel(
                f"layer {self.name}: has {len(self.multiplier)} multipliers for {value.shape[0]} channels; "
                "expected one for each."
            )
        return Value.fixed(value.shape)


def _check_padding(layer: Any, reach: Sequence[int], sides: Sequence[int]) -> None:
    if any(p > side + _SPARE_PADDING for p, side in zip(layer.padding, sides, strict=True)):
        raise BadModel(f"layer {layer.name}: padding {layer.padding} is far beyond an input of {tuple(sides)}.")
    if any(p >= r for p, r in zip(layer.padding, reach, strict=True)):
        raise BadModel(
            f"layer {layer.name}: padding {layer.padding} is not below the reach {tuple(reach)} of its kernel."
        )
