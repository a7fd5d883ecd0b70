"""From a trained network to a deployed one: integers and stated roundings (docs/model-file.md).

The network is walked layer by layer. BatchNorm and biases are folded into one multiplication and one addition a channel
of the synapse before them; spikes that were pooled stay whole numbers, their division moves into the next
multiplication. What is rounded: BatchNorm's numbers to F bits after the point, the real-valued weights to 16 bits, and
what enters those.
"""

import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bsnn.atomic import check_writable
from bsnn.data.dataset import Dataset, Kind as DataKind
from bsnn.data.loader import Loader
from bsnn.deploy import artifact as deployed
from bsnn.deploy.artifact import LARGEST, Artifact, InputSpec, Kind, Layer
from bsnn.deploy.deployed import Deployed
from bsnn.deploy.engine import Engine
from bsnn.errors import UserError
from bsnn.nn.bits import BinaryParameter, signs
from bsnn.nn.network import Concat, Residual, Sequential
from bsnn.nn.neuron import LIF, evaluating
from bsnn.nn.synapse import TracedConv2d, TracedLayer, TracedLinear
from bsnn.online.evaluate import predict

_FRACTION_BITS = 20
_HEADROOM_BITS = 4
# An input without known bounds is taken to stay below 8, a current behind BatchNorm to stay within so many deviations.
_UNKNOWN_INPUT, _DEVIATIONS = 8.0, 8.0
_PASSING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@dataclass
class _Value:
    """A value while the network is walked: which one, and what an integer of it stands for."""

    index: int
    kind: Kind
    shape: tuple[int, int, int]
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
class _Pending:
    """A synapse, or a value, whose scale and shift may still be folded with a BatchNorm behind it."""

    name: str
    source: _Value
    weight: np.ndarray | None
    """[O, C/G, kh, kw]; None for a mere scale and shift."""
    binary: bool
    geometry: dict[str, Any]
    scale: np.ndarray
    shift: np.ndarray
    spread: tuple[float, float] | None = None
    """Mean and variance that a BatchNorm gives it."""

    def strays(self) -> tuple[float, float]:
        """Mean and variance, the mean being a bound where no BatchNorm tells."""
        if self.spread is not None:
            return self.spread
        sums = 1.0 if self.weight is None else np.abs(self.weight).sum((1, 2, 3))
        return float((np.abs(self.scale) * sums * self.source.reach + np.abs(self.shift)).max()), 0.0


