"""From a trained network to a deployed one: a walk over its layers.

BatchNorm and biases are folded into one multiplication and one addition per channel of the synapse before them. Pooled
spikes stay whole numbers; their division moves into the next multiplication. What is rounded: BatchNorm's numbers to F
bits after the point, and the real-valued weights, and what enters those, to 16 bits.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bsnn.deploy import schema
from bsnn.deploy._builder import Builder, Pending, Signal
from bsnn.deploy.quantize import fraction_bits
from bsnn.deploy.schema import LARGEST, Artifact, AveragePool, InputSpec, Lif, MaxPool
from bsnn.errors import UserError
from bsnn.kernels.torch_internals import named_layers
from bsnn.nn.bits import BinaryParameter, signs
from bsnn.nn.network import Concat, Residual, Sequential
from bsnn.nn.neuron import LIF
from bsnn.nn.synapse import TracedConv2d, TracedLayer, TracedLinear

_PASSING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_CONVOLUTIONS = (nn.Conv2d, TracedConv2d)
_PRODUCTS = (nn.Linear, TracedLinear)
_POOLS = (nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.MaxPool2d)


def lower(net: nn.Module, spec: InputSpec, *, name: str, classes: Sequence[str] | None, time_steps: int) -> Artifact:
    """The deployed network of a trained one.

    Args:
        net: A network of our layers.
        spec: What it takes.
        name: What it is called.
        classes: A name for each output; numbers if None.
        time_steps: T.
    """
    thresholds = [module.threshold for module in net.modules() if isinstance(module, LIF)]
    bits = fraction_bits(max(thresholds, default=1.0))
    _check_finite(net)
    builder = Builder(spec, bits)
    output = builder.settled(_Walk(builder).walk(net, builder.start, ""))
    if output.kind == "input":
        output = builder.to_fixed(output, "output")
    if output.shape[1:] != (1, 1):
        raise UserError(f"export: the network yields shape {output.shape}; expected one number per class.")
    names = tuple(classes) if classes is not None else tuple(str(i) for i in range(output.shape[0]))
    if len(names) != output.shape[0]:
        raise UserError(f"export: received {len(names)} class names; the network has {output.shape[0]} outputs.")
    if output.index != len(builder.layers):
        raise UserError("export: the network's last layer changes nothing; expected its output there.")
    return Artifact(name, names, time_steps, bits, spec, tuple(builder.layers), output.unit)


def _check_finite(net: nn.Module) -> None:
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UserError(f"export: {name} holds NaN or infinite numbers; expected a network that was trained well.")


class _Walk:
    """Adds the layers of a network to a builder."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def walk(self, layer: nn.Module, x: Signal | Pending, name: str) -> Signal | Pending:
        """What leaves a layer that `x` enters."""
        prefix = f"{name}." if name else ""
        if isinstance(layer, _PASSING):
            return x
        if isinstance(layer, Sequential | nn.Sequential):
            for child_name, child in named_layers(layer).items():
                x = self.walk(child, x, prefix + child_name)
            return x
        if isinstance(layer, _NORMS):
            return self._normalized(layer, x, name)
        entering = self.builder.settled(x)
        if isinstance(layer, Residual | Concat):
            branches = [self.walk(b, entering, prefix + n) for n, b in named_layers(layer).items()]
            return self._joined(layer, name, [self.builder.settled(branch) for branch in branches])
        if isinstance(layer, LIF):
            return self._neurons(layer, entering, name)
        if isinstance(layer, _CONVOLUTIONS):
            return self._convolution(layer, entering, name)
        if isinstance(layer, _PRODUCTS):
            return self._product(layer, entering, name)
        if isinstance(layer, nn.Flatten):
            if (layer.start_dim, layer.end_dim) != (1, -1):
                raise _unsupported(layer, name, "of some axes only")
            return replace(entering, flat=True)
        if isinstance(layer, _POOLS):
            return self._pool(layer, entering, name)
        raise _unsupported(layer, name)

    def _joined(self, layer: nn.Module, name: str, parts: list[Signal]) -> Signal:
        flat = any(part.flat for part in parts)
        if flat and len({part.shape for part in parts}) > 1:
            raise _unsupported(layer, name, "of branches that are flattened and others that are not")
        whole = all(part.kind in ("spikes", "counts") for part in parts) and len({part.unit for part in parts}) == 1
        if not whole:
            parts = [self.builder.to_fixed(part, name) for part in parts]
        inputs = tuple(part.index for part in parts)
        means, variances = [part.mean for part in parts], [part.variance for part in parts]
        if isinstance(layer, Residual):
            made = self.builder.add(schema.Add(name, inputs), parts[0].unit, sum(means), sum(variances))
        else:
            made = self.builder.add(schema.Concat(name, inputs), parts[0].unit, max(means), max(variances))
        return replace(made, flat=flat)

    def _normalized(self, norm: Any, x: Signal | Pending, name: str) -> Pending:
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
        steepest = LARGEST * self.builder.unit / mean.abs().clamp(min=1e-6)
        slope = (gamma / deviation).clamp(-steepest, steepest)
        scale, shift = _numpy(slope), _numpy(beta - mean * slope)
        if isinstance(x, Signal):
            if x.flat and x.shape[1:] != (1, 1):
                raise _unsupported(norm, name, "behind a Flatten; put it before")
            x = Pending.unscaled(name, x)
        spread = float(beta.abs().max()), float(gamma.square().max())
        return replace(x, scale=x.scale * scale, shift=x.shift * scale + shift, spread=spread)

    def _neurons(self, lif: LIF, x: Signal, name: str) -> Signal:
        current = self.builder.to_fixed(x, f"{name}.current")
        threshold = max(1, round(lif.threshold / self.builder.unit))
        spikes = self.builder.add(Lif(name, (current.index,), round(lif.leak * 65536), threshold), 1.0)
        return replace(spikes, flat=x.flat)

    def _convolution(self, layer: Any, x: Signal, name: str) -> Pending:
        if x.flat:
            raise _unsupported(layer, name, "behind a Flatten")
        if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
            raise _unsupported(layer, name, "with such padding; give it as numbers, filled with zeros")
        shared = layer if isinstance(layer, nn.Conv2d) else layer.convolution
        geometry = {key: getattr(shared, key) for key in ("stride", "padding", "dilation", "groups")}
        return _synapse(layer, x, name, _weights(layer), geometry)

    def _product(self, layer: Any, x: Signal, name: str) -> Pending:
        if not x.flat and x.shape[1:] != (1, 1):
            raise _unsupported(layer, name, f"on inputs of shape {x.shape}; put a Flatten before it")
        weight = _weights(layer)
        if weight.shape[1] != math.prod(x.shape):
            raise UserError(
                f"export: layer {name} takes {weight.shape[1]} features and is given {math.prod(x.shape)} {x.shape}; "
                "expected the input_shape that the network was built for."
            )
        geometry = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
        return _synapse(layer, x, name, weight.reshape(len(weight), *x.shape), geometry)

    def _pool(self, layer: Any, x: Signal, name: str) -> Signal:
        if x.flat:
            raise _unsupported(layer, name, "behind a Flatten")
        if x.kind == "input":
            x = self.builder.to_fixed(x, f"{name}.input")
        if isinstance(layer, nn.MaxPool2d):
            if _both(layer.dilation) != (1, 1) or layer.return_indices:
                raise _unsupported(layer, name, "with dilation or indices")
            largest = MaxPool(name, (x.index,), **_window(layer), ceil=layer.ceil_mode)
            return self.builder.add(largest, x.unit, x.mean, x.variance)
        pool = _average_pool(layer, x, name)
        if x.kind != "fixed" and _same_divisor(pool, x):
            return self.builder.add(pool, x.unit / (pool.kernel[0] * pool.kernel[1]))
        # Windows at the border divide by another number, so the division cannot wait.
        fixed = self.builder.to_fixed(x, f"{name}.input")
        return self.builder.add(replace(pool, inputs=(fixed.index,)), fixed.unit, fixed.mean, fixed.variance)


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


