"""The one loop over time: forward, backward and update, one time step at a time (paper, Algorithm 1).

Real-time updates change the weights at every time step (Eq. 9), accumulated ones once a sequence (Eq. 10).
Memory does not depend on the number of time steps. The loop owns nothing: network, loss and optimizers are the
caller's.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.optim import Optimizer

from bsnn.errors import UserError
from bsnn.nn.fused import recycling_state
from bsnn.nn.neuron import Neuron, Stateful, map_state
from bsnn.nn.trace import as_output
from bsnn.optim.drive import Updates


class Outcome(NamedTuple):
    """What a pass over a sequence leaves: summed logits and losses without graph, and the state."""

    logits: Tensor
    loss: Tensor
    state: Any


def online_update(
    net: Stateful,
    frames: Iterable[Tensor],
    loss: Callable[[Tensor], Tensor],
    optimizers: Sequence[Optimizer],
    *,
    accumulate: bool = False,
    clip_norm: float | None = None,
    state: Any = None,
) -> Outcome:
    """Trains on one sequence.

    Gradients of binary weights are folded into the momentum as they are made (`bsnn.optim.folding`), so the loss must
    not be scaled for mixed precision: the momentum would get the scaled gradients, which nobody can tell from others.
    To use `torch.amp.GradScaler`, write the plain loop. An error leaves no gradients behind and no sequence unfinished;
    updates that were made stay.

    Args:
        net: Called as `logits, state = net(frame, state)`.
        frames: The input of each time step: `[T, B, ...]`, or `itertools.repeat(x, T)` for a still image.
        loss: Loss of one time step from its logits; from its spikes, if the network ends in neurons.
        optimizers: Flip optimizers and ordinary ones.
        accumulate: One update at the end of the sequence instead of one per time step.
        clip_norm: The largest norm of the gradients of a time step over all parameters of all optimizers, as torch's
            `clip_grad_norm_` has it. Gradients are then kept until all are known, which takes their memory.
        state: State to go on from; zeros by default.

    Returns:
        Logits and losses summed over time, and the last state.

    Example:
        >>> net = bsnn.models.vgg((8, 8), in_channels=1)
        >>> binary, real = bsnn.split_parameters(net)
        >>> optimizers = [bsnn.optim.TBSO(binary, time_steps=4), torch.optim.SGD(real, lr=0.1)]
        >>> x, y = torch.randn(2, 1, 8, 8), torch.tensor([0, 1])
        >>> loss = functools.partial(bsnn.step_loss, labels=y, time_steps=4)
        >>> online_update(net, itertools.repeat(x, 4), loss, optimizers).logits.shape
        torch.Size([2, 10])
    """
    check_online(net, "online_update")
    total_logits = total_loss = None
    # The caller's state stays as it is; what the loop itself has made is written over, step by step.
    state = map_state(Tensor.clone, state)
    with Updates(optimizers, clip_norm) as updates:
        for t, frame in enumerate(frames):
            with recycling_state(net):
                output, state = net(frame, state)
            logits = as_output(output)
            value = loss(logits)
            value.backward()
            logits, value = logits.detach(), value.detach()
            total_logits = logits if total_logits is None else total_logits + logits
            total_loss = value if total_loss is None else total_loss + value
            if accumulate:
                updates.accumulate(t)
            else:
                updates.update(t)
        if total_logits is None or total_loss is None:
            raise UserError("online_update: received no frames; expected at least one time step.")
        if accumulate:
            updates.update(None)
    return Outcome(total_logits, total_loss, state)


def check_online(net: Stateful, caller: str) -> None:
    """Refuses a network whose neurons keep their graph."""
    if any(m.gradient.keeps_graph for m in net.modules() if isinstance(m, Neuron)):
        raise UserError(
            f"{caller}: the neurons of this network keep their graph (gradient='bptt'); expected an online "
            "rule. Use bptt_update, or build it with LIF(gradient='ottt')."
        )
