"""BatchNorm → LIF → pooling as one step with its own backward, which keeps next to nothing (Section 3.2, Eq. 2 and 3).

    u[t] = λ (u[t−1] − V_th s[t−1]) + BN(I[t])        s[t] = H(u[t] − V_th)        â[t] = μ[t] â[t−1] + s[t]

What backward needs is what lives across time steps anyway: the membrane after its reset, from which u is found again
with the spikes as bits, and the current that the synapse made. Everything else is recomputed.

Legend: u membrane, s spikes, â trace, I current, λ leak, μ trace factor, V_th threshold.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bsnn.kernels import operations
from bsnn.kernels._chunked import ChunkedNeurons
from bsnn.kernels.images import channels_last
from bsnn.kernels.memory import give_back_free_memory
from bsnn.kernels.operations import Neuron, NeuronKernel
from bsnn.kernels.torch_internals import is_view

# Bytes of a tensor from which on giving memory back is worth its time.
_LARGE = 1 << 24


class Norm(NamedTuple):
    """BatchNorm before the neurons."""

    weight: Tensor
    bias: Tensor
    normalize: Callable[[Tensor, bool], tuple[Tensor, Tensor | None, Tensor | None]]
    """BN(I), mean and 1/σ of a batch from I, which it may write over if told so; without the two in evaluation."""


def step(
    current: Tensor,
    membrane: Tensor,
    trace: Tensor | None,
    neuron: Neuron,
    norm: Norm | None,
    *,
    pooled: bool,
    spare: bool,
) -> tuple[Tensor, Tensor | None]:
    """One time step: the same values as the modules one after another. Tensors have their channels last.

    Args:
        current: What enters.
        membrane: Of the neurons; moved on in place.
        trace: Of their spikes, if there is one; moved on in place.
        neuron: What each of them does.
        norm: BatchNorm before them.
        pooled: Whether means of two by two pixels are sent on.
        spare: Whether nobody else sees the current, so that it may be written over.

    Returns:
        The spikes and the trace that are sent on.
    """
    learning = torch.is_grad_enabled()
    with torch.no_grad():
        kernel = operations.neurons(current, neuron, pooled) or ChunkedNeurons(neuron, pooled)
        normal, mean, deviation, kept = current, None, None, None
        spare = spare and kernel.overwrites and not is_view(current)
        if norm is not None and learning:
            kept = kernel.keep(current.detach() if kernel.overwrites else current)
            spare = spare and kept.dtype != current.dtype
        if norm is not None:
            normal, mean, deviation = norm.normalize(current, spare)
        elif kernel.overwrites:
            normal = current.clone()
        spikes, sent_trace, bits = kernel.fire(normal, membrane, trace)
        del normal
    if learning:
        weight, bias = (None, None) if norm is None else (norm.weight, norm.bias)
        saved = _Saved(kernel, bits, mean, deviation)
        spikes: Any = _Backward.apply(current, weight, bias, spikes, kept, membrane, saved)
    return spikes, sent_trace


class _Saved(NamedTuple):
    """What backward needs beside the current and the membrane."""

    kernel: NeuronKernel
    bits: Sequence[Tensor]
    mean: Tensor | None
    deviation: Tensor | None
    """1/σ, as BatchNorm keeps it."""


class _Backward(torch.autograd.Function):
    """Hands the spikes of a step on; what flows back goes through surrogate and BatchNorm to the current."""

    @staticmethod
    def forward(
        ctx: Any,
        current: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        spikes: Tensor,
        kept: Tensor | None,
        membrane: Tensor,
        saved: _Saved,
    ) -> Tensor:
        ctx.save_for_backward(kept, membrane, weight)
        ctx.saved = saved
        return spikes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        current, membrane, weight = ctx.saved_tensors
        # Hooks on saved tensors may have changed their memory order.
        membrane, current = channels_last(membrane), None if current is None else channels_last(current)
        saved: _Saved = ctx.saved
        if membrane.nbytes >= _LARGE and membrane.device.type == "cpu":
            # Here memory is at its peak, and what later layers have freed is in pieces too small for this one.
            give_back_free_memory()
        grad = channels_last(grad_outputs[0])
        gradient, sums, products = saved.kernel.through(grad, membrane, saved.bits, current, saved.mean)
        if current is None:
            return gradient, *[None] * 6
        assert saved.deviation is not None
        grad_weight = products * saved.deviation
        _through_norm_(saved, gradient, current, weight, grad_weight, sums)
        return gradient, grad_weight.to(weight.dtype), sums.to(weight.dtype), *[None] * 4


def _through_norm_(
    saved: _Saved, gradient: Tensor, current: Tensor, weight: Tensor, grad_weight: Tensor, grad_bias: Tensor
) -> None:
    """Replaces ∂L/∂BN(I) by ∂L/∂I."""
    assert saved.mean is not None
    assert saved.deviation is not None
    count = gradient.numel() // len(saved.mean)
    scale = weight * saved.deviation
    slope = (scale * saved.deviation * grad_weight / -count).to(scale.dtype)
    shift = (scale * grad_bias / -count - slope * saved.mean).to(scale.dtype)
    saved.kernel.through_norm_(gradient, current, scale, slope, shift)
