"""The whole deployed network: its input, its layers and the values that they make."""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from bsnn.data.grid import Grid
from bsnn.deploy.schema._layers import Layer, Lif
from bsnn.deploy.schema._value import MAX_SIDE, BadModel, Shape, Value
from bsnn.errors import UserError


@dataclass(frozen=True)
class InputSpec:
    """The shape of an input, and how raw numbers become the network's integers."""

    kind: Literal["image", "sound", "event"]
    shape: Shape
    fraction_bits: int
    divisor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    multiplier: tuple[int, ...]
    offset: tuple[int, ...]
    shift: int
    decode: dict[str, Any]
    """How a file becomes an array, beyond kind and shape."""

    @property
    def is_plain(self) -> bool:
        """Whether raw numbers are normalized ones, so that nothing is known of their range."""
        return self.divisor == 1 and set(self.mean) == {0} and set(self.std) == {1}

    @property
    def largest(self) -> float:
        """The largest raw number: events are counted in bytes; all else is divided by its largest."""
        return 255.0 if self.kind == "event" else self.divisor

    @property
    def formula(self) -> str:
        """How raw numbers are normalized."""
        mean, std = (", ".join(f"{number:.6g}" for number in numbers) for numbers in (self.mean, self.std))
        return f"(raw / {self.divisor:g} - mean) / std with a mean of {mean} and a std of {std} per channel"

    def from_bytes(self, raw: np.ndarray) -> np.ndarray:
        """Integers from raw bytes `[..., C, H, W]`."""
        return Grid(self.fraction_bits, self.multiplier, self.offset, self.shift).from_bytes(raw)

    def from_reals(self, normalized: np.ndarray) -> np.ndarray:
        """Integers from real numbers that are normalized already."""
        return _cut16(np.rint(np.asarray(normalized, np.float32) * np.float32(2**self.fraction_bits)))

    def normalize(self, raw: np.ndarray) -> np.ndarray:
        """Normalized real numbers from raw ones `[..., C, H, W]`."""
        mean, std = (np.array(v, np.float32).reshape(-1, 1, 1) for v in (self.mean, self.std))
        return (raw.astype(np.float32) / np.float32(self.divisor) - mean) / std


def _cut16(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -32768, 32767).astype(np.int16)


@dataclass(frozen=True, eq=False)
class Artifact:
    """A deployed network: layers in order; value 0 is the input, and layer i makes value i + 1."""

    name: str
    classes: tuple[str, ...]
    time_steps: int
    fraction_bits: int
    input: InputSpec
    layers: tuple[Layer, ...]
    output_scale: float
    reject_below: int | None = None
    """See `rejects`; None if every input has a class."""
    values: tuple[Value, ...] = field(init=False)

    def __post_init__(self) -> None:
        values = [Value.input(self.input.shape)]
        taken = set()
        for number, layer in enumerate(self.layers):
            if any(not 0 <= index <= number for index in layer.inputs):
                raise BadModel(
                    f"layer {layer.name}: takes values {layer.inputs}; only 0 to {number} are made before it."
                )
            taken.update(layer.inputs)
            value = layer.output([values[index] for index in layer.inputs])
            if max(value.shape) > MAX_SIDE:
                raise BadModel(f"layer {layer.name}: makes {value.shape}; at most {MAX_SIDE} each way are allowed.")
            values.append(value)
        unused = [self.layers[i - 1].name if i else "the input" for i in range(len(self.layers)) if i not in taken]
        if unused:
            raise BadModel(f"{unused[0]} is taken by no layer; only the last one may have no taker.")
        if values[-1].kind == "input" or values[-1].shape != (len(self.classes), 1, 1):
            raise BadModel(
                f"the network yields {values[-1].kind} of shape {values[-1].shape}; expected "
                f"{(len(self.classes), 1, 1)}, one output per class."
            )
        object.__setattr__(self, "values", tuple(values))

    def rejecting(self, prominence: float) -> "Artifact":
        """The same network with a threshold.

        Args:
            prominence: How far the largest logit must lie above the mean of all, of logits' means over time.
        """
        if not 0 <= prominence < math.inf:
            raise UserError(f"reject_below: received {prominence}; expected a number, at least 0.")
        return replace(self, reject_below=round(prominence * len(self.classes) / self.output_scale))

    @property
    def prominence(self) -> float | None:
        """The threshold in logits, as `rejecting` takes it."""
        return None if self.reject_below is None else self.reject_below * self.output_scale / len(self.classes)

    def rejects(self, outputs: np.ndarray, time_steps: int) -> np.ndarray:
        """Which inputs are none of the classes, `[B]`.

        Args:
            outputs: Sums over time, `[B, classes]`.
            time_steps: Over how many time steps.
        """
        if self.reject_below is None:
            return np.zeros(len(outputs), bool)
        above = len(self.classes) * outputs.max(axis=1) - outputs.sum(axis=1)
        return above < self.reject_below * time_steps

    @property
    def lifs(self) -> tuple[int, ...]:
        """The numbers of the layers of neurons."""
        return tuple(i for i, layer in enumerate(self.layers) if isinstance(layer, Lif))

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """The numbers of the layers that each layer of the trained network became.

        That is one, unless real weights were rounded in two parts: `NAME`, `NAME.rest` and their sum, `NAME.sum`.
        """
        found: list[tuple[int, ...]] = []
        for number, layer in enumerate(self.layers):
            whole = self.layers[layer.inputs[0] - 1].name
            parts = tuple(index - 1 for index in layer.inputs)
            split = layer.name == f"{whole}.sum" and [self.layers[i].name for i in parts] == [whole, f"{whole}.rest"]
            if split and found[-2:] == [parts[:1], parts[1:]]:
                found[-2:] = [(*parts, number)]
            else:
                found.append((number,))
        return found

    @property
    def additions(self) -> list[int]:
        """Additions of each layer at one time step if every input is there."""
        pairs = zip(self.layers, self.values[1:], strict=True)
        return [layer.additions(self.values[layer.inputs[0]], made) for layer, made in pairs]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, multipliers and offsets."""
        return sum(layer.num_bytes for layer in self.layers)

    @property
    def num_elements(self) -> int:
        """Elements of all values of one time step."""
        return sum(value.size for value in self.values)

    def unchanging(self, still: bool) -> list[bool]:
        """For each value, whether it is the same at all time steps, given an input that is still or not."""
        same = [still]
        for layer in self.layers:
            same.append(not isinstance(layer, Lif) and all(same[i] for i in layer.inputs))
        return same

    def membranes(self, batch: int) -> list[np.ndarray]:
        """The state that a network begins with: zeros, one array `[B, H, W, C]` per layer of neurons."""
        shapes = [self.values[i + 1].shape for i in self.lifs]
        return [np.zeros((batch, height, width, channels), np.int32) for channels, height, width in shapes]
