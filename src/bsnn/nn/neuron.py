"""Leaky integrate-and-fire neurons with soft reset (paper, Section 3.1, Eq. 2 and 3).

    u[t] = λ (u[t−1] − V_th s[t−1]) + I[t]        s[t] = H(u[t] − V_th)

State is a value: it goes in and comes out, and there is nothing to reset. What is carried is the membrane
*after* its reset, u − V_th s, which is all that both Eq. 2 and NDOT's ratio need. The reset is detached.

Legend: u membrane, s spikes, I current, λ leak, V_th threshold.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bsnn.errors import UserError
from bsnn.kernels.torch_internals import opaque
from bsnn.nn.surrogate import Sigmoid, Surrogate, spike
from bsnn.nn.trace import Activity, GradientRule, RuleName, gradient_rule


def lif_step(
    current: Tensor, membrane: Tensor, *, leak: float, threshold: float, surrogate: Surrogate
) -> tuple[Tensor, Tensor]:
    """One time step of LIF neurons.

    Args:
        current: I[t].
        membrane: u[t−1] − V_th s[t−1], the membrane after its last reset.
        leak: λ.
        threshold: V_th; a neuron fires at u ≥ V_th.
        surrogate: Stand-in for the derivative of the spike.

    Returns:
        Spikes s[t], and the membrane after the reset, u[t] − V_th s[t].

    Example:
        >>> lif_step(torch.tensor([1.2]), torch.tensor([0.4]), leak=0.5, threshold=1.0, surrogate=Sigmoid())
        (tensor([1.]), tensor([0.4000]))
    """
    potential = (leak * membrane).add_(current)
    spikes = spike(potential - threshold, surrogate)
    return spikes, potential - threshold * spikes.detach()


class LIFState(NamedTuple):
    """What a layer of neurons carries from one time step to the next."""

    membrane: Tensor
    trace: Tensor | None


# Whether `initial_state` is passing a sample through, which statistics must leave out.
_finding_shapes: ContextVar[bool] = ContextVar("finding_shapes", default=False)


class SpikeCount:
    """A forward hook of a layer of neurons that counts its spikes.

    It does not keep the layer from being fused: a fused step has no such output and calls `add` itself.
    """

    def __init__(self) -> None:
        self._spikes: Tensor | float = 0.0
        self._chances = 0

    def __call__(self, module: nn.Module, inputs: Any, output: tuple[Activity, LIFState]) -> None:
        """What torch calls behind a layer that runs as a module."""
        self.add(output[0].spikes)

    def add(self, spikes: Tensor, each: int = 1) -> None:
        """Counts the spikes of one time step, or means of `each` of them."""
        if not _finding_shapes.get():
            self._spikes = self._spikes + each * spikes.detach().sum(dtype=torch.float64)
            self._chances += each * spikes.numel()

    @property
    def rate(self) -> float | None:
        """Share of the neurons that fired; None if nothing was seen."""
        return float(self._spikes) / self._chances if self._chances else None


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode within it; afterwards every module is in the mode that it was in."""
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


class Stateful(nn.Module):
    """Base of modules that are called as `output, state = module(input, state)`.

    A state of `None` stands for zeros.
    """

    def initial_state(self, x: Tensor) -> Any:
        """The state of zeros for inputs like `x`.

        Found by passing one sample through in evaluation mode, so that it holds for any composition.
        """
        token = _finding_shapes.set(True)
        try:
            with evaluating(self), torch.no_grad():
                _, state = self(x[:1], None)
        finally:
            _finding_shapes.reset(token)
        return map_state(lambda tensor: _zeros(tensor, len(x)), state)


def _zeros(sample: Tensor, size: int) -> Tensor:
    """Zeros for a batch of `size` tensors like that of one sample, in the same memory order."""
    last = sample.dim() == 4 and sample.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if last else torch.contiguous_format
    return sample.new_zeros(()).expand(size, *sample.shape[1:]).contiguous(memory_format=order)


