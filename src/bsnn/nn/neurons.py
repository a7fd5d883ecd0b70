"""Neurons beside LIF: without leak, with learnable leak and threshold, with hard reset, with adaptive threshold.

Each says what its gradients are under the online rules, and what these leave out. All leave out what OTTT does: the
carry of later layers, and the path through the reset. `docs/extending.md` shows how to write another one.

Legend: u membrane, m membrane after its reset, s spikes, I current, λ leak, V threshold, â trace.
"""

import math
import numbers
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bsnn.errors import UserError
from bsnn.extras import named_object
from bsnn.nn.neuron import LIF, LIFState, Neuron, SoftResetNeuron
from bsnn.nn.surrogate import Surrogate
from bsnn.nn.trace import GradientRule, RuleName


class IF(SoftResetNeuron):
    """Integrate-and-fire neurons: LIF with λ = 1, so the membrane keeps all that it was given.

    A trace does not decay either: under OTTT it is the number of spikes so far.

    Args:
        threshold: V.
        surrogate: Stand-in for the derivative of the spike; `Sigmoid()` by default.
        gradient: As in `LIF`.

    Example:
        >>> neuron, state = IF(), None
        >>> for _ in range(3):
        ...     activity, state = neuron(torch.tensor([[0.4]]), state)
        >>> activity.spikes, state.membrane
        (tensor([[1.]]), tensor([[0.2000]]))
    """

    soft_reset = True

    def __init__(
        self,
        threshold: float = 1.0,
        surrogate: Surrogate | None = None,
        gradient: RuleName | str | GradientRule = "ottt",
    ) -> None:
        super().__init__(1.0, threshold, surrogate, gradient)

    def lowered_as(self) -> LIF:
        """What it is deployed as."""
        return LIF(1.0, self.threshold, self.surrogate, self.gradient)


class ParametricState(NamedTuple):
    """What a `ParametricLIF` carries; ∂m/∂λ and ∂m/∂V exist only if the gradient rule has a trace."""

    membrane: Tensor
    trace: Tensor | None
    leak_trace: Tensor | None
    """∂m/∂λ."""
    threshold_trace: Tensor | None
    """∂m/∂V."""


class ParametricLIF(Neuron):
    """LIF neurons with a leak and a threshold that are learned, one of each per layer.

    λ = σ(`leak_logit`) and V = exp(`log_threshold`), so that any value of these two parameters is a valid neuron. They
    belong to the real-valued optimizer; leave weight decay off them, since it would pull λ to 0.5 and V to 1.

    With m[t] = u[t] − V s[t], and no gradient through the spike of the reset, the membrane's own derivatives are

        ∂m[t]/∂λ = λ ∂m[t−1]/∂λ + m[t−1]        ∂m[t]/∂V = λ ∂m[t−1]/∂V − s[t]

    A rule with a trace carries both forward. So in the last spiking layer the gradients of λ and V are those of BPTT.
    SLTT cuts them, as it does every carry: what stays is m[t−1] for λ, and the comparison with V at the present step.
    BPTT needs neither.

    Args:
        leak: λ to begin with, above 0 and below 1.
        threshold: V to begin with.
        surrogate: Stand-in for the derivative of the spike; `Sigmoid()` by default.
        gradient: As in `LIF`.

    Example:
        >>> neuron = ParametricLIF(leak=0.5)
        >>> _, state = neuron(torch.tensor([[0.8]]), None)
        >>> activity, _ = neuron(torch.tensor([[0.4]]), state)
        >>> activity.spikes.sum().backward()
        >>> neuron.leak_logit.grad > 0  # had more stayed, more would have fired
        tensor(True)
    """

    state_type = ParametricState
    soft_reset = True
    leak_logit: nn.Parameter
    log_threshold: nn.Parameter

    @property
    def leak(self) -> float:
        """λ as a number; setting it sets the parameter."""
        return float(self.leak_logit.detach().sigmoid())

    @leak.setter
    def leak(self, value: float) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        if not 0 < value < 1:
            raise UserError(
                f"ParametricLIF: received leak={value}; expected λ above 0 and below 1, where it can be learned. "
                "A neuron without leak is bsnn.IF."
            )
        self._set("leak_logit", math.log(value) - math.log1p(-value))

    @property
    def threshold(self) -> float:
        """V as a number; setting it sets the parameter."""
        return float(self.log_threshold.detach().exp())

    @threshold.setter
    def threshold(self, value: float) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._set("log_threshold", math.log(value))

    def _set(self, name: str, value: float) -> None:
        known = dict(self.named_parameters(recurse=False))
        if name in known:  # the parameter itself stays, because an optimizer may hold it
            with torch.no_grad():
                known[name].fill_(value)
        else:
            self.register_parameter(name, nn.Parameter(torch.tensor(value)))

    def fire(self, current: Tensor, past: ParametricState) -> tuple[Tensor, ParametricState]:
        """See `Neuron.fire`."""
        leak, threshold = self.leak_logit.to(current.dtype).sigmoid(), self.log_threshold.to(current.dtype).exp()
        membrane, eligibility = past.membrane, (past.leak_trace, past.threshold_trace)
        for parameter, carried in zip((leak, threshold), eligibility, strict=True):
            if carried is not None:
                membrane = membrane + carried * (parameter - parameter.detach())  # adds 0, with the right derivative
        potential = (leak * membrane).add_(current)
        spikes = self.spike(potential - threshold)
        reset = self.reset_spikes(spikes)
        if past.leak_trace is not None and past.threshold_trace is not None:
            with torch.no_grad():
                eligibility = past.membrane + leak * past.leak_trace, leak * past.threshold_trace - reset
        return spikes, ParametricState(potential - threshold * reset, past.trace, *eligibility)

    def lowered_as(self) -> LIF:
        """What it is deployed as: its leak and threshold are numbers then."""
        return LIF(self.leak, self.threshold, self.surrogate, self.gradient)


