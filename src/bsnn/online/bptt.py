"""Backpropagation through time, to compare with (paper, Section 3.2, Eq. 5): memory grows with T."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from bsnn.errors import UserError
from bsnn.nn.neuron import Neuron, map_state
from bsnn.nn.trace import as_output
from bsnn.online.update import Outcome
from bsnn.optim.drive import Updates


def bptt_update(
    net: nn.Module,
    frames: Iterable[Tensor],
    loss: Callable[[Tensor], Tensor],
    optimizers: Sequence[Optimizer],
    *,
    clip_norm: float | None = None,
    state: Any = None,
) -> Outcome:
    """Trains on one sequence with one backward pass through all of it, and one update.

    Arguments and result are those of `online_update`, and gradients of binary weights are folded into the momentum as
    they are there. T-BSO wants `time_steps=1` here: a sequence has one gradient.

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
    total_logits = total_loss = None
    for frame in frames:
        output, state = net(frame, state)
        logits = as_output(output)
        value = loss(logits)
        total_logits = logits if total_logits is None else total_logits + logits
        total_loss = value if total_loss is None else total_loss + value
    if total_logits is None or total_loss is None:
        raise UserError("bptt_update: received no frames; expected at least one time step.")
    with Updates(optimizers, clip_norm) as updates:
        total_loss.backward()
        updates.update(0)
    return Outcome(total_logits.detach(), total_loss.detach(), map_state(Tensor.detach, state))
