"""The deployed network as a torch module: the same integers, in torch's own operations, to check an export against.

Integers are held in int64 tensors. Convolutions run in floating point, which is exact in any order: in single precision
for sums below 2^24, in double precision below 2^31.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bsnn.deploy.schema import LARGEST, Add, Artifact, AveragePool, Concat, Layer, Lif, MaxPool, Scale, Synapse
from bsnn.nn.neuron import LIFState, Stateful
from bsnn.nn.trace import Activity


class _Neurons(Stateful):
    """One layer of neurons, so that `counting_spikes` and hooks find it by its name."""

    def __init__(self, layer: Lif) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, current: Tensor, state: LIFState | None) -> tuple[Activity, LIFState]:
        membrane = torch.zeros_like(current) if state is None else state.membrane
        potential = _saturate(_round_shift(membrane * self.layer.leak, 16) + current)
        spikes = (potential >= self.layer.threshold).long()
        return Activity(spikes, None), LIFState(potential - self.layer.threshold * spikes, None)


class Deployed(Stateful):
    """A deployed network in torch: `outputs, state = module(integers, state)`.

    It takes the network's own integers `[B, C, H, W]`; `integers` makes them from normalized real numbers.

    Args:
        artifact: The network.
    """

    def __init__(self, artifact: Artifact) -> None:
        super().__init__()
        self.artifact = artifact
        for i, layer in enumerate(artifact.layers):
            if isinstance(layer, Lif):
                self.add_module(_key(i), _Neurons(layer))
            if isinstance(layer, Synapse):
                small = layer.largest_sum(artifact.values[layer.inputs[0]]) < 2**24
                weight = layer.dense().astype(np.float32 if small else np.float64)
                self.register_buffer(f"{_key(i)}_weight", torch.from_numpy(weight))
            if isinstance(layer, Synapse | Scale):
                for name in ("multiplier", "offset"):
                    values = torch.from_numpy(getattr(layer, name).astype(np.int64))
                    self.register_buffer(f"{_key(i)}_{name}", values.view(-1, 1, 1))

    def integers(self, normalized: Tensor) -> Tensor:
        """The network's input from normalized real numbers."""
        scaled = torch.round(normalized.float() * 2.0**self.artifact.input.fraction_bits)
        return scaled.clamp(-32768, 32767).long()

    def forward(self, x: Tensor, state: tuple[Any, ...] | None) -> tuple[Tensor, tuple[Any, ...]]:
        """Outputs `[B, classes]` of one time step, int64, and the new state."""
        values, states = [x.long().view(len(x), *self.artifact.input.shape)], []
        past = iter(state if state is not None else ())
        for i, layer in enumerate(self.artifact.layers):
            inputs = [values[k] for k in layer.inputs]
            if isinstance(layer, Lif):
                activity, now = self.get_submodule(_key(i))(inputs[0], next(past, None))
                states.append(now)
                values.append(activity.spikes)
            else:
                values.append(self._apply_layer(i, layer, inputs))
        return values[-1].flatten(1), tuple(states)

    def _apply_layer(self, i: int, layer: Layer, inputs: list[Tensor]) -> Tensor:
        x, fixed = inputs[0], self.artifact.values[layer.inputs[0]].kind == "fixed"
        if isinstance(layer, Synapse):
            x = _round_shift(x, layer.input_shift).clamp(-32768, 32767)
            weight = self.get_buffer(f"{_key(i)}_weight")
            sums = F.conv2d(x.to(weight.dtype), weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
            return self._scaled(i, layer.shift, sums.long())
        if isinstance(layer, Scale):
            return self._scaled(i, layer.shift, x)
        if isinstance(layer, Add):
            return _saturate(inputs[0] + inputs[1]) if fixed else inputs[0] + inputs[1]
        if isinstance(layer, Concat):
            return torch.cat(inputs, dim=1)
        if isinstance(layer, MaxPool):
            pooled = F.max_pool2d(x.double(), layer.kernel, layer.stride, layer.padding, 1, layer.ceil)
            return pooled.long()
        assert isinstance(layer, AveragePool)
        sums = F.avg_pool2d(
            x.double(), layer.kernel, layer.stride, layer.padding, layer.ceil, divisor_override=1
        ).long()
        if not fixed:
            return sums
        # torch's own average of ones tells how many places each window has: 1 / n of a single one would do as well.
        area = layer.kernel[0] * layer.kernel[1]
        ones = torch.ones(1, 1, *x.shape[2:], dtype=torch.float64, device=x.device)
        inside = F.avg_pool2d(ones, layer.kernel, layer.stride, layer.padding, layer.ceil, divisor_override=1)
        share = F.avg_pool2d(ones, layer.kernel, layer.stride, layer.padding, layer.ceil, layer.count_padding)
        places = torch.round(inside / share).long().clamp(1, area)
        return torch.div(2 * sums + places, 2 * places, rounding_mode="floor")

    def _scaled(self, i: int, shift: int, x: Tensor) -> Tensor:
        product = x * self.get_buffer(f"{_key(i)}_multiplier")
        return _saturate(_round_shift(product, shift) + self.get_buffer(f"{_key(i)}_offset"))


def _key(i: int) -> str:
    return f"layer{i}"


def _saturate(x: Tensor) -> Tensor:
    return x.clamp(-LARGEST, LARGEST)


def _round_shift(x: Tensor, shift: int) -> Tensor:
    return (x + ((1 << shift) >> 1)) >> shift