def _synapse(layer: Any, x: Signal, name: str, weight: np.ndarray, geometry: dict[str, Any]) -> Pending:
    bias = getattr(layer, "bias", None)
    shift = np.zeros(len(weight)) if bias is None else _numpy(bias.detach().double())
    binary = isinstance(layer, TracedLayer) and layer.weights != "real"
    geometry = {**geometry, "out": len(weight), "kernel": weight.shape[2:]}
    return Pending(name, x, weight, binary, geometry, np.ones(len(weight)), shift)


def _both(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _window(layer: Any) -> dict[str, Any]:
    pairs = {"kernel": layer.kernel_size, "stride": layer.stride, "padding": layer.padding}
    return {key: _both(value) for key, value in pairs.items()}


def _average_pool(layer: Any, x: Signal, name: str) -> AveragePool:
    if isinstance(layer, nn.AdaptiveAvgPool2d):
        window = _adaptive_window(layer, x, name)
        return AveragePool(name, (x.index,), **window, ceil=False, count_padding=True)
    if layer.divisor_override:
        raise _unsupported(layer, name, "with divisor_override")
    window = _window(layer)
    return AveragePool(name, (x.index,), **window, ceil=layer.ceil_mode, count_padding=layer.count_include_pad)


def _adaptive_window(layer: nn.AdaptiveAvgPool2d, x: Signal, name: str) -> dict[str, Any]:
    wanted = layer.output_size if isinstance(layer.output_size, tuple) else (layer.output_size, layer.output_size)
    sides = [side if want is None else want for side, want in zip(x.shape[1:], wanted, strict=True)]
    if any(have % want for have, want in zip(x.shape[1:], sides, strict=True)):
        raise _unsupported(layer, name, f"from {x.shape[1:]} to {tuple(sides)}, which are no equal windows")
    kernel = (x.shape[1] // sides[0], x.shape[2] // sides[1])
    return {"kernel": kernel, "stride": kernel, "padding": (0, 0)}


def _same_divisor(pool: AveragePool, x: Signal) -> bool:
    """Whether every window of spikes is divided by the kernel's size."""
    _, rows, columns = pool.pooled(x.shape)
    within = all(
        (length - 1) * s + k <= side + 2 * p
        for side, length, k, s, p in zip(
            x.shape[1:], (rows, columns), pool.kernel, pool.stride, pool.padding, strict=True
        )
    )
    return within and (pool.count_padding or pool.padding == (0, 0))
