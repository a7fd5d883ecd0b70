"""A time step of a layer of neurons in torch on a GPU: whole tensors, in as few operations as torch has.

It is also the plain reference of the Triton kernels: the same roundings, one obvious line after another.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from bsnn.kernels.operations import Neuron, Norm, Saved


class WholeNeurons:
    """See `operations.NeuronKernel`.

    Args:
        neuron: What each neuron does.
        pooled: Whether means of two by two pixels are sent on.
    """

    def __init__(self, neuron: Neuron, pooled: bool) -> None:
        self._neuron = neuron
        self._pooled = pooled
        # Then the product with the leak is exact, and may be rounded together with a sum.
        self._halves = math.frexp(neuron.leak)[0] == 0.5

    def forward(
        self, current: Tensor, membrane: Tensor, trace: Tensor | None, norm: Norm | None, *, learning: bool, spare: bool
    ) -> tuple[Tensor, Tensor | None, Saved]:
        """See `operations.NeuronKernel`."""
        neuron, normal, mean, deviation = self._neuron, current, None, None
        if norm is not None:
            normal, mean, deviation = norm.normalize(current, False)
        before = membrane.clone() if trace is not None and neuron.needs_membrane else membrane
        if self._halves:
            torch.add(normal, membrane, alpha=neuron.leak, out=membrane)
        else:
            membrane.mul_(neuron.leak).add_(normal)
        spikes = torch.ge(membrane, neuron.threshold, out=torch.empty_like(current))
        silent = membrane < neuron.threshold
        membrane.sub_(spikes, alpha=neuron.threshold)
        if trace is not None and neuron.trace == "leaky" and self._halves:
            torch.add(spikes, trace, alpha=neuron.leak, out=trace)
        elif trace is not None:
            trace.copy_(neuron.update_trace(trace, spikes, membrane, before, neuron.leak))
        sent, sent_trace = spikes, trace
        if self._pooled:
            sent, sent_trace = F.avg_pool2d(spikes, 2), None if trace is None else F.avg_pool2d(trace, 2)
        return sent, sent_trace, Saved(current if norm is not None and learning else None, [silent], mean, deviation)

    def backward(
        self, sent: Tensor, membrane: Tensor, weight: Tensor | None, saved: Saved
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """See `operations.NeuronKernel`."""
        neuron = self._neuron
        # u − V_th: the reset has taken V_th off already where the neuron fired.
        distance = torch.add(membrane, saved.bits[0], alpha=-neuron.threshold)
        if neuron.surrogate == "sigmoid":  # α σ(αx) (1 − σ(αx)) = α/4 (1 − tanh²(αx/2))
            tanh = distance.mul_(neuron.parameter / 2).tanh_()
            gradient = torch.ops.aten.tanh_backward(self._spread(sent, neuron.parameter / 4), tanh)
        else:
            gradient = neuron.derivative(distance) * self._spread(sent, 1.0)
        if saved.current is None:
            return gradient, None, None
        assert weight is not None
        statistics = None, None, saved.mean, saved.deviation, True, 0.0
        return torch.ops.aten.native_batch_norm_backward(gradient, saved.current, weight, *statistics, [True] * 3)

    def _spread(self, sent: Tensor, factor: float) -> Tensor:
        """The gradient of what was sent on, times a factor, at each neuron."""
        if self._pooled:
            return F.interpolate(sent * (factor / 4), scale_factor=2)
        return sent if factor == 1 else sent * factor
