"""The lean way: each gradient goes into the momentum as soon as backward has made it, and is freed."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.optim import Optimizer

from bsnn.errors import UserError
from bsnn.optim.base import FlipOptimizer


@contextmanager
def folding(*optimizers: Optimizer) -> Iterator[None]:
    """Within it, backward hands each binary gradient to the momentum at once and frees it.

    The flips are those of the plain loop, bit for bit, in less memory: the gradient of one binary parameter is alive at
    a time. In exchange, gradients cannot be clipped, scaled, logged or discarded: to read `.grad` between `backward`
    and `step` is an error, also for `clip_grad_norm_` and `torch.amp.GradScaler`. Each backward pass needs its own
    `step()` or `accumulate()`, which may follow after the block. A loss that was scaled, as `GradScaler.scale` does,
    looks like any other: unless the scaler is asked to step, its scaled gradients are what the momentum gets.

    A gradient that is not finite is left out, and `step` raises `NotFinite`; those of later layers are in the momentum
    by then. The same is true after any other error in the middle of a backward pass: when it leaves the block, the
    unfinished sequence is abandoned without a flip. Blocks can be nested; the outermost counts.

    Args:
        optimizers: Flip optimizers, and ordinary ones, for which nothing changes.

    Example:
        >>> layer = bsnn.BinaryLinear(8, 4)
        >>> flip = bsnn.optim.BSO([layer.weight])
        >>> with folding(flip):
        ...     layer(torch.ones(2, 8)).sum().backward()
        ...     flip.step()
        >>> layer.weight.grad is None
        True
    """
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise UserError(
                f"folding: received {type(optimizer).__name__}; expected optimizers, as in folding(flip, sgd)."
            )
    own = [o for o in dict.fromkeys(optimizers) if isinstance(o, FlipOptimizer) and not o.is_folding]
    parameters = [p for optimizer in own for group in optimizer.param_groups for p in group["params"]]
    if len(set(parameters)) < len(parameters):
        raise UserError("folding: two flip optimizers hold the same parameter; expected one for each.")
    for optimizer in own:
        optimizer.start_folding()
    try:
        yield
    except BaseException:
        for optimizer in own:
            optimizer.abandon()
        raise
    finally:
        for optimizer in own:
            optimizer.stop_folding()
