"""BatchNorm → LIF → pooling as one step with its own backward, which keeps next to nothing (Section 3.2, Eq. 2 and 3).

    u[t] = λ (u[t−1] − V_th s[t−1]) + BN(I[t])        s[t] = H(u[t] − V_th)        â[t] = μ[t] â[t−1] + s[t]

What backward needs is what lives across time steps anyway: the membrane after its reset, from which u is found again
with the spikes as bits, and the current that the synapse made. Everything else is recomputed.

Legend: u membrane, s spikes, â trace, I current, λ leak, μ trace factor, V_th threshold.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bsnn.kernels import operations
from bsnn.kernels._chunked import ChunkedNeurons
from bsnn.kernels._whole import WholeNeurons
from bsnn.kernels.images import channels_last
from bsnn.kernels.memory import give_back_free_memory
from bsnn.kernels.operations import Neuron, NeuronKernel, Norm, Saved
from bsnn.kernels.pieces import is_whole

# Bytes of a tensor from which on giving memory back is worth its time.
_LARGE = 1 << 24


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
        kernel = operations.neurons(current, neuron, pooled)
        if kernel is None:
            kernel = (WholeNeurons if is_whole(current) else ChunkedNeurons)(neuron, pooled)
        spikes, sent_trace, saved = kernel.forward(current, membrane, trace, norm, learning=learning, spare=spare)
    if learning:
        weight, bias = (None, None) if norm is None else (norm.weight, norm.bias)
        rest = saved._replace(current=None)
        spikes: Any = _Backward.apply(current, weight, bias, spikes, saved.current, membrane, (kernel, rest))
    return spikes, sent_trace


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
        rest: tuple[NeuronKernel, Saved],
    ) -> Tensor:
        ctx.save_for_backward(kept, membrane, weight)
        ctx.rest = rest
        return spikes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        current, membrane, weight = ctx.saved_tensors
        # Hooks on saved tensors may have changed their memory order.
        membrane, current = channels_last(membrane), None if current is None else channels_last(current)
        if membrane.nbytes >= _LARGE and membrane.device.type == "cpu":
            # Here memory is at its peak, and what later layers have freed is in pieces too small for this one.
            give_back_free_memory()
        kernel, saved = ctx.rest
        grad = channels_last(grad_outputs[0])
        return *kernel.backward(grad, membrane, weight, saved._replace(current=current)), *[None] * 4