class HardResetLIF(Neuron):
    """LIF neurons that are reset to 0 where they fire: u[t] = λ m[t−1] + I[t], m[t] = u[t] (1 − s[t]).

    A hard reset makes a neuron forget: ∂u[t]/∂u[t−1] is λ (1 − s[t−1]), 0 after a spike. That factor is one of the
    neuron that *receives* a current: its ∂u/∂W sums over the time since its own last spike, and differs from one pair
    of neurons to the next. A trace has one number per neuron that *sends*, and what a sender forgets does not change
    what its receivers remember: it decays by λ whether the sender fired or not. Hence, under OTTT,

    - spikes of hard-reset neurons that enter LIF neurons of the same leak have an exact trace;
    - for hard-reset neurons that receive, the gradient reaches back over their own resets, as if they were not reset.

    NDOT's factor is a ratio of membranes, 0/u at a spike and u/0 after it, so it is refused. SLTT and BPTT are exact.

    Args:
        leak: λ, the share of the membrane that stays.
        threshold: V.
        surrogate: Stand-in for the derivative of the spike; `Sigmoid()` by default.
        gradient: As in `LIF`, except `"ndot"`.

    Example:
        >>> activity, state = HardResetLIF()(torch.tensor([[1.2, 0.4]]), None)
        >>> state.membrane
        tensor([[0.0000, 0.4000]])
    """

    def fire(self, current: Tensor, past: LIFState) -> tuple[Tensor, LIFState]:
        """See `Neuron.fire`."""
        potential = self.leak * past.membrane + current
        spikes = self.spike(potential - self.threshold)
        return spikes, LIFState(potential * (1 - self.reset_spikes(spikes)), past.trace)


class AdaptiveState(NamedTuple):
    """What an `AdaptiveLIF` carries."""

    membrane: Tensor
    adaptation: Tensor
    """b, a decaying sum of the neuron's own spikes."""
    trace: Tensor | None


class AdaptiveLIF(Neuron):
    """LIF neurons whose threshold grows by their own spikes and decays again (Bellec et al., 2018).

        s[t] = H(u[t] − V − β b[t−1])        b[t] = ρ b[t−1] + s[t]        m[t] = u[t] − V s[t]

    BPTT goes through b as through any state, also if the reset is detached. Online rules leave the path through b out:
    it is one number for every pair of neurons, which no trace holds. All else is as in `LIF`.

    Args:
        leak: λ, the share of the membrane that stays.
        threshold: V, the threshold of a neuron that has not fired.
        surrogate: Stand-in for the derivative of the spike; `Sigmoid()` by default.
        gradient: As in `LIF`.
        adaptation: β, by how much a spike raises the threshold.
        adaptation_leak: ρ, the share of b that stays.

    Example:
        >>> neuron, state, fired = AdaptiveLIF(leak=0.0, adaptation=0.5, adaptation_leak=0.5), None, []
        >>> for _ in range(5):
        ...     activity, state = neuron(torch.tensor([[1.3]]), state)
        ...     fired.append(int(activity.spikes))
        >>> fired
        [1, 0, 1, 0, 0]
    """

    state_type = AdaptiveState
    soft_reset = True

    def __init__(
        self,
        leak: float = 0.5,
        threshold: float = 1.0,
        surrogate: Surrogate | None = None,
        gradient: RuleName | str | GradientRule = "ottt",
        *,
        adaptation: float = 0.2,
        adaptation_leak: float = 0.9,
    ) -> None:
        super().__init__(leak, threshold, surrogate, gradient)
        for name, value, largest in (
            ("adaptation", adaptation, math.inf),
            ("adaptation_leak", adaptation_leak, 1),
        ):
            if not isinstance(value, numbers.Real) or not 0 <= value <= largest:
                words = "0 or more" if largest == math.inf else "a share in [0, 1]"
                raise UserError(f"AdaptiveLIF: received {name}={value!r}; expected {words}, as a number.")
        self.adaptation = adaptation
        self.adaptation_leak = adaptation_leak

    def fire(self, current: Tensor, past: AdaptiveState) -> tuple[Tensor, AdaptiveState]:
        """See `Neuron.fire`."""
        potential = self.leak * past.membrane + current
        spikes = self.spike(potential - (self.threshold + self.adaptation * past.adaptation))
        membrane = potential - self.threshold * self.reset_spikes(spikes)
        return spikes, AdaptiveState(membrane, self.adaptation_leak * past.adaptation + spikes, past.trace)

    def extra_repr(self) -> str:
        """The constants, for printing."""
        adaptive = f"adaptation={self.adaptation:g}, adaptation_leak={self.adaptation_leak:g}"
        return f"{super().extra_repr()}, {adaptive}"


_NEURONS: dict[str, type[Neuron]] = {
    "lif": LIF,
    "if": IF,
    "plif": ParametricLIF,
    "hard-lif": HardResetLIF,
    "alif": AdaptiveLIF,
}


def neuron_named(name: str) -> type[Neuron]:
    """The class of a neuron by its name, or by `module:Class` for your own.

    Example:
        >>> neuron_named("plif").__name__
        'ParametricLIF'
    """
    found: Any = _NEURONS.get(name)
    if ":" in name:
        found = named_object(name, "neuron")
        if not (isinstance(found, type) and issubclass(found, Neuron)):
            raise UserError(f"neuron: {name} is {found!r}; expected a subclass of bsnn.Neuron.")
    if found is None:
        raise UserError(f"neuron: received {name!r}; expected one of {', '.join(_NEURONS)}, or module:Class.")
    return found
