"""The integer layers of a deployed network as they are made, and what their values stand for.

NumPy only. A synapse stays pending until it is known whether a BatchNorm behind it is to be folded in.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from bsnn.data.grid import to_int32
from bsnn.deploy.quantize import multipliers, rows, weights16
from bsnn.deploy.schema import LARGEST, Add, InputSpec, Kind, Layer, Scale, Shape, Synapse, Value

# A current behind BatchNorm is taken to stay within so many deviations.
_DEVIATIONS = 8.0


@dataclass
class Signal:
    """A value of the network being built: which one, and what an integer of it stands for."""

    index: int
    kind: Kind
    shape: Shape
    unit: float
    """An integer times this is the real number."""
    high: int
    """The largest integer."""
    mean: float = 0.0
    variance: float = 0.0
    """Of a current: how far it may stray, to choose the range of 16-bit copies."""
    flat: bool = False

    @property
    def reach(self) -> float:
        """The largest real magnitude that is expected."""
        if self.kind != "fixed":
            return self.high * self.unit
        return min(self.mean + _DEVIATIONS * math.sqrt(self.variance), LARGEST * self.unit)


@dataclass
class Pending:
    """A synapse, or a signal, whose scale and shift may still be folded with a BatchNorm behind it."""

    name: str
    source: Signal
    weight: np.ndarray | None
    """[O, C/G, kh, kw]; None for a mere scale and shift."""
    binary: bool
    geometry: dict[str, Any]
    scale: np.ndarray
    shift: np.ndarray
    spread: tuple[float, float] | None = None
    """Mean and variance that a BatchNorm gives it."""

    @classmethod
    def unscaled(cls, name: str, source: Signal) -> "Pending":
        """A signal as it is."""
        channels = source.shape[0]
        return cls(name, source, None, False, {}, np.ones(channels), np.zeros(channels))

    def strays(self) -> tuple[float, float]:
        """Mean and variance; without a BatchNorm, the mean is a bound."""
        if self.spread is not None:
            return self.spread
        sums = 1.0 if self.weight is None else np.abs(self.weight).sum((1, 2, 3))
        return float((np.abs(self.scale) * sums * self.source.reach + np.abs(self.shift)).max()), 0.0


class Builder:
    """Adds integer layers one by one.

    Args:
        spec: What the network takes.
        fraction_bits: Of fixed values.
        flat: Whether inputs are features without height and width.
    """

    def __init__(self, spec: InputSpec, fraction_bits: int, *, flat: bool = False) -> None:
        self.fraction_bits = fraction_bits
        self.unit = 2.0**-fraction_bits
        self.layers: list[Layer] = []
        self.start = Signal(0, "input", spec.shape, 2.0**-spec.fraction_bits, 32768, flat=flat)
        self._values = [Value.input(spec.shape)]

    def add(self, layer: Layer, unit: float, mean: float = 0.0, variance: float = 0.0) -> Signal:
        """Adds a layer; `unit`, `mean` and `variance` are those of the `Signal` that it makes."""
        value = layer.output([self._values[i] for i in layer.inputs])
        self.layers.append(layer)
        self._values.append(value)
        return Signal(len(self.layers), value.kind, value.shape, unit, value.high, mean, variance)

    def settled(self, x: Signal | Pending) -> Signal:
        """Adds the layer of what was pending."""
        if isinstance(x, Signal):
            return x
        offset = to_int32(x.shift / self.unit)
        gain = x.scale * x.source.unit / self.unit
        if x.weight is None:
            multiplier, shift = multipliers(gain)
            made = self.add(Scale(x.name, (x.source.index,), shift, multiplier, offset), self.unit, *x.strays())
        else:
            made = self._binary(x, gain, offset) if x.binary else self._real(x, offset)
        return replace(made, flat=x.source.flat)

    def to_fixed(self, x: Signal, name: str) -> Signal:
        """The same as fixed values."""
        if x.kind == "fixed":
            return x
        return self.settled(Pending.unscaled(name, x))

    def _binary(self, x: Pending, gain: np.ndarray, offset: np.ndarray) -> Signal:
        assert x.weight is not None
        bits = np.packbits(rows(x.weight, x.geometry["groups"]) > 0, axis=1, bitorder="little")
        # Sums of spikes are small, and a product without a shift stays within 32 bits: the engine's fast path.
        whole = x.source.kind in ("spikes", "counts")
        numbers = (to_int32(gain), 0) if whole else multipliers(gain * 2.0 ** self._input_shift(x.source))
        return self.add(self._synapse(x, "bits", bits, *numbers, offset), self.unit, *x.strays())

    def _real(self, x: Pending, offset: np.ndarray) -> Signal:
        assert x.weight is not None
        whole = x.source.kind in ("spikes", "counts")
        found = weights16(x.weight, min(x.source.high, 32768), with_rest=not whole)
        gain = x.scale * x.source.unit * 2.0 ** self._input_shift(x.source) / self.unit / found.scale
        high = self.add(self._int16(x, found.whole, gain, offset), self.unit, *x.strays())
        if found.rest is None:
            return high
        rest = replace(x, name=f"{x.name}.rest")
        low = self.add(self._int16(rest, found.rest, gain / found.rest_scale, offset * 0), self.unit)
        return self.add(Add(f"{x.name}.sum", (high.index, low.index)), self.unit, *x.strays())

    def _int16(self, x: Pending, weight: np.ndarray, gain: np.ndarray, offset: np.ndarray) -> Layer:
        return self._synapse(x, "int16", rows(weight, x.geometry["groups"]), *multipliers(gain), offset)

    def _synapse(
        self,
        x: Pending,
        weights: Literal["bits", "int16"],
        weight: np.ndarray,
        multiplier: np.ndarray,
        shift: int,
        offset: np.ndarray,
    ) -> Layer:
        return Synapse(
            x.name,
            (x.source.index,),
            **x.geometry,
            weights=weights,
            input_shift=self._input_shift(x.source),
            shift=shift,
            weight=np.ascontiguousarray(weight),
            multiplier=multiplier,
            offset=offset,
        )

    def _input_shift(self, source: Signal) -> int:
        """By how much a current is shifted so that 16 bits hold it."""
        if source.kind != "fixed":
            return 0
        return max(0, self.fraction_bits + math.ceil(math.log2(max(source.reach, 2**-8))) - 15)
