"""A spiking transformer with spatial-temporal self-attention (STS-T), without softmax.

    A = (Q Kᵀ + bias[Δt, Δh, Δw]) ⊙ mask        out = LIF(0.125 A V)        Q, K, V = LIF(BN(1×1 convolution))

Tokens are the N = H·W places of all time steps. The mask lets no token attend to later steps, so the network can go
step by step: its state holds the keys and values so far. That memory grows with T, by online rules too. An online rule
leaves out Σ over τ < t of ∂L[t]/∂K[τ] · ∂K[τ]/∂W, and the same for V: what the present loss says about past keys and
values. No trace can stand in for it, because the factor Q[t] that K[τ] meets is not known at τ. What is left is SLTT.

Shape letters: B batch, D channels, N tokens of a time step, M tokens so far.
"""

import copy
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bsnn.errors import UserError
from bsnn.models.vgg import scaled
from bsnn.nn.network import ImageNetwork, Residual, Sequential
from bsnn.nn.neuron import Neuron, Stateful
from bsnn.nn.norm import BatchNorm2d
from bsnn.nn.synapse import TracedConv2d, Weights

_SCALE = 0.125


class AttentionState(NamedTuple):
    """What the attention carries: the states of its neurons, and the keys and values of all steps so far."""

    neurons: tuple[Any, ...]
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class SpikingAttention(Stateful):
    """Self-attention over the tokens of this time step and all before it, with one head.

    Args:
        channels: D.
        size: Height and width of the map of tokens.
        time_steps: The largest number of time steps, for which there is a bias.
        neuron: The neuron to copy into every layer.
        weights: Of its convolutions.
    """

    def __init__(self, channels: int, size: int, time_steps: int, neuron: Neuron, weights: Weights = "real") -> None:
        super().__init__()
        self.size, self.time_steps = size, time_steps
        self.query, self.key, self.value = (_projection(channels, neuron, weights, bias=False) for _ in range(3))
        self.neuron = copy.deepcopy(neuron)
        self.out = _projection(channels, neuron, weights, bias=True)
        # Indexed by Δt = 0 ... T − 1, as no token attends to later steps, and by Δh and Δw from 1 − size on.
        self.bias = nn.Parameter(torch.zeros(time_steps, 2 * size - 1, 2 * size - 1))
        self.register_buffer("_places", _place_index(size), persistent=False)

    def bias_NM(self, step: int) -> Tensor:
        """bias[Δt, Δh, Δw] of the tokens of a time step, from 0, against all tokens up to it."""
        places: Any = self._places
        rows = self.bias.flatten(1)[:, places]  # [T, N, N]
        return torch.cat([rows[step - past] for past in range(step + 1)], dim=1)

    def forward(self, x: Tensor, state: AttentionState | None) -> tuple[Tensor, AttentionState]:
        """One time step."""
        (sent,), state = self.sequence([x], state)
        return sent, state

    def sequence(self, frames: Sequence[Tensor], state: AttentionState | None) -> tuple[list[Tensor], AttentionState]:
        """All time steps, each attending to those before it."""
        past = state or AttentionState((None,) * 5, (), ())
        first = len(past.keys)
        if first + len(frames) > self.time_steps:
            raise UserError(
                f"SpikingAttention: received time step {first + len(frames)}; expected at most {self.time_steps}, for "
                "which it has a bias. Build the network with more time_steps."
            )
        if any(tuple(frame.shape[2:]) != (self.size, self.size) for frame in frames):
            raise UserError(
                f"SpikingAttention: received a map of {tuple(frames[0].shape[2:])} tokens; expected {self.size} each "
                "way, for which it has a bias. Build the network with the image_size of these images."
            )
        queries, now_q = self.query.sequence(frames, past.neurons[0])
        keys, now_k = self.key.sequence(frames, past.neurons[1])
        values, now_v = self.value.sequence(frames, past.neurons[2])
        all_keys, all_values = (*past.keys, *keys), (*past.values, *values)
        currents = []
        for step, query in enumerate(queries, start=first):
            key_BDM, value_BDM = (
                torch.cat([part.flatten(2) for part in parts[: step + 1]], dim=2) for parts in (all_keys, all_values)
            )
            weights_BNM = query.flatten(2).transpose(1, 2) @ key_BDM + self.bias_NM(step)
            mixed_BDN = value_BDM @ weights_BNM.transpose(1, 2)
            currents.append(_SCALE * mixed_BDN.view_as(query))
        spikes, now_s = self.neuron.sequence(currents, past.neurons[3])
        sent, now_o = self.out.sequence(spikes, past.neurons[4])
        if not self.neuron.gradient.keeps_graph:
            all_keys, all_values = (tuple(part.detach() for part in parts) for parts in (all_keys, all_values))
        return sent, AttentionState((now_q, now_k, now_v, now_s, now_o), all_keys, all_values)


