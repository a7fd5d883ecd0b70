"""Neurons followed by a layer that no trace passes through, such as max pooling or dropout, with a trace of its own.

    â[t] = λ â[t−1] + f(s[t])

A synapse behind f computes W f(s[t]), so the trace that its gradient needs is that of f(s), not of s. If f is linear
and the same at every step, f(â) is the same thing, which is how pooling and flattening pass a trace on.

Legend: â trace, s spikes, λ leak, f the layer.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bsnn.errors import UserError
from bsnn.nn.neuron import Neuron, Stateful
from bsnn.nn.synapse import TracedLayer
from bsnn.nn.trace import Activity


class RetracedState(NamedTuple):
    """What neurons with a retraced layer carry."""

    neuron: Any
    """The state of the neurons."""
    trace: Tensor | None
    """Of what leaves the layer."""


class Retraced(Stateful):
    """Neurons and a layer behind them, whose output gets a trace of its own.

    Needed only between neurons and a synapse, and only for a rule with a trace; without one (SLTT, BPTT) it changes
    nothing. The trace needs a factor that is known without a membrane, because what leaves a layer has none: λ, as in
    OTTT. NDOT's factor is a ratio of membranes, so it is refused.

    `nn.Dropout` draws a new mask at every call, which is every time step; the trace then holds what each mask let
    through.

    Args:
        neuron: The neurons; the trace decays by their leak.
        layer: What their spikes pass through: any module with neither synapses nor state.

    Example:
        >>> net = bsnn.Sequential(Retraced(bsnn.LIF(), nn.MaxPool2d(2)), bsnn.BinaryConv2d(4, 8, 3, padding=1))
        >>> current, state = net(torch.randn(2, 4, 8, 8), None)
        >>> current.shape, state[0].trace.shape
        (torch.Size([2, 8, 4, 4]), torch.Size([2, 4, 4, 4]))
    """

    def __init__(self, neuron: Neuron, layer: nn.Module) -> None:
        super().__init__()
        if not isinstance(neuron, Neuron):
            raise UserError(f"Retraced: received {neuron!r} as neuron; expected a bsnn.Neuron, such as bsnn.LIF().")
        if not isinstance(layer, nn.Module) or any(isinstance(m, Stateful | TracedLayer) for m in layer.modules()):
            raise UserError(
                f"Retraced: received {layer!r} as layer; expected an nn.Module with neither state nor synapses, such "
                "as nn.MaxPool2d(2)."
            )
        self.neuron = neuron
        self.layer = layer

    def forward(self, current: Tensor, state: RetracedState | None) -> tuple[Activity, RetracedState]:
        """One time step."""
        rule = self.neuron.gradient
        if rule.has_trace and rule.needs_membrane:
            raise UserError(
                f"Retraced: the trace of {type(rule).__name__} depends on the membrane, and what leaves "
                f"{type(self.layer).__name__} has none; expected a rule whose trace does not, such as 'ottt', or one "
                "without a trace, such as 'sltt'."
            )
        activity, neuron_state = self.neuron(current, None if state is None else state.neuron)
        sent, trace = self.layer(activity.spikes), None
        if activity.trace is not None:
            with torch.no_grad():
                now = sent.to(activity.trace.dtype)
                past = torch.zeros_like(now) if state is None else state.trace
                if past is None or past.shape != now.shape:
                    received = "no trace" if past is None else f"a trace of shape {tuple(past.shape)}"
                    raise UserError(
                        f"state: received one with {received} for {type(self.layer).__name__}; expected shape "
                        f"{tuple(now.shape)}. Make a new one with net.initial_state(x)."
                    )
                # The membranes are not read; see above.
                trace = rule.trace(past, now, now, past, self.neuron.leak)
        return Activity(sent, trace), RetracedState(neuron_state, trace)
