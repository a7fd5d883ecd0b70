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
from bsnn.kernels.memory import make_room
from bsnn.kernels.operations import Neuron, NeuronKernel, Norm, Saved
from bsnn.kernels.pieces import is_whole
from bsnn.kernels.traced import TracedNeurons


def step(
    current: Tensor,
    membrane: Tensor,
    trace: Tensor | None,
    neuron: Neuron,
    norm: Norm | None,
    *,
    pooled: bool,
    spare: bool,
) -> tuple[Tensor, Tensor | None, tuple[Tensor, Tensor | None]]:
    """One time step: the same values as the modules one after another. Tensors have their channels last.

    Args:
        current: What enters.
        membrane: Of the neurons; moved on in place, unless the compiler traces.
        trace: Of their spikes, if there is one; likewise.
        neuron: What each of them does.
        norm: BatchNorm before them.
        pooled: Whether means of two by two pixels are sent on.
        spare: Whether nobody else sees the current, so that it may be written over.

    Returns:
        The spikes and the trace that are sent on, and the new membrane and trace.
    """
    learning = torch.is_grad_enabled()
    with torch.no_grad():
        kernel = _kernel(current, neuron, pooled)
        spikes, sent_trace, saved = kernel.forward(current, membrane, trace, norm, learning=learning, spare=spare)
    if isinstance(kernel, TracedNeurons):
        assert kernel.state is not None
        membrane, trace = kernel.state
    if learning:
        weight, bias = (None, None) if norm is None else (norm.weight, norm.bias)
        itself = saved.current is current
        kept = None if itself else saved.current, saved.mean, saved.deviation, *saved.bits
        spikes: Any = _Backward.apply(current, weight, bias, spikes, membrane, kernel, itself, *kept)
    return spikes, sent_trace, (membrane, trace)


def _kernel(current: Tensor, neuron: Neuron, pooled: bool) -> NeuronKernel:
    if torch.compiler.is_compiling():
        return TracedNeurons(current, neuron, pooled)
    kernel = operations.neurons(current, neuron, pooled)
    return (WholeNeurons if is_whole(current) else ChunkedNeurons)(neuron, pooled) if kernel is None else kernel


class _Backward(torch.autograd.Function):
    """Hands the spikes of a step on; what flows back goes through surrogate and BatchNorm to the current."""

    @staticmethod
    def forward(
        ctx: Any,
        current: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        spikes: Tensor,
        membrane: Tensor,
        kernel: NeuronKernel,
        itself: bool,
        kept: Tensor | None,
        *rest: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(membrane, weight, current if itself else kept, *rest)
        ctx.kernel = kernel
        return spikes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        membrane, weight, current, mean, deviation, *bits = ctx.saved_tensors
        # Hooks on saved tensors may have changed their memory order.
        membrane, current = channels_last(membrane), None if current is None else channels_last(current)
        grad, saved = channels_last(grad_outputs[0]), Saved(current, bits, mean, deviation)
        if not torch.compiler.is_compiling():  # then the operator does
            make_room(membrane)
        return *ctx.kernel.backward(grad, membrane, weight, saved), *[None] * (len(bits) + 7)