class _Walk:
    """Makes the layers of an artifact from a network."""

    def __init__(self, spec: InputSpec, fraction_bits: int) -> None:
        self.spec, self.fraction_bits = spec, fraction_bits
        self.layers: list[Layer] = []
        self.values = [deployed.Value("input", spec.shape, -32768, 32767)]

    def start(self) -> _Value:
        return _Value(0, "input", self.spec.shape, 2.0**-self.spec.fraction_bits, 32768)

    def walk(self, layer: nn.Module, x: _Value | _Pending, name: str) -> _Value | _Pending:
        """What leaves a layer that `x` enters."""
        prefix = f"{name}." if name else ""
        if isinstance(layer, _PASSING):
            return x
        if isinstance(layer, Sequential | nn.Sequential):
            for child_name, child in layer._modules.items():
                if child is not None:
                    x = self.walk(child, x, prefix + child_name)
            return x
        if isinstance(layer, Residual | Concat):
            entering = self._settled(x)
            branches = [self.walk(b, entering, prefix + n) for n, b in layer._modules.items() if b is not None]
            return self._joined(layer, name, [self._settled(branch) for branch in branches])
        if isinstance(layer, _NORMS):
            return self._normalized(layer, x, name)
        if isinstance(layer, LIF):
            return self._neurons(layer, x, name)
        if isinstance(layer, nn.Conv2d | TracedConv2d | nn.Linear | TracedLinear):
            return self._synapse(layer, self._settled(x), name)
        if isinstance(layer, nn.Flatten):
            if (layer.start_dim, layer.end_dim) != (1, -1):
                raise _unsupported(layer, name, "of some axes only")
            return replace(self._settled(x), flat=True)
        if isinstance(layer, nn.AvgPool2d | nn.AdaptiveAvgPool2d | nn.MaxPool2d):
            return self._pool(layer, self._settled(x), name)
        raise _unsupported(layer, name)

    def finish(self, x: _Value | _Pending) -> _Value:
        value = self._settled(x)
        return self._to_fixed(value, "output") if value.kind == "input" else value

    def _emit(self, layer: Layer, unit: float, mean: float = 0.0, variance: float = 0.0) -> _Value:
        value = layer.output([self.values[i] for i in layer.inputs])
        self.layers.append(layer)
        self.values.append(value)
        return _Value(len(self.layers), value.kind, value.shape, unit, value.high, mean, variance)

    @property
    def _unit(self) -> float:
        return 2.0**-self.fraction_bits

    def _settled(self, x: _Value | _Pending) -> _Value:
        """Makes the layer of what was pending."""
        if isinstance(x, _Value):
            return x
        offset = _int32(x.shift / self._unit)
        gain = x.scale * x.source.unit / self._unit
        if x.weight is None:
            multiplier, shift = _multipliers(gain)
            layer: Layer = deployed.Scale(x.name, (x.source.index,), shift, multiplier, offset)
        elif x.binary:
            layer = self._binary(x, gain, offset)
        else:
            return self._real(x, offset)
        return self._emit(layer, self._unit, *x.strays())

    def _binary(self, x: _Pending, gain: np.ndarray, offset: np.ndarray) -> Layer:
        assert x.weight is not None
        rows = _rows(x.weight, x.geometry["groups"])
        bits = np.packbits(rows > 0, axis=1, bitorder="little")
        # Of spikes the sums are small, and a product without a shift stays within 32 bits: the engine's fast path.
        whole = x.source.kind in ("spikes", "counts")
        multiplier, shift = (_int32(gain), 0) if whole else _multipliers(gain * 2.0 ** self._input_shift(x.source))
        return self._made(x, "bits", bits, multiplier, shift, offset)

    def _real(self, x: _Pending, offset: np.ndarray) -> _Value:
        assert x.weight is not None
        # Each output channel has a scale of its own, as fine as 16 bits and sums below 2^30 allow.
        flat = np.abs(x.weight.reshape(len(x.weight), -1))
        room = 2**30 / min(x.source.high, 32768) - flat.shape[1] / 2 - 1
        fine = np.minimum(32767 / np.maximum(flat.max(1), 1e-30), room / np.maximum(flat.sum(1), 1e-30))
        scaled = x.weight * fine[:, None, None, None]
        gain = x.scale * x.source.unit * 2.0 ** self._input_shift(x.source) / self._unit / fine
        high = self._emit(self._int16(x, np.rint(scaled), gain, offset), self._unit, *x.strays())
        if x.source.kind in ("spikes", "counts") or (fine * flat.max(1)).min() >= 2**14:
            return high
        # Where sums leave the weights fewer than 14 bits, what was rounded off becomes a second synapse.
        more = 2.0 ** math.floor(math.log2(2**30 / 32768 / flat.shape[1]))
        rest = self._int16(
            replace(x, name=f"{x.name}.rest"), np.rint((scaled - np.rint(scaled)) * more), gain / more, offset * 0
        )
        low = self._emit(rest, self._unit)
        return self._emit(deployed.Add(f"{x.name}.sum", (high.index, low.index)), self._unit, *x.strays())

    def _int16(self, x: _Pending, weight: np.ndarray, gain: np.ndarray, offset: np.ndarray) -> Layer:
        multiplier, shift = _multipliers(gain)
        rows = _rows(weight.astype(np.int16), x.geometry["groups"])
        return self._made(x, "int16", rows, multiplier, shift, offset)

    def _made(
        self, x: _Pending, weights: Any, weight: np.ndarray, multiplier: np.ndarray, shift: int, offset: np.ndarray
    ) -> Layer:
        return deployed.Synapse(
            x.name, (x.source.index,), **x.geometry, weights=weights, input_shift=self._input_shift(x.source),
            shift=shift, weight=np.ascontiguousarray(weight), multiplier=multiplier, offset=offset,
        )  # fmt: skip

    def _input_shift(self, source: _Value) -> int:
        """By how much a current is shifted so that 16 bits hold it."""
        if source.kind != "fixed":
            return 0
        return max(0, self.fraction_bits + math.ceil(math.log2(max(source.reach, 2**-8))) - 15)

    def _to_fixed(self, value: _Value, name: str) -> _Value:
        if value.kind == "fixed":
            return value
        channels = value.shape[0]
        fixed = self._settled(_Pending(name, value, None, False, {}, np.ones(channels), np.zeros(channels)))
        return replace(fixed, flat=value.flat)

    def _joined(self, layer: nn.Module, name: str, values: list[_Value]) -> _Value:
        flat = any(value.flat for value in values)
        if flat and len({value.shape for value in values}) > 1:
            raise _unsupported(layer, name, "of branches that are flattened and others that are not")
        return replace(self._joined_whole(layer, name, values), flat=flat)

    def _joined_whole(self, layer: nn.Module, name: str, values: list[_Value]) -> _Value:
        whole = all(v.kind in ("spikes", "counts") for v in values) and len({v.unit for v in values}) == 1
        if not whole:
            values = [self._to_fixed(value, name) for value in values]
        inputs = tuple(value.index for value in values)
        if isinstance(layer, Residual):
            mean, variance = sum(v.mean for v in values), sum(v.variance for v in values)
            return self._emit(deployed.Add(name, inputs), values[0].unit, mean, variance)
        mean, variance = max(v.mean for v in values), max(v.variance for v in values)
        return self._emit(deployed.Concat(name, inputs), values[0].unit, mean, variance)

    def _normalized(self, norm: Any, x: _Value | _Pending, name: str) -> _Pending:
        if norm.running_mean is None:
            raise UserError(
                f"export: layer {name} keeps no running statistics; expected a BatchNorm with track_running_stats=True."
            )
        deviation = (norm.running_var.double() + norm.eps).sqrt()
        gamma = torch.ones_like(deviation) if norm.weight is None else norm.weight.detach().double()
        beta = torch.zeros_like(deviation) if norm.bias is None else norm.bias.detach().double()
        mean = norm.running_mean.double()
        # A channel that never varied has a slope of 1/√ε. Its shift must fit into 32 bits; around the mean, where all
        # of its values were, a smaller slope changes nothing.
        steepest = LARGEST * self._unit / mean.abs().clamp(min=1e-6)
        slope = (gamma / deviation).clamp(-steepest, steepest)
        scale, shift = _numpy(slope), _numpy(beta - mean * slope)
        if isinstance(x, _Value):
            if x.flat and x.shape[1:] != (1, 1):
                raise _unsupported(norm, name, "behind a Flatten; put it before")
            x = _Pending(name, x, None, False, {}, np.ones(x.shape[0]), np.zeros(x.shape[0]))
        spread = float(beta.abs().max()), float(gamma.square().max())
        return replace(x, scale=x.scale * scale, shift=x.shift * scale + shift, spread=spread)

    def _neurons(self, lif: LIF, x: _Value | _Pending, name: str) -> _Value:
        value = self._to_fixed(self._settled(x), f"{name}.current")
        threshold = max(1, round(lif.threshold / self._unit))
        spikes = self._emit(deployed.Lif(name, (value.index,), round(lif.leak * 65536), threshold), 1.0)
        return replace(spikes, flat=value.flat)

    def _synapse(self, layer: Any, value: _Value, name: str) -> _Pending:
        if isinstance(layer, nn.Conv2d | TracedConv2d):
            if value.flat:
                raise _unsupported(layer, name, "behind a Flatten")
            shared = layer if isinstance(layer, nn.Conv2d) else layer.convolution
            if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
                raise _unsupported(layer, name, "with such padding; give it as numbers, filled with zeros")
            geometry = {key: getattr(shared, key) for key in ("stride", "padding", "dilation", "groups")}
            weight = _weights(layer)
        else:
            if not value.flat and value.shape[1:] != (1, 1):
                raise _unsupported(layer, name, f"on inputs of shape {value.shape}; put a Flatten before it")
            geometry = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
            weight = _weights(layer)
            if weight.shape[1] != math.prod(value.shape):
                raise UserError(
                    f"export: layer {name} takes {weight.shape[1]} features and is given {math.prod(value.shape)} "
                    f"{value.shape}; expected the input_shape that the network was built for."
                )
            weight = weight.reshape(len(weight), *value.shape)
        geometry |= {"out": len(weight), "kernel": weight.shape[2:]}
        bias = getattr(layer, "bias", None)
        shift = np.zeros(len(weight)) if bias is None else _numpy(bias.detach().double())
        binary = isinstance(layer, TracedLayer) and layer.weights != "real"
        return _Pending(name, value, weight, binary, geometry, np.ones(len(weight)), shift)

    def _pool(self, layer: Any, value: _Value, name: str) -> _Value:
        if value.flat:
            raise _unsupported(layer, name, "behind a Flatten")
        if value.kind == "input":
            value = self._to_fixed(value, f"{name}.input")
        shared = {"name": name, "inputs": (value.index,)}
        if isinstance(layer, nn.MaxPool2d):
            if _both(layer.dilation) != (1, 1) or layer.return_indices:
                raise _unsupported(layer, name, "with dilation or indices")
            pool: deployed.Pool = deployed.MaxPool(**shared, **_window(layer), ceil=layer.ceil_mode)
            return self._emit(pool, value.unit, value.mean, value.variance)
        if isinstance(layer, nn.AdaptiveAvgPool2d):
            pool = deployed.AveragePool(
                **shared, **_adaptive_window(layer, value, name), ceil=False, count_padding=True
            )
        else:
            if layer.divisor_override:
                raise _unsupported(layer, name, "with divisor_override")
            pool = deployed.AveragePool(
                **shared, **_window(layer), ceil=layer.ceil_mode, count_padding=layer.count_include_pad
            )
        if value.kind == "fixed":
            return self._emit(pool, value.unit, value.mean, value.variance)
        if _same_divisor(pool, value):
            return self._emit(pool, value.unit / (pool.kernel[0] * pool.kernel[1]))
        # Windows at the border divide by another number, so the division cannot wait.
        fixed = self._to_fixed(value, f"{name}.input")
        return self._emit(replace(pool, inputs=(fixed.index,)), fixed.unit, fixed.mean, fixed.variance)