def map_state(change: Any, state: Any) -> Any:
    """Applies a function to every tensor of a state: tuples, lists and dicts, nested at will.

    Example:
        >>> map_state(torch.Tensor.detach, (LIFState(torch.zeros(1), None),))
        (LIFState(membrane=tensor([0.]), trace=None),)
    """
    if isinstance(state, Tensor):
        return change(state)
    if isinstance(state, dict):
        return {key: map_state(change, value) for key, value in state.items()}
    if isinstance(state, tuple | list):
        parts = [map_state(change, value) for value in state]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    return state


class LIF(Stateful):
    """A layer of LIF neurons: current and state in, activity and state out.

    Args:
        leak: λ, the share of the membrane that stays.
        threshold: V_th.
        surrogate: Stand-in for the derivative of the spike.
        gradient: `"ottt"`, `"ndot"`, `"sltt"` or `"bptt"`, or an object such as `NDOT(clamp=False)`.

    Example:
        >>> lif = LIF()
        >>> activity, state = lif(torch.tensor([[1.2, 0.4]]), None)
        >>> activity.spikes
        tensor([[1., 0.]])
    """

    def __init__(
        self,
        leak: float = 0.5,
        threshold: float = 1.0,
        surrogate: Surrogate | None = None,
        gradient: RuleName | GradientRule = "ottt",
    ) -> None:
        super().__init__()
        if not 0 <= leak <= 1:
            raise UserError(f"LIF: received leak={leak}; expected λ in [0, 1], the share that stays (not τ).")
        if not threshold > 0:
            raise UserError(f"LIF: received threshold={threshold}; expected V_th > 0.")
        self.leak = leak
        self.threshold = threshold
        self.surrogate = surrogate or Sigmoid()
        self.gradient = gradient_rule(gradient)

    @opaque
    def forward(self, current: Tensor, state: LIFState | None) -> tuple[Activity, LIFState]:
        """One time step; in half precision the membrane and the trace are kept in single."""
        rule, spike_type = self.gradient, current.dtype
        current = current.to(torch.promote_types(spike_type, torch.float32))
        if state is None:
            zeros = torch.zeros_like(current)
            state = LIFState(zeros, zeros if rule.has_trace else None)
        else:
            check_state(state, current, rule)
        spikes, membrane = lif_step(
            current, state.membrane, leak=self.leak, threshold=self.threshold, surrogate=self.surrogate
        )
        sent = spikes.to(spike_type)
        if rule.keeps_graph:
            return Activity(sent, None), LIFState(membrane, None)
        # The one place where the present is cut from the past: what is carried has no graph.
        membrane, trace = membrane.detach(), None
        if state.trace is not None:
            with torch.no_grad():
                trace = rule.trace(state.trace, spikes, membrane, state.membrane, self.leak)
        return Activity(sent, trace), LIFState(membrane, trace)

    def extra_repr(self) -> str:
        """The constants, for printing."""
        name = type(self.gradient).__name__
        return f"leak={self.leak}, threshold={self.threshold}, surrogate={self.surrogate}, gradient={name}"


def check_state(state: LIFState, current: Tensor, rule: GradientRule) -> None:
    """Refuses a state that is not one for this current and this rule."""
    for tensor in state:
        if tensor is not None and _kind(tensor) != _kind(current):
            raise UserError(
                f"state: received one for {_kind(tensor)}; expected one for {_kind(current)}. "
                "Make a new one with net.initial_state(x) for this input."
            )
    if (state.trace is not None) != rule.has_trace:
        raise UserError(
            f"state: received one {'without' if state.trace is None else 'with'} a trace; the gradient rule "
            f"{type(rule).__name__} needs one {'with' if rule.has_trace else 'without'}. "
            "Make a new one with net.initial_state(x)."
        )


def _kind(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}, {tensor.dtype} on {tensor.device}"
