"""Neurons of the methods that we compare with.

Q-SNN's have an 8-bit membrane, ATIF's a threshold that is learned, SEW's a leak that is learned; and there is the
rectifier of the networks that CBP converts. Recipes name them as `bsnn.nn.compared:Class`. Legend: u membrane, m
membrane after its reset, s spikes, I current, λ leak, V and θ thresholds.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bsnn.errors import UserError
from bsnn.nn.neuron import LIFState, Neuron
from bsnn.nn.surrogate import Surrogate, spike
from bsnn.nn.trace import GradientRule, RuleName


class CountingState(NamedTuple):
    """What an `EightBitLIF` carries."""

    membrane: Tensor
    fired: Tensor
    """Spikes so far, with their graph under BPTT."""
    trace: Tensor | None


class EightBitLIF(Neuron):
    """Q-SNN's neurons: hard reset, and a membrane of eight bits.

        u[t] = λ m[t−1] + I[t]      s[t] = H(u[t] − V), 1 strictly above V      m[t] = Q(tanh(u[t] (1 − s[t])))

    Q(x) = α round(127 x / α) / 127 with α = max|x| over the layer; backward takes Q for the identity. The state counts
    spikes, so that a method may regulate their rate. Under online rules the trace is as in `HardResetLIF`.

    Args:
        leak: λ, the share of the membrane that stays.
        threshold: V.
        surrogate: Stand-in for the derivative of the spike, symmetric; `Sigmoid()` by default.
        gradient: As in `LIF`, except `"ndot"`.

    Example:
        >>> activity, state = EightBitLIF()(torch.tensor([[1.0, 1.2, 0.4]]), None)
        >>> activity.spikes, state.membrane
        (tensor([[0., 1., 0.]]), tensor([[0.7616, 0.0000, 0.3778]]))
    """

    state_type = CountingState

    def spike(self, distance: Tensor) -> Tensor:
        """Fires where u is strictly above V."""
        return 1 - spike(-distance, self.surrogate)

    def fire(self, current: Tensor, past: CountingState) -> tuple[Tensor, CountingState]:
        """See `Neuron.fire`."""
        potential = self.leak * past.membrane + current
        spikes = self.spike(potential - self.threshold)
        membrane = eight_bits(torch.tanh(potential * (1 - self.reset_spikes(spikes))))
        return spikes, CountingState(membrane, past.fired + spikes, past.trace)


def eight_bits(x: Tensor) -> Tensor:
    """α round(127 x / α) / 127 with α = max|x|; backward is the identity.

    Example:
        >>> eight_bits(torch.tensor([1.0, 0.5, 0.0])) * 127
        tensor([127.,  64.,   0.])
    """
    largest = x.detach().abs().amax().clamp(min=torch.finfo(x.dtype).tiny)
    rounded = largest * torch.round(127 * x.detach() / largest) / 127
    return rounded + (x - x.detach())  # adds 0, with the derivative of x


class TrainableThresholdIF(Neuron):
    """ATIF's neurons: no leak, a soft reset, and spikes whose size is the threshold, which is learned.

        u[t] = m[t−1] + I[t]        z[t] = H(u[t] − θ)        m[t] = u[t] − θ z[t]        sent on: θ z[t]

    One θ per layer, which begins at a random number from U(0.8, 1). Online rules learn it from the present time step
    alone; BPTT in full is what the method has (`"bptt-full"`).

    Args:
        surrogate: Stand-in for the derivative of the spike; `Sigmoid()` by default.
        gradient: As in `LIF`, except `"ndot"`.

    Example:
        >>> neuron = TrainableThresholdIF()
        >>> activity, state = neuron(torch.tensor([[1.5]]), None)
        >>> bool(activity.spikes == neuron.theta), bool(state.membrane == 1.5 - neuron.theta)
        (True, True)
    """

    theta: nn.Parameter

    def __init__(self, surrogate: Surrogate | None = None, gradient: RuleName | str | GradientRule = "ottt") -> None:
        super().__init__(1.0, 1.0, surrogate, gradient)
        self.theta = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws θ anew; copies of a neuron would otherwise all begin at the same one."""
        nn.init.uniform_(self.theta, 0.8, 1.0)

    def fire(self, current: Tensor, past: LIFState) -> tuple[Tensor, LIFState]:
        """See `Neuron.fire`."""
        theta = self.theta.to(current.dtype)
        potential = past.membrane + current
        fired = self.spike(potential - theta)
        membrane = potential - theta * self.reset_spikes(fired)
        return theta * fired, LIFState(membrane, past.trace)

    def extra_repr(self) -> str:
        """The threshold, for printing."""
        rule = type(self.gradient).__name__
        return f"theta={float(self.theta.detach()):g}, surrogate={self.surrogate}, gradient={rule}"


class InputDecayPLIF(Neuron):
    """The PLIF neurons of SEW-ResNet: one leak per layer that is learned, which the input has a share in; hard reset.

        u[t] = m[t−1] + σ(w) (I[t] − m[t−1])        s[t] = H(u[t] − V)        m[t] = u[t] (1 − s[t])

    σ(w) = 1/τ. Online rules learn w from the present time step alone.

    Args:
        leak: 1 − 1/τ to begin with, above 0 and below 1.
        threshold: V.
        surrogate: Stand-in for the derivative of the spike; `Sigmoid()` by default.
        gradient: As in `LIF`, except `"ndot"`.

    Example:
        >>> activity, state = InputDecayPLIF()(torch.tensor([[1.0, 2.0]]), None)
        >>> activity.spikes.detach(), state.membrane.detach()
        (tensor([[0., 1.]]), tensor([[0.5000, 0.0000]]))
    """

    rate_logit: nn.Parameter

    def __init__(
        self,
        leak: float = 0.5,
        threshold: float = 1.0,
        surrogate: Surrogate | None = None,
        gradient: RuleName | str | GradientRule = "bptt",
    ) -> None:
        super().__init__(leak, threshold, surrogate, gradient)
        if not 0 < leak < 1:
            raise UserError(f"InputDecayPLIF: received leak={leak}; expected a number above 0 and below 1.")
        self.rate_logit = nn.Parameter(torch.tensor(math.log((1 - leak) / leak)))

    def fire(self, current: Tensor, past: LIFState) -> tuple[Tensor, LIFState]:
        """See `Neuron.fire`."""
        rate = self.rate_logit.to(current.dtype).sigmoid()
        potential = past.membrane + rate * (current - past.membrane)
        spikes = self.spike(potential - self.threshold)
        return spikes, LIFState(potential * (1 - self.reset_spikes(spikes)), past.trace)


class Rectifier(Neuron):
    """No spikes but max(0, I): what an ordinary network has in the place of neurons, to be trained at T = 1.

    Args:
        gradient: As in `LIF`, without effect: nothing is carried.

    Example:
        >>> Rectifier()(torch.tensor([[-1.0, 2.0]]), None)[0].spikes
        tensor([[0., 2.]])
    """

    def __init__(self, gradient: RuleName | str | GradientRule = "bptt") -> None:
        super().__init__(gradient=gradient)

    def fire(self, current: Tensor, past: LIFState) -> tuple[Tensor, LIFState]:
        """See `Neuron.fire`."""
        return current.relu(), past
