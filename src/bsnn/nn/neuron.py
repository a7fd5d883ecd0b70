"""Leaky integrate-and-fire neurons with soft reset (paper, Section 3.1, Eq. 2 and 3).

    u[t] = λ (u[t−1] − V_th s[t−1]) + I[t]        s[t] = H(u[t] − V_th)

State is a value: it goes in and comes out, and there is nothing to reset. What is carried is the membrane
*after* its reset, u − V_th s, which is all that both Eq. 2 and NDOT's ratio need. The reset is detached, unless the
gradient rule says otherwise. `Neuron` is the base of this neuron, of those in `neurons`, and of your own.

Legend: u membrane, s spikes, I current, λ leak, V_th threshold.
"""

import numbers
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from bsnn.errors import UserError
from bsnn.kernels.pieces import widest
from bsnn.kernels.torch_internals import uncompiled_calls
from bsnn.nn.claims import claim
from bsnn.nn.surrogate import Sigmoid, Surrogate, spike
from bsnn.nn.trace import NDOT, Activity, GradientRule, RuleName, as_output, gradient_rule


def lif_step(
    current: Tensor,
    membrane: Tensor,
    *,
    leak: float | Tensor,
    threshold: float | Tensor,
    surrogate: Surrogate,
    detach_reset: bool = True,
) -> tuple[Tensor, Tensor]:
    """One time step of LIF neurons.

    Args:
        current: I[t].
        membrane: u[t−1] − V_th s[t−1], the membrane after its last reset.
        leak: λ.
        threshold: V_th; a neuron fires at u ≥ V_th.
        surrogate: Stand-in for the derivative of the spike.
        detach_reset: Whether no gradient reaches the spikes through the reset.

    Returns:
        Spikes s[t], and the membrane after the reset, u[t] − V_th s[t].

    Example:
        >>> lif_step(torch.tensor([1.2]), torch.tensor([0.4]), leak=0.5, threshold=1.0, surrogate=Sigmoid())
        (tensor([1.]), tensor([0.4000]))
    """
    potential = (leak * membrane).add_(current)
    spikes = spike(potential - threshold, surrogate)
    return spikes, potential - threshold * (spikes.detach() if detach_reset else spikes)


class LIFState(NamedTuple):
    """What a layer of neurons carries from one time step to the next: the membrane after its reset, and the trace."""

    membrane: Tensor
    trace: Tensor | None


# Whether `initial_state` is passing a sample through, which statistics must leave out.
_finding_shapes: ContextVar[bool] = ContextVar("finding_shapes", default=False)


def finding_shapes() -> bool:
    """Whether a sample passes through only to find the shapes of the state."""
    return _finding_shapes.get()


class SpikeCount:
    """A forward hook of a layer of neurons that counts its spikes.

    It does not keep the layer from being fused: a fused step has no such output and calls `add` itself.
    """

    def __init__(self) -> None:
        self._spikes: Tensor | float = 0.0
        self._chances = 0

    def __call__(self, module: nn.Module, inputs: Any, output: tuple[Activity, Any]) -> None:
        """What torch calls behind a layer that runs as a module; a spike may have another size than 1."""
        self.add(output[0].spikes != 0)

    def add(self, spikes: Tensor, each: int = 1) -> None:
        """Counts the spikes of one time step, or means of `each` of them."""
        if not finding_shapes():
            self._spikes = self._spikes + each * spikes.detach().sum(dtype=widest(spikes.device))
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

    def sequence(self, frames: Sequence[Tensor], state: Any) -> tuple[list[Tensor], Any]:
        """All time steps of a sequence: what each sends on, and the last state.

        Here, one step after another. `Sequential`, `Residual` and `Concat` go layer by layer instead, so that BatchNorm
        in training has the statistics of all time steps together. Traces are left out: it serves BPTT and evaluation.
        """
        sent = []
        for frame in frames:
            output, state = self(frame, state)
            sent.append(as_output(output))
        return sent, state

    def initial_state(self, x: Tensor) -> Any:
        """The state of zeros for inputs like `x`.

        Found by passing one sample through in evaluation mode, so that it holds for any composition.
        """
        token = _finding_shapes.set(True)
        try:
            with uncompiled_calls(), evaluating(self), torch.no_grad():
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