def _unsupported(layer: nn.Module, name: str, how: str = "") -> UserError:
    return UserError(
        f"export: layer {name or 'the network'} is a {type(layer).__name__}{' ' + how if how else ''}, which has no "
        "deployed form; expected convolutions, linear layers, BatchNorm, LIF, pooling, Flatten, and Sequential, "
        "Residual and Concat of them."
    )


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _weights(layer: Any) -> np.ndarray:
    """Real weights, or ±1 of binary and latent ones, in double precision."""
    weight = signs(layer.weight) if isinstance(layer.weight, BinaryParameter) else layer.weight.detach()
    if isinstance(layer, TracedLayer) and layer.weights == "latent":
        weight = torch.where(weight < 0, -1.0, 1.0)
    return _numpy(weight.double())


def _rows(weight: np.ndarray, groups: int) -> np.ndarray:
    """[O, C/G, kh, kw] laid out for counting: a row over O/G outputs for each tap and each of C inputs."""
    out, channels, height, width = weight.shape
    grouped = weight.reshape(groups, out // groups, channels, height, width)
    return grouped.transpose(3, 4, 0, 2, 1).reshape(height * width * groups * channels, out // groups)


def _int32(x: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(x), -(2**31) + 1, 2**31 - 1).astype(np.int32)


def _multipliers(gain: np.ndarray) -> tuple[np.ndarray, int]:
    """Integers and the shift that goes with them: as fine as 32 bits allow."""
    largest = float(np.abs(gain).max(initial=0.0))
    shift = 0 if largest == 0 else max(0, min(40, 30 - math.ceil(math.log2(largest))))
    return _int32(gain * 2.0**shift), shift


def _both(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _window(layer: Any) -> dict[str, Any]:
    pairs = {"kernel": layer.kernel_size, "stride": layer.stride, "padding": layer.padding}
    return {key: _both(value) for key, value in pairs.items()}


def _adaptive_window(layer: nn.AdaptiveAvgPool2d, value: _Value, name: str) -> dict[str, Any]:
    wanted = layer.output_size if isinstance(layer.output_size, tuple) else (layer.output_size, layer.output_size)
    sides = [side if want is None else want for side, want in zip(value.shape[1:], wanted, strict=True)]
    if any(have % want for have, want in zip(value.shape[1:], sides, strict=True)):
        raise _unsupported(layer, name, f"from {value.shape[1:]} to {tuple(sides)}, which are no equal windows")
    kernel = (value.shape[1] // sides[0], value.shape[2] // sides[1])
    return {"kernel": kernel, "stride": kernel, "padding": (0, 0)}


def _same_divisor(pool: deployed.AveragePool, value: _Value) -> bool:
    """Whether every window of spikes is divided by the kernel's size."""
    _, rows, columns = pool.pooled(value.shape)
    within = all(
        (length - 1) * s + k <= side + 2 * p
        for side, length, k, s, p in zip(
            value.shape[1:], (rows, columns), pool.kernel, pool.stride, pool.padding, strict=True
        )
    )
    return within and (pool.count_padding or pool.padding == (0, 0))


def input_spec(
    kind: DataKind,
    shape: Sequence[int],
    divisor: float,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    highest: float | None,
    decode: dict[str, Any],
) -> InputSpec:
    """How inputs become integers.

    Args:
        kind: `"image"`, `"sound"` or `"event"`.
        shape: C, H, W.
        divisor: Of a raw value.
        mean: Per channel, after the division.
        std: Per channel, after the division.
        highest: Of raw values, after the division; None if unknown.
        decode: How a file becomes an array; see `InputSpec`.
    """
    largest = _UNKNOWN_INPUT
    if highest is not None:
        largest = max(max(m, highest - m) / s for m, s in zip(mean, std, strict=True))
    bits = max(0, min(15, math.floor(math.log2(32767 / largest))))
    gains = [2.0**bits / (divisor * s) for s in std]
    offsets = [-m / s * 2.0**bits for m, s in zip(mean, std, strict=True)]
    largest = max(max(abs(v) for v in gains + offsets), 2.0**-10)
    shift = max(0, min(40, 30 - math.ceil(math.log2(largest))))
    multiplier, offset = (tuple(_int32(np.array(v) * 2.0**shift).tolist()) for v in (gains, offsets))
    channels, height, width = shape
    return InputSpec(
        kind,
        (channels, height, width),
        bits,
        float(divisor),
        tuple(mean),
        tuple(std),
        multiplier,
        offset,
        shift,
        decode,
    )


def convert(net: nn.Module, spec: InputSpec, *, name: str, classes: Sequence[str] | None, time_steps: int) -> Artifact:
    """The deployed network of a trained one.

    Args:
        net: A network of our layers.
        spec: What it takes.
        name: What it is called.
        classes: A name for each output; numbers if None.
        time_steps: T.
    """
    thresholds = [module.threshold for module in net.modules() if isinstance(module, LIF)]
    largest = max(thresholds, default=1.0)
    fraction_bits = min(_FRACTION_BITS, math.floor(math.log2(LARGEST / largest)) - _HEADROOM_BITS)
    if fraction_bits < 8:
        raise UserError(f"export: a threshold is {largest}; expected at most {LARGEST >> (8 + _HEADROOM_BITS)}.")
    _check_finite(net)
    walk = _Walk(spec, fraction_bits)
    output = walk.finish(walk.walk(net, walk.start(), ""))
    if output.shape[1:] != (1, 1):
        raise UserError(f"export: the network yields shape {output.shape}; expected one number a class.")
    names = tuple(classes) if classes is not None else tuple(str(i) for i in range(output.shape[0]))
    if len(names) != output.shape[0]:
        raise UserError(f"export: received {len(names)} class names; the network has {output.shape[0]} outputs.")
    if output.index != len(walk.layers):
        raise UserError("export: the network's last layer changes nothing; expected its output there.")
    return Artifact(name, names, time_steps, fraction_bits, spec, tuple(walk.layers), output.unit)


def _check_finite(net: nn.Module) -> None:
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UserError(f"export: {name} holds NaN or infinite numbers; expected a network that was trained well.")


class Changes(NamedTuple):
    """What the conversion changed, on some samples."""

    samples: int
    spikes: dict[str, float]
    """Share of the neurons and time steps whose spike changed, by layer."""
    currents_cut: dict[str, float]
    """Share of the currents that were larger than the 16 bits that a synapse takes, by synapse that takes currents."""
    predictions: int
    """Samples whose class changed."""
    accuracy_before: float
    accuracy_after: float
    firing_rates: dict[str, float]
    """Of the deployed network."""


class Exported(NamedTuple):
    """A model file, what it changed (if there was data to see that), and the same network as a torch module."""

    path: str
    bytes: int
    changes: Changes | None
    module: Deployed


def export(
    net: nn.Module,
    path: str | os.PathLike[str],
    *,
    data: Dataset | None = None,
    input_shape: Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
    time_steps: int = 4,
    name: str | None = None,
    samples: int = 256,
) -> Exported:
    """Writes a trained network as a model file, which runs without torch.

    Args:
        net: A network of our layers; its statistics are taken as in evaluation.
        path: Where to write.
        data: What it was trained for: gives shape, classes and normalization, and samples to compare on.
        input_shape: Of one sample at one time step; by default that of `data`, else of the last input seen.
        classes: Names of the outputs; by default those of `data`, else numbers.
        time_steps: T, how often a still input is shown.
        name: What it is called; by default the name of `data`.
        samples: How many of `data` to compare on.

    Example:
        >>> net = bsnn.models.vgg((8, 8), in_channels=1)
        >>> logits, state = net(torch.zeros(2, 1, 8, 8), None)
        >>> exported = export(net, getfixture("tmp_path") / "model.bsnn")
        >>> bsnn.load(exported.path).predict(np.zeros((2, 1, 8, 8), np.float32)).shape
        (2,)
    """
    check_writable(Path(path))
    if data is not None:
        measures = data.scale, data.mean, data.std
        highest = 255 / data.scale if data.kind == "event" else 1.0
        spec = input_spec(data.kind, data.shape[-3:], *measures, highest=highest, decode=_decoding(data))
        classes, name = classes or data.classes, name or data.name
        time_steps = data.shape[0] if data.kind == "event" else time_steps
    else:
        shape = tuple(input_shape or getattr(net, "input_shape", None) or ())
        if not 1 <= len(shape) <= 3 or min(shape) < 1:
            raise UserError(
                f"export: received input_shape={input_shape}, and the last input that the network has seen is of shape "
                f"{getattr(net, 'input_shape', None)}; expected that of one sample, such as input_shape=(3, 32, 32)."
            )
        shape = shape + (1,) * (3 - len(shape))
        spec = input_spec("image", shape, 1.0, (0.0,) * shape[0], (1.0,) * shape[0], highest=None, decode={})
    made = convert(net, spec, name=name or "network", classes=classes, time_steps=time_steps)
    changes = None
    if data is not None:
        changes = compare(net, made, data, samples)
        rates = changes.firing_rates
        layers = (replace(x, firing_rate=rates[x.name]) if isinstance(x, deployed.Lif) else x for x in made.layers)
        made = replace(made, layers=tuple(layers))
    length = deployed.write(path, made)
    return Exported(os.fspath(path), length, changes, Deployed(made))


def _decoding(data: Dataset) -> dict[str, Any]:
    """What `InputSpec.decode` says of how a data set reads its files."""
    settings = getattr(getattr(data, "decode", None), "keywords", {})
    return {key: settings[key] for key in ("margin", "sensor", "presence", "turned") if settings.get(key) is not None}


@contextmanager
def _watching(net: nn.Module, names: Collection[str], watch: Callable[[str, Any, Any], None]) -> Iterator[None]:
    """Calls `watch(name, input, output)` after each of these layers; a module that is used twice has two names."""
    uses: dict[nn.Module, list[str]] = {}
    for name, module in net.named_modules(remove_duplicate=False):  # in the order in which they are computed
        if name in names:
            uses.setdefault(module, []).append(name)

    def hook(of: list[str]) -> Callable[[nn.Module, Any, Any], None]:
        turns = itertools.cycle(of)
        return lambda _module, inputs, output: watch(next(turns), inputs[0], output)

    handles = [module.register_forward_hook(hook(of)) for module, of in uses.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def compare(net: nn.Module, made: Artifact, data: Dataset, samples: int) -> Changes:
    """What the conversion changed on the first samples of a data set."""
    engine, device = Engine(made), next(net.parameters()).device
    names = [made.layers[i].name for i in made.lifs]
    synapses = [layer for layer in made.layers if isinstance(layer, deployed.Synapse)]
    limits = {
        layer.name: 32767 * 2.0 ** (layer.input_shift - made.fraction_bits)
        for layer in synapses
        if made.values[layer.inputs[0]].kind == "fixed"
    }
    changed, fired, chances = (dict.fromkeys(names, 0) for _ in range(3))
    spikes: dict[str, list[Tensor]] = {}
    cut, currents = Counter[str](), Counter[str]()

    def watch(name: str, entering: Any, leaving: Any) -> None:
        if name in changed:
            spikes.setdefault(name, []).append(leaving[0].spikes)
        elif name in limits:
            cut[name] += int((entering.abs() > limits[name]).sum())
            currents[name] += entering.numel()

    count = moved = right_before = right_after = 0
    with evaluating(net), _watching(net, {*names, *(layer.name for layer in synapses)}, watch):
        for inputs, labels in Loader(data, 32).ordered():
            if count >= samples:
                break
            spikes.clear()
            still = None if data.kind == "event" else made.time_steps
            before = predict(net, inputs.to(device), still).argmax(1).cpu().numpy()
            record: dict[str, np.ndarray] = {}
            after = engine.outputs(inputs.numpy(), record).argmax(1)
            for name, theirs in record.items():
                fired[name] += int(theirs.sum())
                chances[name] += theirs.size
                ours = torch.stack(spikes[name]).cpu().numpy().reshape(theirs.shape)
                changed[name] += int((ours != theirs).sum())
            count += len(labels)
            moved += int((before != after).sum())
            right_before += int((before == labels.numpy()).sum())
            right_after += int((after == labels.numpy()).sum())
    shares, rates = ({name: part[name] / chances[name] for name in names} for part in (changed, fired))
    beyond = {name: cut[name] / number for name, number in currents.items()}
    return Changes(count, shares, beyond, moved, right_before / count, right_after / count, rates)
