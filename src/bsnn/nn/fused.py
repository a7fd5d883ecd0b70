"""Which modules of a network are computed as one step: BatchNorm → LIF or IF → pooling (`bsnn.kernels.step`).

The modules one by one are the reference; they run if a hook watches them, if the surrogate or the gradient rule is not
known to be elementwise, or if the backend is `"reference"`. States are copied, unless the caller allows a step to write
over them (`recycling_state`), and nobody else can see them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bsnn import kernels
from bsnn.kernels import operations
from bsnn.kernels.batch_norm import evaluation_norm, training_norm
from bsnn.kernels.images import channels_last
from bsnn.kernels.precision import mark_levels
from bsnn.kernels.step import step
from bsnn.kernels.torch_internals import constant, forward_hooks, has_other_hooks, uncompiled
from bsnn.nn.claims import claim, is_elementwise
from bsnn.nn.neuron import LIF, LIFState, Neuron, SoftResetNeuron, SpikeCount, Stateful, check_state
from bsnn.nn.neurons import IF
from bsnn.nn.norm import BatchNorm1d, BatchNorm2d
from bsnn.nn.synapse import TracedLayer
from bsnn.nn.trace import Activity

# The neurons that may write the new state over the one that they are given.
_recycling: ContextVar[frozenset[nn.Module]] = ContextVar("recycling_state", default=frozenset())


@contextmanager
def recycling_state(net: Any) -> Iterator[None]:
    """Within it, a step of a network may write the new state over the old one, whose values the caller needs no more.

    That is so for the neurons of `recyclable(net)`, not for those of another network that is called meanwhile.
    """
    token = _recycling.set(recyclable(net))
    try:
        yield
    finally:
        _recycling.reset(token)


def recyclable(net: Any) -> frozenset[nn.Module]:
    """The neurons of a network that may write over their state: all, or none if code of the user's sees states.

    Such code is a `forward` that handles states, or a synapse's, which sees traces, or a hook on one of these modules:
    it may read a state after handing it on, start from it twice, or keep it. Not remembered, because layers may be
    exchanged and hooks added; it takes a few microseconds per module.
    """
    neurons, waiting = [], [net] if isinstance(net, nn.Module) else []
    while waiting:
        module = uncompiled(waiting.pop())
        inner = list(module.children())
        if isinstance(module, (Stateful, TracedLayer)):
            if not _runs_own_forward(module) or is_watched(module):
                return frozenset()
            if isinstance(module, Neuron):
                neurons.append(module)
            waiting += inner
        elif inner and any(isinstance(part, Stateful) for part in module.modules()):
            return frozenset()
    return frozenset(neurons)


def _runs_own_forward(module: nn.Module) -> bool:
    """Whether calling a module runs a `forward` of the library's, also if the class is derived from the library's."""
    kind = type(module)
    ours = (getattr(kind.forward, "__module__", None) or "").partition(".")[0] == "bsnn"
    return ours and kind.__call__ is nn.Module.__call__ and "forward" not in vars(module)


class Run(NamedTuple):
    """Modules that one fused step replaces."""

    norm: BatchNorm1d | BatchNorm2d | None
    neuron: SoftResetNeuron
    pool: nn.AvgPool2d | None

    @property
    def modules(self) -> list[nn.Module]:
        """The modules in their order."""
        return [module for module in self if module is not None]


def find_run(
    layers: list[nn.Module], start: int, x: Any, tell: Callable[[nn.Module], None] | None = None
) -> Run | None:
    """The run of modules from `start` on that one step can replace for the input `x`, if there is one.

    Args:
        layers: The modules in their order.
        start: Where the run begins.
        x: What enters.
        tell: Called with a module that could be part of the run but for a hook of the user's own.
    """
    if not isinstance(x, Tensor) or x.dim() not in (2, 4) or x.dtype not in (torch.float32, torch.float64):
        return None
    if not x.numel() or not _fuses():
        return None
    first = layers[start]
    norm = (
        first if isinstance(first, BatchNorm1d | BatchNorm2d) and _is_exactly(first, BatchNorm1d, BatchNorm2d) else None
    )
    if norm is not None and (
        x.numel() == x.shape[1] or norm.num_features != x.shape[1] or x.dim() not in norm.num_axes
    ):
        return None  # what BatchNorm refuses: one value per channel, other channels, other axes
    neuron, pool = [*layers[start + (norm is not None) :], None, None][:2]
    if not isinstance(neuron, SoftResetNeuron) or not _can_fuse(norm, neuron):
        return None
    halved = isinstance(pool, nn.AvgPool2d) and _is_exactly(pool, nn.AvgPool2d) and _halves(pool, x)
    run = Run(norm, neuron, pool if halved else None)
    for module in run.modules:
        if tell is not None and _is_watched_by_user(module):
            tell(module)
    if any(is_watched(module) for module in (norm, neuron) if module is not None):
        return None
    return run._replace(pool=None) if run.pool is not None and is_watched(run.pool) else run


@constant
def _choose_backend() -> None:
    """Lets the first question look for what was built before the compiler traces the question."""
    kernels.backend()


def _fuses() -> bool:
    _choose_backend()
    return kernels.fuses()


def is_fusable(neuron: Neuron) -> bool:
    """Whether the fused step computes what this layer of neurons does."""
    known = is_elementwise(neuron.gradient) and is_elementwise(neuron.surrogate)
    return known and _is_exactly(neuron, LIF, IF) and not neuron.gradient.keeps_graph


def _is_exactly(module: nn.Module, *kinds: type[nn.Module]) -> bool:
    """Whether a module is of one of these classes: a subclass, or a method of its own, may compute something else."""
    return type(module) in kinds and not {"fire", "forward", "spike", "reset_spikes"} & vars(module).keys()


def _can_fuse(norm: BatchNorm1d | BatchNorm2d | None, neuron: SoftResetNeuron) -> bool:
    if not is_fusable(neuron) or (torch.compiler.is_compiling() and not _has_names(neuron)):
        return False
    if norm is None:
        return True
    if norm.weight is None or norm.running_mean is None:
        return False
    return not norm.synchronized if norm.training else not torch.is_grad_enabled()


def _has_names(neuron: SoftResetNeuron) -> bool:
    """Whether an operator can compute a layer of neurons; the compiler traces code of the user's own instead."""
    return all(claim(type(part), "kernel") is not None for part in (neuron.surrogate, neuron.gradient))


