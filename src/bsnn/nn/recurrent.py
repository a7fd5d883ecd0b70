"""Layers of neurons that also receive their own spikes of the time step before.

    u[t] = λ m[t−1] + I[t] + R s[t−1]

The online gradient of R is ζ[t] â[t−1]ᵀ, from the trace of the neurons' own past spikes: the derivative of u[t] with
respect to R, if past spikes are taken as given. Left out is what R did to those spikes, the path backward in time
through s[t−1]; BPTT has it.

Legend: u membrane, m membrane after its reset, s spikes, â their trace, I current, λ leak, R recurrent weights,
ζ gradient of the membrane.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bsnn.errors import UserError
from bsnn.nn.neuron import Neuron, Stateful
from bsnn.nn.synapse import TracedLayer
from bsnn.nn.trace import Activity


class RecurrentState(NamedTuple):
    """What a recurrent layer carries."""

    neuron: Any
    """The state of the neurons, with the trace of their spikes."""
    spikes: Tensor
    """Of the last time step."""


class Recurrent(Stateful):
    """Neurons whose spikes come back to them, one time step later, through a synapse.

    Put the synapse that brings in the input before it. What R receives is R s[t−1]; at the first time step, zeros.

    Args:
        synapse: From the neurons to themselves, such as `BinaryLinear(n, n)` or a convolution that keeps the size.
        neuron: The neurons.

    Example:
        >>> net = bsnn.Sequential(nn.Linear(3, 8), Recurrent(bsnn.BinaryLinear(8, 8), bsnn.LIF()), nn.Linear(8, 2))
        >>> logits, state = net(torch.randn(5, 3), None)
        >>> logits.shape, state[0].spikes.shape
        (torch.Size([5, 2]), torch.Size([5, 8]))
    """

    def __init__(self, synapse: TracedLayer, neuron: Neuron) -> None:
        super().__init__()
        if not isinstance(synapse, TracedLayer):
            raise UserError(
                f"Recurrent: received {type(synapse).__name__} as synapse; expected one that learns from a trace: "
                "BinaryLinear, BinaryConv2d or, for real weights, TracedLinear(n, n, weights='real')."
            )
        if not isinstance(neuron, Neuron):
            raise UserError(f"Recurrent: received {neuron!r} as neuron; expected a bsnn.Neuron, such as bsnn.LIF().")
        self.synapse = synapse
        self.neuron = neuron

    def forward(self, current: Tensor, state: RecurrentState | None) -> tuple[Activity, RecurrentState]:
        """One time step."""
        rule = self.neuron.gradient
        if state is None:
            past, spikes = None, torch.zeros_like(current)
            kind = torch.promote_types(spikes.dtype, torch.float32)
            trace = torch.zeros_like(current, dtype=kind) if rule.has_trace else None
        else:
            past, spikes = state
            trace = past.trace
            if spikes.shape != current.shape:
                raise UserError(
                    f"state: received one with spikes of shape {tuple(spikes.shape)}; expected {tuple(current.shape)}. "
                    "Make a new one with net.initial_state(x) for this input."
                )
        returned = self.synapse(Activity(spikes, trace))
        if returned.shape != current.shape:
            raise UserError(
                f"Recurrent: the synapse makes currents of shape {tuple(returned.shape)} from spikes of shape "
                f"{tuple(current.shape)}; expected the same, because they come back to the neurons that sent them."
            )
        activity, now = self.neuron(current + returned, past)
        sent = activity.spikes if rule.keeps_graph else activity.spikes.detach()
        return activity, RecurrentState(now, sent)
