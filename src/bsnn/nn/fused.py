"""Which modules of a network are computed as one step: BatchNorm → LIF → pooling (`bsnn.kernels.step`).

The modules one by one are the reference; they run if a hook watches them or if the backend is `"reference"`. States are
copied, unless the caller allows a step to write over them (`recycling_state`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bsnn import kernels
from bsnn.kernels import operations
from bsnn.kernels.images import channels_last
from bsnn.kernels.step import Norm, step
from bsnn.kernels.torch_internals import forward_hooks, has_other_hooks
from bsnn.nn.neuron import LIF, LIFState, SpikeCount, check_state
from bsnn.nn.norm import BatchNorm1d, BatchNorm2d
from bsnn.nn.trace import Activity

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
    if not x.numel() or not kernels.fuses():
        return None
    first = layers[start]
    norm = first if isinstance(first, BatchNorm1d | BatchNorm2d) else None
    if norm is not None and (
        x.numel() == x.shape[1] or norm.num_features != x.shape[1] or x.dim() not in norm.num_axes
    ):
        return None  # what BatchNorm refuses: one value per channel, other channels, other axes
    neuron, pool = [*layers[start + (norm is not None) :], None, None][:2]
    if not isinstance(neuron, LIF) or not _can_fuse(norm, neuron):
        return None
    return Run(norm, neuron, pool if isinstance(pool, nn.AvgPool2d) and _halves(pool, x) else None)


def _can_fuse(norm: BatchNorm1d | BatchNorm2d | None, neuron: LIF) -> bool:
    if type(neuron) is not LIF or neuron.gradient.keeps_graph or is_watched(neuron):
        return False
    if norm is None:
        return True
    if norm.weight is None or norm.running_mean is None or is_watched(norm):
        return False
    return not norm.synchronized if norm.training else not torch.is_grad_enabled()


def is_watched(module: nn.Module) -> bool:
    """Whether hooks want to see the module's own input and output; counting spikes does not need that."""
    return has_other_hooks(module) or any(not isinstance(hook, SpikeCount) for hook in forward_hooks(module))


def _halves(pool: nn.AvgPool2d, x: Tensor) -> bool:
    """Whether pooling takes the mean of every two by two pixels, none left over."""
    square = pool.kernel_size in (2, (2, 2)) and pool.stride in (2, (2, 2)) and pool.padding in (0, (0, 0))
    even = x.dim() == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0
    return square and even and pool.divisor_override is None and not is_watched(pool)


def run_step(run: Run, current: Tensor, state: LIFState | None, *, spare: bool) -> tuple[Activity, LIFState]:
    """One time step of a run: the same values as its modules one after another.

    Args:
        run: The modules.
        current: What enters.
        state: Of the neurons.
        spare: Whether nobody else sees the current, so that it may be written over.
    """
    current, pooled = channels_last(current), run.pool is not None
    norm = None if run.norm is None else Norm(run.norm.weight, run.norm.bias, partial(_normalize, run.norm))
    with torch.no_grad():
        membrane, trace = _own_state(current, state, run.neuron)
    spikes, sent_trace = step(current, membrane, trace, as_numbers(run.neuron), norm, pooled=pooled, spare=spare)
    for count in forward_hooks(run.neuron):
        assert isinstance(count, SpikeCount)
        count.add(spikes, each=4 if pooled else 1)
    return Activity(spikes, sent_trace), LIFState(membrane, trace)


def as_numbers(lif: LIF) -> operations.Neuron:
    """A layer's neuron as kernels know it."""
    surrogate, rule = lif.surrogate, lif.gradient
    return operations.Neuron(
        leak=lif.leak,
        threshold=lif.threshold,
        derivative=surrogate.derivative,
        surrogate=getattr(surrogate, "kernel", None),
        parameter=getattr(surrogate, "parameter", 0.0),
        update_trace=rule.trace,
        trace=rule.kernel,
        needs_membrane=rule.needs_membrane,
    )


def _normalize(
    norm: BatchNorm1d | BatchNorm2d, current: Tensor, in_place: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """BN(I), and in training mean and 1/σ of the batch."""
    if not norm.training:
        return norm.fold(current, in_place=in_place), None, None
    rate, written = norm.count_batch(), {}
    if in_place:
        written["out"] = current.detach(), torch.empty_like(norm.weight), torch.empty_like(norm.weight)
    statistics = norm.running_mean, norm.running_var
    return torch.native_batch_norm(current, norm.weight, norm.bias, *statistics, True, rate, norm.eps, **written)


def _own_state(current: Tensor, state: LIFState | None, lif: LIF) -> tuple[Tensor, Tensor | None]:
    """Membrane and trace that the step may write to: zeros, a copy, or the state's own if recycling is allowed."""
    if state is None:
        return torch.zeros_like(current), torch.zeros_like(current) if lif.gradient.has_trace else None
    check_state(state, current, lif.gradient)
    membrane, trace = (None if part is None else channels_last(part) for part in state)
    assert membrane is not None
    if not _recycling.get():
        membrane, trace = membrane.clone(), None if trace is None else trace.clone()
    return membrane, trace
