"""From a trained network to a deployed one: a walk over its layers.

BatchNorm and biases are folded into one multiplication and one addition per channel of the synapse before them. Pooled
spikes stay whole numbers; their division moves into the next multiplication. What is rounded: BatchNorm's numbers to F
bits after the point, and the real-valued weights, and what enters those, to 16 bits.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bsnn.deploy import schema
from bsnn.deploy._builder import Builder, Pending, Signal
from bsnn.deploy._pooling import lower_pool
from bsnn.deploy.quantize import fraction_bits
from bsnn.deploy.recognition import Node, recognize, unsupported
from bsnn.deploy.schema import LARGEST, Artifact, InputSpec, Lif
from bsnn.errors import UserError
from bsnn.nn.bits import BinaryParameter, signs
from bsnn.nn.equivalence import TOLERATED, double_copy, outputs, random_currents, share_differing
from bsnn.nn.network import Concat, ImageNetwork, Residual, Sequential
from bsnn.nn.neuron import LIF
from bsnn.nn.norm import BatchNorm1d, BatchNorm2d
from bsnn.nn.synapse import BinaryConv2d, BinaryLinear, TracedConv2d, TracedLayer, TracedLinear

_SAMPLES = 4


class Lowered(NamedTuple):
    """A deployed network, and where its neurons and synapses come from."""

    artifact: Artifact
    modules: dict[str, nn.Module]
    """What the trained network runs for them, by the name of the deployed layer, in the order of the computation."""


def lower(
    net: nn.Module,
    spec: InputSpec,
    *,
    name: str,
    classes: Sequence[str] | None,
    time_steps: int,
    features: bool = False,
) -> Lowered:
    """The deployed network of a trained one.

    Args:
        net: A network of our layers.
        spec: What it takes.
        name: What it is called.
        classes: A name for each output; numbers if None.
        time_steps: T.
        features: Whether the network takes features without height and width, `[B, C]`.
    """
    tree = recognize(net, _LOWERED.keys())
    _check_finite(net)
    builder = Builder(spec, fraction_bits(max(_thresholds(tree), default=1.0)), flat=features)
    walk = _Walk(builder)
    output = builder.settled(walk(tree, builder.start))
    if output.kind == "input":
        output = builder.to_fixed(output, "output")
    if output.shape[1:] != (1, 1):
        raise UserError(f"export: the network yields shape {output.shape}; expected one number per class.")
    names = tuple(classes) if classes is not None else tuple(str(i) for i in range(output.shape[0]))
    if len(names) != output.shape[0]:
        raise UserError(f"export: received {len(names)} class names; the network has {output.shape[0]} outputs.")
    if output.index != len(builder.layers):
        raise UserError("export: the network's last layer changes nothing; expected its output there.")
    artifact = Artifact(name, names, time_steps, builder.fraction_bits, spec, tuple(builder.layers), output.unit)
    return Lowered(artifact, walk.modules)


def _check_finite(net: nn.Module) -> None:
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise UserError(f"export: {name} holds NaN or infinite numbers; expected a network that was trained well.")


def _thresholds(node: Node) -> list[float]:
    return [_number(part, "threshold") for part in node.walk() if part.known is LIF]


def _number(node: Node, attribute: str) -> float:
    """A number of a layer of neurons."""
    value = getattr(node.module, attribute)
    if isinstance(value, Tensor) and value.numel() != 1:
        raise UserError(
            f"export: layer {node.name} has a {attribute} of shape {tuple(value.shape)}; a deployed layer of neurons "
            "has one for all."
        )
    return float(value)


class _Walk:
    """Adds the layers of a network to a builder; called with a node and what enters it, returns what leaves it."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.modules: dict[str, nn.Module] = {}

    def __call__(self, node: Node, x: Signal | Pending) -> Signal | Pending:
        if node.runs is not node.module:
            x = self.builder.settled(x)
            _check_equal(node, x)
        return _LOWERED[node.known](self, node, x)

    def passed(self, node: Node, x: Signal | Pending) -> Signal | Pending:
        """Nothing happens in evaluation."""
        return x

    def sequence(self, node: Node, x: Signal | Pending) -> Signal | Pending:
        """One layer after another."""
        for child in node.children:
            x = self(child, x)
        return x

    def branches(self, node: Node, x: Signal | Pending) -> Signal:
        """Layers side by side, added or joined."""
        entering = self.builder.settled(x)
        parts = [self.builder.settled(self(child, entering)) for child in node.children]
        if len({part.flat for part in parts}) > 1:
            raise unsupported(node.module, node.name, "of branches that are flattened and others that are not")
        whole = all(part.kind in ("spikes", "counts") for part in parts) and len({part.unit for part in parts}) == 1
        if not whole:
            parts = [self.builder.to_fixed(part, node.name) for part in parts]
        inputs = tuple(part.index for part in parts)
        means, variances = [part.mean for part in parts], [part.variance for part in parts]
        if node.known is Residual:
            made = self.builder.add(schema.Add(node.name, inputs), parts[0].unit, sum(means), sum(variances))
        else:
            made = self.builder.add(schema.Concat(node.name, inputs), parts[0].unit, max(means), max(variances))
        return replace(made, flat=parts[0].flat)

    def norm(self, node: Node, x: Signal | Pending) -> Pending:
        """BatchNorm with its running statistics, folded into what is pending."""
        norm: Any = node.module
        if norm.running_mean is None:
            raise UserError(
                f"export: layer {node.name} keeps no running statistics; expected a BatchNorm with "
                "track_running_stats=True."
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
                raise unsupported(norm, node.name, "behind a Flatten; put it before")
            x = Pending.unscaled(node.name, x)
        spread = float(beta.abs().max()), float(gamma.square().max())
        return replace(x, scale=x.scale * scale, shift=x.shift * scale + shift, spread=spread)

    def neurons(self, node: Node, x: Signal | Pending) -> Signal:
        """Leak, threshold, soft reset."""
        entering = self.builder.settled(x)
        current = self.builder.to_fixed(entering, f"{node.name}.current")
        leak, threshold = (_number(node, attribute) for attribute in ("leak", "threshold"))
        numbers = round(leak * 65536), max(1, round(threshold / self.builder.unit))
        self.modules[node.name] = node.runs
        spikes = self.builder.add(Lif(node.name, (current.index,), *numbers), 1.0)
        return replace(spikes, flat=entering.flat)

    def convolution(self, node: Node, x: Signal | Pending) -> Pending:
        """A convolution with real or one-bit weights."""
        layer, entering = node.module, self.builder.settled(x)
        if entering.flat:
            raise unsupported(layer, node.name, "behind a Flatten")
        if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
            raise unsupported(layer, node.name, "with such padding; give it as numbers, filled with zeros")
        shared: Any = layer if isinstance(layer, nn.Conv2d) else layer.convolution
        geometry = {key: getattr(shared, key) for key in ("stride", "padding", "dilation", "groups")}
        return self._synapse(node, entering, _weights(node), geometry)

    def product(self, node: Node, x: Signal | Pending) -> Pending:
        """A matrix product with real or one-bit weights."""
        entering = self.builder.settled(x)
        if not entering.flat:
            raise unsupported(node.module, node.name, f"on inputs of shape {entering.shape}; put a Flatten before it")
        weight = _weights(node)
        if weight.shape[1] != math.prod(entering.shape):
            raise UserError(
                f"export: layer {node.name} takes {weight.shape[1]} features and is given {math.prod(entering.shape)} "
                f"{entering.shape}; expected the input_shape that the network was built for."
            )
        geometry = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
        return self._synapse(node, entering, weight.reshape(len(weight), *entering.shape), geometry)

    def _synapse(self, node: Node, x: Signal, weight: np.ndarray, geometry: dict[str, Any]) -> Pending:
        layer: Any = node.module
        bias = getattr(layer, "bias", None)
        shift = np.zeros(len(weight)) if bias is None else _numpy(bias.detach().double())
        binary = isinstance(layer, TracedLayer) and layer.weights != "real"
        self.modules[node.name] = node.runs
        geometry = {**geometry, "out": len(weight), "kernel": weight.shape[2:]}
        return Pending(node.name, x, weight, binary, geometry, np.ones(len(weight)), shift)

    def flatten(self, node: Node, x: Signal | Pending) -> Signal:
        """Of all axes but the batch."""
        layer: Any = node.module
        if (layer.start_dim, layer.end_dim) != (1, -1):
            raise unsupported(layer, node.name, "of some axes only")
        return replace(self.builder.settled(x), flat=True)

    def pool(self, node: Node, x: Signal | Pending) -> Signal:
        """Average and maximum pooling."""
        return lower_pool(self.builder, node, self.builder.settled(x))


_LOWERED: dict[type[nn.Module], Callable[[_Walk, Node, Signal | Pending], Signal | Pending]] = {
    **dict.fromkeys((nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d), _Walk.passed),
    **dict.fromkeys((nn.Sequential, Sequential, ImageNetwork), _Walk.sequence),
    **dict.fromkeys((Residual, Concat), _Walk.branches),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, BatchNorm1d, BatchNorm2d), _Walk.norm),
    **dict.fromkeys((nn.Conv2d, TracedConv2d, BinaryConv2d), _Walk.convolution),
    **dict.fromkeys((nn.Linear, TracedLinear, BinaryLinear), _Walk.product),
    **dict.fromkeys((nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.MaxPool2d), _Walk.pool),
    nn.Flatten: _Walk.flatten,
    LIF: _Walk.neurons,
}
"""How each known class is lowered. Look-ups are by exact class: see `recognition`."""


