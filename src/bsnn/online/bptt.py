"""Backpropagation through time, to compare with (paper, Section 3.2, Eq. 5): memory grows with T."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bsnn.errors import UserError
from bsnn.nn.neuron import Neuron, Stateful, map_state
from bsnn.online.update import Outcome
from bsnn.optim.drive import Updates


def bptt_update(
    net: Stateful,
    frames: Iterable[Tensor],
    loss: Callable[[Tensor], Tensor],
    optimizers: Sequence[Optimizer],
    *,
    clip_norm: float | None = None,
    state: Any = None,
    layer_by_layer: bool = False,
    mean_output: bool = False,
    penalty: Callable[[Any], Tensor] | None = None,
) -> Outcome:
    """Trains on one sequence with one backward pass through all of it, and one update.

    Arguments and result are those of `online_update`, and gradients of binary weights are folded into the momentum as
    they are there. T-BSO wants `time_steps=1` here: a sequence has one gradient. There are three more:

    Args:
        net: As in `online_update`.
        frames: As in `online_update`.
        loss: As in `online_update`.
        optimizers: As in `online_update`.
        clip_norm: As in `online_update`.
        state: As in `online_update`.
        layer_by_layer: Each layer computes all time steps before the next one begins (`net.sequence`), so that
            BatchNorm has the statistics of the whole sequence and not of each time step.
        mean_output: Take the loss of the logits' mean over time, as often as there are time steps, instead of the sum
            of the losses of all time steps.
        penalty: Added to the loss of the sequence, from the last state, which still has its graph.

    Example:
        >>> net = bsnn.models.vgg((8, 8), in_channels=1, weights="latent", neuron=bsnn.LIF(gradient="bptt"))
        >>> optimizers = [torch.optim.SGD(net.parameters(), lr=0.1)]
        >>> x, y = torch.randn(2, 1, 8, 8), torch.tensor([0, 1])
        >>> loss = functools.partial(bsnn.step_loss, labels=y, time_steps=4)
        >>> bptt_update(net, itertools.repeat(x, 4), loss, optimizers).logits.shape
        torch.Size([2, 10])
    """
    if any(not m.gradient.keeps_graph for m in net.modules() if isinstance(m, Neuron)):
        raise UserError(
            "bptt_update: the neurons of this network cut their graph at each time step; expected "
            "gradient='bptt'. Build it with LIF(gradient='bptt'), or use online_update."
        )
    steps = net.sequence if layer_by_layer else functools.partial(Stateful.sequence, net)
    logits, state = steps(list(frames), state)
    if not logits:
        raise UserError("bptt_update: received no frames; expected at least one time step.")
    total_logits, count = functools.reduce(torch.add, logits), len(logits)
    losses = [count * loss(total_logits / count)] if mean_output else map(loss, logits)
    total_loss = functools.reduce(torch.add, losses)
    if penalty is not None:
        total_loss = total_loss + penalty(state)
    with Updates(optimizers, clip_norm) as updates:
        total_loss.backward()
        updates.update(0)
    return Outcome(total_logits.detach(), total_loss.detach(), map_state(Tensor.detach, state))