class Neuron(Stateful):
    """Base of layers of neurons: current and state in, activity and state out.

    For a neuron of your own, override `fire`. This class does the rest: it makes and checks states, keeps them in
    single precision if currents are in half, cuts them from the past under online rules, and updates the trace.

    Args:
        leak: λ, the share of the membrane that stays; a trace decays by it.
        threshold: V_th.
        surrogate: Stand-in for the derivative of the spike; `Sigmoid()` by default.
        gradient: `"ottt"`, `"ndot"`, `"sltt"`, `"bptt"` or `"bptt-full"`, or an object such as `NDOT(clamp=False)`.

    Attributes:
        state_type: NamedTuple of what is carried, each a tensor of the shape of the current. Two fields must be there:
            `membrane`, after its reset, and `trace`. Fields whose name ends in `trace` are None if the rule has none.
        soft_reset: Whether the reset subtracts from the membrane, which NDOT relies on. As with `elementwise`, this
            holds for a subclass only if it adds no method, or says it again.
    """

    state_type: ClassVar[type[Any]] = LIFState
    soft_reset: ClassVar[bool] = False
    leak: float
    threshold: float
    surrogate: Surrogate
    gradient: GradientRule

    def __init__(
        self,
        leak: float = 0.5,
        threshold: float = 1.0,
        surrogate: Surrogate | None = None,
        gradient: RuleName | str | GradientRule = "ottt",
    ) -> None:
        super().__init__()
        if type(self).fire is Neuron.fire and type(self).forward is Neuron.forward:
            raise UserError(f"{type(self).__name__} does not fire; override `fire`, as in examples/own_neuron.py.")
        self.leak = leak
        self.threshold = threshold
        self.surrogate = surrogate or Sigmoid()
        self.gradient = gradient_rule(gradient)

    def __setattr__(self, name: str, value: Any) -> None:
        """Checks constants and the gradient rule whenever they are set, so that no other ones can be in use."""
        if name in ("leak", "threshold"):
            self._check_constant(name, value)
        elif name == "surrogate" and (isinstance(value, type) or not callable(getattr(value, "derivative", None))):
            raise UserError(
                f"{type(self).__name__}: received surrogate={value!r}; expected an object with a method `derivative`, "
                "such as bsnn.surrogate.Sigmoid()."
            )
        elif name == "gradient":
            value = gradient_rule(value)
            if isinstance(value, NDOT) and not claim(type(self), "soft_reset"):
                raise UserError(
                    f"{type(self).__name__}: received the gradient rule NDOT, whose trace factor is the ratio of two "
                    "membranes after a soft reset; expected another rule, because this neuron does not say that its "
                    "reset is soft. Use 'ottt' or, if its reset subtracts, set soft_reset = True in its class."
                )
        super().__setattr__(name, value)  # pyright: ignore[reportArgumentType]

    def _check_constant(self, name: str, value: Any) -> None:
        kind = type(self).__name__
        if isinstance(value, Tensor):
            raise UserError(
                f"{kind}: received a {type(value).__name__} as {name}; expected a number, because {kind} does not "
                f"learn it. Use bsnn.ParametricLIF({name}=...), which learns its leak and its threshold from numbers."
            )
        if not isinstance(value, numbers.Real):
            raise UserError(f"{kind}: received {name}={value!r}; expected a number.")
        number = float(value)
        if name == "leak" and not 0 <= number <= 1:
            raise UserError(f"{kind}: received leak={value}; expected λ in [0, 1], the share that stays (not τ).")
        if name == "threshold" and not number > 0:
            raise UserError(f"{kind}: received threshold={value}; expected V_th > 0.")

    def fire(self, current: Tensor, past: Any) -> tuple[Tensor, Any]:
        """One time step: which neurons fire, and what they carry on. Override it for a neuron of your own.

        Args:
            current: I[t], in single or double precision.
            past: The state of the last time step, of type `state_type`, connected to its past only under BPTT.

        Returns:
            The spikes, made by `self.spike` from the distance to the threshold, and the new state, whose `trace` may be
            left as it was: `past._replace(membrane=...)`. In a reset, use `self.reset_spikes(spikes)`.
        """
        raise NotImplementedError

    def spike(self, distance: Tensor) -> Tensor:
        """Fires where u − V_th ≥ 0; backward uses the surrogate. Every neuron fires by it, so you may override it."""
        return spike(distance, self.surrogate)

    def reset_spikes(self, spikes: Tensor) -> Tensor:
        """The spikes as the reset sees them: detached, unless the gradient rule says otherwise. You may override it."""
        return spikes.detach() if self.gradient.detach_reset else spikes

    def traced_membrane(self, state: Any) -> Tensor:
        """What a gradient rule sees as the membrane of a state; you may override it."""
        return state.membrane

    def forward(self, current: Tensor, state: Any) -> tuple[Activity, Any]:
        """One time step; in half precision the state is kept in single."""
        rule, spike_type = self.gradient, current.dtype
        current = current.to(torch.promote_types(spike_type, torch.float32))
        if state is None:
            state = self._zero_state(current)
        else:
            check_state(state, current, self)
        spikes, new = self.fire(current, state)
        sent = spikes.to(spike_type)
        if rule.keeps_graph:
            return Activity(sent, None), new
        # The one place where the present is cut from the past: what is carried has no graph.
        new, trace = map_state(Tensor.detach, new), None
        if rule.has_trace:
            with torch.no_grad():
                past, now = self.traced_membrane(state), self.traced_membrane(new)
                trace = rule.trace(state.trace, spikes, now, past, self.leak)
        return Activity(sent, trace), new._replace(trace=trace)

    def _zero_state(self, current: Tensor) -> Any:
        zeros = torch.zeros_like(current)
        return self.state_type(*(zeros if exists else None for exists in _existing(self).values()))

    def extra_repr(self) -> str:
        """The constants, for printing."""
        name = type(self.gradient).__name__
        return f"leak={self.leak:g}, threshold={self.threshold:g}, surrogate={self.surrogate}, gradient={name}"