def _check_equal(node: Node, x: Signal) -> None:
    """Refuses a layer that does not compute what its `lowered_as` returns."""
    layer = double_copy(node.runs).to("cpu")
    size = (math.prod(x.shape),) if x.flat else x.shape
    sequence = random_currents(_SAMPLES, *size, scale=max(_thresholds(node), default=1.0))
    if x.kind in ("spikes", "counts"):
        sequence = (sequence.abs() * x.high).floor().clamp(max=x.high) * x.unit
    try:
        with torch.no_grad():
            lowered = layer.lowered_as()  # pyright: ignore[reportCallIssue]
        share = share_differing(outputs(layer, sequence), outputs(lowered, sequence))
    except (RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"export: layer {node.name or 'the network'} ({type(node.runs).__name__}) or what its lowered_as returns "
            f"does not run on inputs of shape {tuple(sequence.shape[1:])} ({type(error).__name__}: {error})."
        ) from error
    if share > TOLERATED:
        raise UserError(
            f"export: layer {node.name or 'the network'} ({type(node.runs).__name__}) differs from what its "
            f"lowered_as returns in {share:.2%} of the values on random input; expected an equivalent module."
        )


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _weights(node: Node) -> np.ndarray:
    """Real weights, or ±1 of binary and latent ones, in double precision."""
    layer: Any = node.module
    if not isinstance(layer.weight, nn.Parameter):
        raise UserError(
            f"export: the weight of layer {node.name} is computed from other tensors (pruning, weight_norm); make it "
            "an ordinary parameter first, with torch.nn.utils.prune.remove or remove_weight_norm."
        )
    weight = signs(layer.weight) if isinstance(layer.weight, BinaryParameter) else layer.weight.detach()
    if isinstance(layer, TracedLayer) and layer.weights == "latent":
        weight = torch.where(weight < 0, -1.0, 1.0)
    return _numpy(weight.double())
