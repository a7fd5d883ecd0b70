"""BatchNorm → LIF → pooling as one step with its own backward, which keeps next to nothing (Section 3.2, Eq. 2 and 3).

    u[t] = λ (u[t−1] − V_th s[t−1]) + BN(I[t])        s[t] = H(u[t] − V_th)        â[t] = μ[t] â[t−1] + s[t]

What backward needs is what lives across time steps anyway: the membrane after its reset, whose u is found again with
the spikes as bits, and the current that the synapse made. All else is recomputed. In single precision on a CPU the
kernel computes it (`bsnn.kernels`). Elsewhere tensors are worked on a few samples at a time, so that what lies between
two operations stays in the cache. Both in the memory order that convolutions are fastest in, channels last. The plain
composition of the three modules is the reference.

Legend: u membrane, s spikes, â trace, I current, λ leak, μ trace factor, V_th threshold.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bsnn.kernels.cpu import Neurons, neurons
from bsnn.kernels.memory import give_back_free_memory
from bsnn.nn.bits import pack
from bsnn.nn.neuron import LIF, LIFState, SpikeCount, check_state
from bsnn.nn.norm import BatchNorm1d, BatchNorm2d
from bsnn.nn.trace import Activity

# Neurons that are worked on at a time: half a megabyte a tensor.
_CHUNK = 1 << 17

# Bytes of a tensor from which on giving memory back is worth its time.
_LARGE = 1 << 24

# Whether a step may write the new state over the one that it is given.
_recycling: ContextVar[bool] = ContextVar("recycling_state", default=False)


@contextmanager
def recycling_state() -> Iterator[None]:
    """Within it, a step may write the new state over the old one, whose values nobody needs any more."""
    token = _recycling.set(True)
    try:
        yield
    finally:
        _recycling.reset(token)


class Run(NamedTuple):
    """Modules that one fused step replaces."""

    norm: BatchNorm1d | BatchNorm2d | None
    neuron: LIF
    pool: nn.AvgPool2d | None

    @property
    def modules(self) -> list[nn.Module]:
        """The modules in their order."""
        return [module for module in self if module is not None]


def find_run(layers: list[nn.Module], start: int, x: Any) -> Run | None:
    """The run of modules from `start` on that one step can replace for the input `x`, if there is one."""
    if not isinstance(x, Tensor) or x.dim() not in (2, 4) or x.dtype not in (torch.float32, torch.float64):
        return None
    first = layers[start]
    norm = first if isinstance(first, BatchNorm1d | BatchNorm2d) else None
    if not x.numel() or (norm is not None and (x.numel() == x.shape[1] or norm.num_features != x.shape[1])):
        return None  # nothing, or what BatchNorm refuses: one value a channel, other channels
    neuron, pool = [*layers[start + (norm is not None) :], None, None][:2]
    if not isinstance(neuron, LIF) or not _can_fuse(norm, neuron):
        return None
    return Run(norm, neuron, pool if isinstance(pool, nn.AvgPool2d) and _halves(pool, x) else None)


def _can_fuse(norm: BatchNorm1d | BatchNorm2d | None, neuron: LIF) -> bool:
    if type(neuron) is not LIF or neuron.gradient.keeps_graph or not plain(neuron):
        return False
    if norm is None:
        return True
    if norm.weight is None or norm.running_mean is None or not plain(norm):
        return False
    return not norm.synchronized if norm.training else not torch.is_grad_enabled()


def plain(module: nn.Module) -> bool:
    """Whether nobody watches the module: hooks want to see its own input and output, unless they count spikes."""
    return not (
        any(not isinstance(hook, SpikeCount) for hook in module._forward_hooks.values())
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or nn.modules.module._has_any_global_hook()
    )


def _halves(pool: nn.AvgPool2d, x: Tensor) -> bool:
    """Whether pooling takes the mean of every two by two pixels, none left over."""
    square = pool.kernel_size in (2, (2, 2)) and pool.stride in (2, (2, 2)) and pool.padding in (0, (0, 0))
    even = x.dim() == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0
    return square and even and pool.divisor_override is None and plain(pool)


def run_step(run: Run, current: Tensor, state: LIFState | None, *, spare: bool) -> tuple[Activity, LIFState]:
    """One time step of a run: the same values as its modules one after another.

    Args:
        run: The modules.
        current: What enters.
        state: Of the neurons.
        spare: Whether nobody else sees the current, so that it may be written over.
    """
    norm, lif, learning = run.norm, run.neuron, torch.is_grad_enabled()
    current = _channels_last(current)
    with torch.no_grad():
        membrane, trace = _own_state(current, state, lif)
        kernel = neurons(current, run.pool is not None, lif.gradient, lif.surrogate, lif.leak, lif.threshold)
        normal, mean, deviation, kept = current, None, None, None
        spare = spare and kernel is not None and not current._is_view()
        if norm is not None and learning:
            kept = current if kernel is None else kernel.keep(current.detach())
            spare = spare and kept.dtype != current.dtype
        if norm is not None and norm.training:
            normal, mean, deviation = _normalize(norm, current, spare)
        elif norm is not None:
            normal = norm.fold(current, in_place=spare)
        if kernel is None:
            spikes, sent_trace, bits = _fire(run, normal, membrane, trace)
        else:
            spikes, sent_trace, packed = kernel.fire(normal if norm is not None else current.clone(), membrane, trace)
            bits = [packed]
        del normal
    for count in lif._forward_hooks.values():
        assert isinstance(count, SpikeCount)
        count.add(spikes, each=1 if run.pool is None else 4)
    if learning:
        weight, bias = (None, None) if norm is None else (norm.weight, norm.bias)
        saved = _Saved(run, kept, membrane, bits, mean, deviation, kernel)
        spikes: Any = _Backward.apply(current, weight, bias, spikes, saved)
    return Activity(spikes, sent_trace), LIFState(membrane, trace)


def _normalize(norm: BatchNorm1d | BatchNorm2d, current: Tensor, in_place: bool) -> tuple[Tensor, Tensor, Tensor]:
    """BN(I), mean and 1/σ of a batch in training."""
    norm._check_input_dim(current)
    rate, written = norm.count_batch(), {}
    if in_place:
        written["out"] = current.detach(), torch.empty_like(norm.weight), torch.empty_like(norm.weight)
    statistics = norm.running_mean, norm.running_var
    return torch.native_batch_norm(current, norm.weight, norm.bias, *statistics, True, rate, norm.eps, **written)


def _own_state(current: Tensor, state: LIFState | None, lif: LIF) -> tuple[Tensor, Tensor | None]:
    """Membrane and trace that the step may write to: zeros, a copy of the state's, or with leave the state's own."""
    if state is None:
        return torch.zeros_like(current), torch.zeros_like(current) if lif.gradient.has_trace else None
    check_state(state, current, lif.gradient)
    membrane, trace = (None if part is None else _channels_last(part) for part in state)
    assert membrane is not None
    if not _recycling.get():
        membrane, trace = membrane.clone(), None if trace is None else trace.clone()
    return membrane, trace


def _fire(
    run: Run, normal: Tensor, membrane: Tensor, trace: Tensor | None
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """Moves membrane and trace one step on, in place; returns what is sent on, pooled, and the spikes as bits."""
    lif, rule, packed = run.neuron, run.neuron.gradient, []
    spikes = torch.empty_like(normal) if run.pool is None else _pooled_like(normal)
    sent_trace = trace if trace is None or run.pool is None else torch.empty_like(spikes)
    work = _workspace(normal)
    for chunk in _chunks(normal):
        u = _rows(membrane)[chunk]
        previous = u.clone() if trace is not None and rule.needs_membrane else u
        u.mul_(lif.leak).add_(_rows(normal)[chunk])
        s = torch.ge(u, lif.threshold, out=work[: len(u)] if run.pool else _rows(spikes)[chunk])
        packed.append(pack(s.bool()))
        u.sub_(s, alpha=lif.threshold)
        if trace is not None:
            a = _rows(trace)[chunk]
            a.copy_(rule.trace(a, s, u, previous, lif.leak))
        if run.pool is not None:
            for part, target in ((s, spikes), (None if trace is None else _rows(trace)[chunk], sent_trace)):
                if part is not None and target is not None:
                    target[chunk] = F.avg_pool2d(part.permute(0, 3, 1, 2), 2)
    return spikes, sent_trace, packed


class _Saved(NamedTuple):
    """What one step keeps for backward: nothing that the state or the synapse does not hold, but bits."""

    run: Run
    current: Tensor | None
    membrane: Tensor
    bits: list[Tensor]
    mean: Tensor | None
    deviation: Tensor | None
    """1/σ, as BatchNorm keeps it."""
    kernel: Neurons | None


class _Backward(torch.autograd.Function):
    """Hands the spikes of a step on; what flows back goes through surrogate and BatchNorm to the current."""

    @staticmethod
    def forward(
        ctx: Any, current: Tensor, weight: Tensor | None, bias: Tensor | None, spikes: Tensor, saved: _Saved
    ) -> Tensor:
        ctx.save_for_backward(saved.current, saved.membrane, weight)
        ctx.saved = saved._replace(current=None)
        return spikes

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        current, membrane, weight = ctx.saved_tensors
        # Hooks on saved tensors may have brought them into another order.
        membrane, current = _channels_last(membrane), None if current is None else _channels_last(current)
        saved: _Saved = ctx.saved
        if membrane.nbytes >= _LARGE and membrane.device.type == "cpu":
            # Here memory is at its peak, and what later layers have freed is in pieces too small for this one.
            give_back_free_memory()
        grad = _channels_last(grad_outputs[0])
        if saved.kernel is None:
            gradient, sums, products = _through_surrogate(saved, grad, membrane, current)
        else:
            gradient, sums, products = saved.kernel.through(grad, membrane, saved.bits[0], current, saved.mean)
        if current is None:
            return gradient, None, None, None, None
        assert saved.deviation is not None
        grad_weight = products * saved.deviation
        _through_norm_(saved, gradient, current, weight, grad_weight, sums)
        return gradient, grad_weight.to(weight.dtype), sums.to(weight.dtype), None, None


def _through_surrogate(
    saved: _Saved, grad: Tensor, membrane: Tensor, current: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """∂L/∂u of every neuron from that of what it sent on, and what BatchNorm's own gradients come from.

    That is, over batch and pixels, Σ ∂L/∂BN(I) and Σ ∂L/∂BN(I) (I − mean).
    """
    lif, work, gradient = saved.run.neuron, _workspace(membrane), torch.empty_like(membrane)
    sums = products = torch.zeros((), dtype=torch.float64, device=gradient.device)
    for chunk, bits in zip(_chunks(membrane), saved.bits, strict=True):
        m = _rows(membrane)[chunk]
        # u − V_th: the reset has taken V_th off already where the neuron fired.
        distance = work[: len(m)].copy_(_silent(bits, m.numel()).view(m.shape)).mul_(-lif.threshold).add_(m)
        derivative = lif.surrogate.derivative(distance)
        sent = grad[chunk] if saved.run.pool is None else F.interpolate(grad[chunk] * 0.25, scale_factor=2)
        rows = torch.mul(derivative, _rows(sent), out=_rows(gradient)[chunk]).flatten(0, -2)
        if current is not None:
            assert saved.mean is not None
            sums = sums + rows.sum(0)
            products = products + (_rows(current)[chunk].flatten(0, -2) - saved.mean).mul_(rows).sum(0)
    return gradient, sums, products


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
    if saved.kernel is not None:
        saved.kernel.through_norm_(gradient, current, scale, slope, shift)
        return
    for chunk in _chunks(gradient):
        _rows(gradient)[chunk].mul_(scale).addcmul_(_rows(current)[chunk], slope).add_(shift)


@cache
def _silent_table(device: torch.device) -> Tensor:
    """For every byte of spikes, eight bytes that are 1 where a neuron did not fire, as one integer."""
    byte = torch.arange(256, device=device)
    silent = 1 - ((byte[:, None] >> torch.arange(8, device=device)) & 1)
    return silent.to(torch.uint8).view(torch.int64).view(-1)


def _silent(bits: Tensor, num_neurons: int) -> Tensor:
    return _silent_table(bits.device).index_select(0, bits.int()).view(torch.uint8)[:num_neurons]


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.contiguous()


def _rows(x: Tensor) -> Tensor:
    """The same memory with the channels as the last axis."""
    return x.permute(0, 2, 3, 1) if x.dim() == 4 else x


def _chunks(x: Tensor) -> Iterator[slice]:
    size = max(1, _CHUNK // max(1, x[0].numel())) if len(x) else 1
    return (slice(start, start + size) for start in range(0, len(x), size))


def _workspace(x: Tensor) -> Tensor:
    """Room for the largest chunk, in the order of `_rows`."""
    first = _rows(x)[next(_chunks(x))]
    return torch.empty_like(first)


def _pooled_like(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    return torch.empty((b, c, h // 2, w // 2), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
