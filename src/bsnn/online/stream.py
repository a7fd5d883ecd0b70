"""Learning from a stream without end, in memory that stays the same."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from bsnn.errors import UserError
from bsnn.nn.fused import recycling_state
from bsnn.nn.neuron import Stateful, map_state
from bsnn.nn.trace import as_output
from bsnn.online.update import Outcome, check_online
from bsnn.optim import FlipOptimizer
from bsnn.optim.drive import Updates


class Moment(NamedTuple):
    """One time step of a stream."""

    frame: Tensor
    """Input, `[B, ...]`."""
    labels: Tensor | None = None
    """What the output should be now; None where nobody knows."""
    cut: bool = False
    """Whether something new begins here, so that the state starts at zeros."""


def stream_update(
    net: Stateful,
    stream: Iterable[Moment],
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizers: Sequence[Optimizer],
    *,
    clip_norm: float | None = None,
    state: Any = None,
) -> Iterator[Outcome]:
    """Trains on a stream without end, one time step at a time, in memory that stays the same.

    Every labeled step is an update. The state is carried through steps without labels, and cut where the stream says.
    The time index of T-BSO counts from the last cut, modulo its `time_steps`, which is the period here. Gradients of
    binary weights are folded into the momentum as they are made; see `online_update`.

    Args:
        net: Called as `logits, state = net(frame, state)`.
        stream: Any iterable of `Moment`.
        loss: Loss of one time step from its logits and labels; see `online_update`.
        optimizers: Flip optimizers and ordinary ones.
        clip_norm: The largest norm of the gradients of a time step; see `online_update`.
        state: State to go on from; zeros by default.

    Yields:
        Logits, loss (NaN without labels) and state of each time step. The next step writes over that state: copy it
        to keep it.

    Example:
        >>> net = bsnn.models.vgg((8, 8), in_channels=1)
        >>> binary, real = bsnn.split_parameters(net)
        >>> optimizers = [bsnn.optim.TBSO(binary, time_steps=4), torch.optim.SGD(real, lr=0.1)]
        >>> camera = (Moment(torch.randn(1, 1, 8, 8), torch.tensor([k % 10]) if k % 3 == 0 else None) for k in range(9))
        >>> steps = stream_update(net, camera, torch.nn.functional.cross_entropy, optimizers)
        >>> [bool(step.loss.isfinite()) for step in steps].count(True)
        3
    """
    check_online(net, "stream_update")
    period, since_cut = _period(optimizers), 0
    updates = Updates(optimizers, clip_norm)
    state = map_state(Tensor.clone, state)
    for frame, labels, cut in stream:
        if cut:
            state, since_cut = None, 0
        with recycling_state(net), torch.set_grad_enabled(labels is not None):
            output, state = net(frame, state)
        logits, value = as_output(output), torch.full((), torch.nan)
        if labels is not None:
            value = loss(logits, labels)
            with updates:  # not around the yield: what happens between time steps is the caller's
                value.backward()
                updates.update(since_cut if period is None else since_cut % period)
        since_cut += 1
        yield Outcome(logits.detach(), value.detach(), state)


def _period(optimizers: Sequence[Optimizer]) -> int | None:
    """The number of time steps that the flip optimizers tell apart."""
    periods = {o.time_steps for o in optimizers if isinstance(o, FlipOptimizer) and o.time_steps is not None}
    if len(periods) > 1:
        raise UserError(
            f"stream_update: received optimizers with time_steps={' and '.join(map(str, sorted(periods)))}; expected "
            "the same for all, because a stream has one count of time steps."
        )
    return periods.pop() if periods else None