def _projection(channels: int, neuron: Neuron, weights: Weights, *, bias: bool) -> Sequential:
    """LIF(BN(1×1 convolution)); a bias only if the weights are real-valued."""
    conv = nn.Conv2d(channels, channels, 1, bias=bias)
    if weights != "real":
        conv = TracedConv2d(channels, channels, 1, weights=weights)
    return Sequential({"conv": conv, "norm": BatchNorm2d(channels), "lif": copy.deepcopy(neuron)})


def _place_index(size: int) -> Tensor:
    """The index of Δh and Δw into the flat bias, for every pair of places, [N, N]."""
    places = torch.tensor(list(itertools.product(range(size), repeat=2)))
    difference = places[:, None] - places[None, :] + size - 1
    return difference[..., 0] * (2 * size - 1) + difference[..., 1]


class SpikingTransformer(ImageNetwork):
    """A network whose state cannot be one of zeros: there are no keys before the first step."""

    def initial_state(self, x: Tensor) -> None:
        """None, which stands for the state before the first time step."""


def stst(
    num_classes: int = 35,
    in_channels: int = 1,
    width: float = 1.0,
    *,
    time_steps: int = 4,
    image_size: int = 32,
    depth: int = 2,
    dropout: float = 0.3,
    weights: Weights = "real",
    neuron: Neuron,
) -> SpikingTransformer:
    """The spiking transformer of STS-T.

    The stem is conv3-BN-LIF-MaxPool(3, 2, 1) at 1/16, 1/8, 1/4 and all of the 256 channels, then conv3-BN-LIF with a
    skip. Blocks are x + attention(x) and x + MLP(x), an MLP being two 1×1 convolutions with BatchNorm and neurons.
    The head is a spatial mean and a linear layer at each step.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of an image.
        width: Factor on the 256 channels, rounded to a multiple of 16.
        time_steps: The largest number of time steps.
        image_size: Height and width of the images; the stem leaves a sixteenth of each, which are the tokens.
        depth: Number of blocks.
        dropout: Before the head.
        weights: Of the convolutions in the blocks; the stem is real-valued.
        neuron: The neuron to copy into every layer, of a gradient rule without a trace.

    Example:
        >>> net = stst(neuron=bsnn.HardResetLIF(gradient="bptt"))
        >>> round(bsnn.model_size(net).stored_bytes / 1e6, 2)  # Table 5 has 6.24
        6.26
    """
    if image_size < 1:
        raise UserError(f"image_size: received {image_size}; expected the height and width of the images.")
    if neuron.gradient.has_trace:
        raise UserError(
            f"stst: received the gradient rule {type(neuron.gradient).__name__}; expected one without a trace, such as "
            "'bptt' or 'sltt': keys and values are multiplied with each other, and a product of spikes has no trace."
        )
    channels = 16 * scaled(16, width)
    made: dict[str, nn.Module] = {}
    entering = in_channels
    for number, leaving in enumerate((channels // 16, channels // 8, channels // 4, channels), start=1):
        made |= _conv(f"{number}", entering, leaving, neuron)
        made[f"pool{number}"] = nn.MaxPool2d(3, stride=2, padding=1)
        entering = leaving
    made["position"] = Residual(Sequential(_conv("", channels, channels, neuron)))
    for number in range(1, depth + 1):
        made[f"attention{number}"] = Residual(
            SpikingAttention(channels, -(-image_size // 16), time_steps, neuron, weights)
        )
        mlp = [_projection(channels, neuron, weights, bias=True) for _ in range(2)]
        made[f"mlp{number}"] = Residual(Sequential(*mlp))
    made["pool"] = nn.AdaptiveAvgPool2d(1)
    made["flatten"] = nn.Flatten()
    made["dropout"] = nn.Dropout(dropout)
    made["head"] = nn.Linear(channels, num_classes)
    return SpikingTransformer(made, in_channels, minimum_size=1)


def _conv(name: str, entering: int, leaving: int, neuron: Neuron) -> dict[str, nn.Module]:
    conv = nn.Conv2d(entering, leaving, 3, padding=1, bias=False)
    return {f"conv{name}": conv, f"norm{name}": BatchNorm2d(leaving), f"lif{name}": copy.deepcopy(neuron)}