def is_watched(module: nn.Module) -> bool:
    """Whether hooks want to see the module's own input and output; counting spikes does not need that."""
    return has_other_hooks(module) or any(not isinstance(hook, SpikeCount) for hook in forward_hooks(module))


def _is_watched_by_user(module: nn.Module) -> bool:
    """The same for hooks that are not the library's own, which knows what it does."""
    hooks = (getattr(hook, "__module__", None) or "" for hook in forward_hooks(module))
    return has_other_hooks(module) or any(home.partition(".")[0] != "bsnn" for home in hooks)


def _halves(pool: nn.AvgPool2d, x: Tensor) -> bool:
    """Whether pooling takes the mean of every two by two pixels, none left over."""
    square = pool.kernel_size in (2, (2, 2)) and pool.stride in (2, (2, 2)) and pool.padding in (0, (0, 0))
    even = x.dim() == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0
    return square and even and pool.divisor_override is None


def run_step(
    run: Run, current: Tensor, state: LIFState | None, *, spare: bool, counted: list[Tensor]
) -> tuple[Activity, LIFState]:
    """One time step of a run: the same values as its modules one after another.

    Args:
        run: The modules.
        current: What enters.
        state: Of the neurons.
        spare: Whether nobody else sees the current, so that it may be written over.
        counted: Is given the number of BatchNorm's batches if the caller is to add one to it, together with others'.
    """
    current, pooled = channels_last(current), run.pool is not None
    norm = None if run.norm is None else _as_numbers(run.norm, counted)
    with torch.no_grad():
        membrane, trace = _own_state(current, state, run.neuron)
    neuron = as_numbers(run.neuron)
    spikes, sent_trace, now = step(current, membrane, trace, neuron, norm, pooled=pooled, spare=spare)
    for count in forward_hooks(run.neuron):
        assert isinstance(count, SpikeCount)
        count.add(spikes, each=4 if pooled else 1)
    return Activity(mark_levels(spikes, 4 if pooled else 1), sent_trace), LIFState(*now)


def as_numbers(neuron: SoftResetNeuron) -> operations.Neuron:
    """A layer's neuron as kernels know it."""
    surrogate, rule = neuron.surrogate, neuron.gradient
    trace = claim(type(rule), "kernel")
    return operations.Neuron(
        leak=neuron.leak,
        threshold=neuron.threshold,
        derivative=surrogate.derivative,
        surrogate=claim(type(surrogate), "kernel"),
        parameter=getattr(surrogate, "parameter", 0.0),
        update_trace=rule.trace,
        trace=f"clamped {trace}" if trace == "ratio" and getattr(rule, "clamp", False) else trace,
        needs_membrane=rule.needs_membrane,
        count_ratios=getattr(rule, "count", None),
    )


def _as_numbers(norm: BatchNorm1d | BatchNorm2d, counted: list[Tensor]) -> operations.Norm:
    """BatchNorm as kernels know it; for `counted`, see `run_step`."""
    if not norm.training:
        return evaluation_norm(norm.weight, norm.bias, *norm.folded(), norm.eps)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    running = norm.running_mean, norm.running_var, norm.num_batches_tracked
    return training_norm(norm.weight, norm.bias, running, norm.momentum, norm.eps, counted)


def _own_state(current: Tensor, state: LIFState | None, neuron: Neuron) -> tuple[Tensor, Tensor | None]:
    """Membrane and trace that the step may write to: zeros, a copy, or the state's own if recycling is allowed."""
    if state is None:
        return torch.zeros_like(current), torch.zeros_like(current) if neuron.gradient.has_trace else None
    check_state(state, current, neuron)
    membrane, trace = (None if part is None else channels_last(part) for part in state)
    assert membrane is not None
    if not torch.compiler.is_compiling() and neuron not in _recycling.get():  # an operator makes a new state
        membrane, trace = membrane.clone(), None if trace is None else trace.clone()
    return membrane, trace
