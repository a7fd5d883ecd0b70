"""A layer of neurons on a GPU, both ways: which kernels run, on which tensors."""

import torch
from torch import Tensor

from bsnn.kernels.images import halved_images
from bsnn.kernels.operations import Neuron, Norm, Saved
from bsnn.kernels.triton._fire import TRACES, fire
from bsnn.kernels.triton._moments import moments
from bsnn.kernels.triton._through import SURROGATES, through, through_norm


class Neurons:
    """See `operations.NeuronKernel`.

    Args:
        neuron: What each neuron does.
        pooled: Whether means of two by two pixels are sent on.
    """

    def __init__(self, neuron: Neuron, pooled: bool) -> None:
        assert neuron.surrogate is not None
        assert neuron.trace is not None
        self._neuron = neuron
        self._pooled = pooled
        self._surrogate = SURROGATES.index(neuron.surrogate)
        self._kind = TRACES.index(neuron.trace)

    def forward(
        self, current: Tensor, membrane: Tensor, trace: Tensor | None, norm: Norm | None, *, learning: bool, spare: bool
    ) -> tuple[Tensor, Tensor | None, Saved]:
        """See `operations.NeuronKernel`."""
        neuron, current = self._neuron, current.detach()
        mean = deviation = scale = shift = None
        if norm is not None and norm.running is not None:
            made = torch.empty(4, current.shape[1], device=current.device)
            rate = -1.0 if norm.rate is None else norm.rate
            moments(current, norm.weight.detach(), norm.bias.detach(), *norm.running, made, rate, norm.eps)
            mean, deviation, scale, shift = made
        elif norm is not None:
            scale, shift = norm.folded()
        sent = halved_images(current) if self._pooled else torch.empty_like(current)
        sent_trace = None if trace is None else torch.empty_like(sent) if self._pooled else trace
        channels = current.shape[1]
        rows = current.numel() // max(1, channels)
        bits = current.new_empty(rows, -(-channels // 8), dtype=torch.uint8)
        counting = self._kind if trace is not None else 0
        ratios = torch.zeros(2, dtype=torch.int64, device=current.device) if counting > 1 else None
        pooled_trace = sent_trace if self._pooled else None
        fire(
            current, scale, shift, membrane, trace, sent, pooled_trace, bits, ratios, neuron.leak, neuron.threshold,
            counting,
        )  # fmt: skip
        if ratios is not None and neuron.count_ratios is not None:
            neuron.count_ratios(*ratios)
        kept = current if norm is not None and learning else None
        return sent, sent_trace, Saved(kept, [bits], mean, deviation)

    def backward(
        self, sent: Tensor, membrane: Tensor, weight: Tensor | None, saved: Saved
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """See `operations.NeuronKernel`."""
        neuron, current, (bits,) = self._neuron, saved.current, saved.bits
        gradient, made = torch.empty_like(membrane), None
        if current is not None:
            made = torch.empty(5, membrane.shape[1], device=membrane.device)
        through(
            sent, membrane, bits, current, saved.mean, saved.deviation, weight, gradient, made, neuron.threshold,
            neuron.parameter, self._surrogate,
        )  # fmt: skip
        if current is None or made is None:
            return gradient, None, None
        through_norm(gradient, current, made)
        return gradient, made[0], made[1]


def neurons(x: Tensor, neuron: Neuron, pooled: bool) -> Neurons | None:
    """See `operations.neurons`."""
    known = neuron.surrogate in SURROGATES and neuron.trace in TRACES
    odd = pooled and (x.shape[2] % 2 or x.shape[3] % 2)
    return Neurons(neuron, pooled) if known and not odd else None