class SoftResetNeuron(Neuron):
    """Base of neurons with constant leak and soft reset, Eq. 2 and 3, which the fused step computes too."""

    soft_reset = True

    def fire(self, current: Tensor, past: LIFState) -> tuple[Tensor, LIFState]:
        """See `Neuron.fire`."""
        potential = (self.leak * past.membrane).add_(current)
        spikes = self.spike(potential - self.threshold)
        return spikes, LIFState(potential - self.threshold * self.reset_spikes(spikes), past.trace)


class LIF(SoftResetNeuron):
    """A layer of LIF neurons: current and state in, activity and state out.

    Args:
        leak: λ, the share of the membrane that stays.
        threshold: V_th.
        surrogate: Stand-in for the derivative of the spike; `Sigmoid()` by default.
        gradient: `"ottt"`, `"ndot"`, `"sltt"`, `"bptt"` or `"bptt-full"`, or an object such as `NDOT(clamp=False)`.

    Example:
        >>> lif = LIF()
        >>> activity, state = lif(torch.tensor([[1.2, 0.4]]), None)
        >>> activity.spikes
        tensor([[1., 0.]])
    """


def _existing(neuron: Neuron) -> dict[str, bool]:
    """The fields of a neuron's state, and whether there is a tensor in each under its gradient rule."""
    fields = neuron.state_type._fields
    return {field: neuron.gradient.has_trace or not field.endswith("trace") for field in fields}


def check_state(state: Any, current: Tensor, neuron: Neuron) -> None:
    """Refuses a state that is not one for this current and this neuron."""
    rule, expected = neuron.gradient, neuron.state_type
    if not isinstance(state, expected):
        raise UserError(
            f"state: received a {type(state).__name__}; expected a {expected.__name__}, as {type(neuron).__name__} "
            "returns it. Make a new one with net.initial_state(x)."
        )
    for tensor in state:
        if tensor is not None and not _are_alike(tensor, current):
            raise UserError(
                f"state: received one for {_kind(tensor)}; expected one for {_kind(current)}. "
                "Make a new one with net.initial_state(x) for this input."
            )
    if [tensor is not None for tensor in state] != list(_existing(neuron).values()):
        raise UserError(
            f"state: received one {'without' if state.trace is None else 'with'} a trace; the gradient rule "
            f"{type(rule).__name__} needs one {'with' if rule.has_trace else 'without'}. "
            "Make a new one with net.initial_state(x)."
        )


def _are_alike(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and first.dtype == second.dtype and first.device == second.device


def _kind(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}, {tensor.dtype} on {tensor.device}"
