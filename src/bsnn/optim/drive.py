"""Flip optimizers and ordinary ones side by side: one call updates all of them, or none."""

from collections.abc import Iterable

import torch
from torch.optim import Optimizer

from bsnn.optim.base import FlipOptimizer, NotFinite


def update_all(optimizers: Iterable[Optimizer], t: int | None) -> None:
    """Lets every optimizer, flip or ordinary, use its gradients and forget them.

    A gradient that is not finite reaches none of them. Flip optimizers check theirs themselves and come first.
    Gradients are forgotten in any case.
    """
    optimizers = sorted(optimizers, key=lambda optimizer: not isinstance(optimizer, FlipOptimizer))
    try:
        for optimizer in optimizers:
            if not isinstance(optimizer, FlipOptimizer):
                _check_finite(optimizer)
        for optimizer in optimizers:
            if isinstance(optimizer, FlipOptimizer):
                optimizer.step(t=t)
            else:
                optimizer.step()
    finally:
        for optimizer in optimizers:
            optimizer.zero_grad()


def _check_finite(optimizer: Optimizer) -> None:
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if gradients and not torch.stack([gradient.isfinite().all() for gradient in gradients]).all():
        raise NotFinite(
            f"{type(optimizer).__name__}: a gradient of the real-valued parameters holds NaN or infinite values; "
            "expected finite ones. Nothing was updated. Look for bad inputs, or lower the learning rate."
        )


def accumulate_all(optimizers: Iterable[Optimizer], t: int) -> None:
    """Lets every flip optimizer fold its gradients in; ordinary ones let theirs add up until `update_all`."""
    optimizers = list(optimizers)
    try:
        for optimizer in optimizers:
            if isinstance(optimizer, FlipOptimizer):
                optimizer.accumulate(t=t)
    except NotFinite:
        for optimizer in optimizers:
            optimizer.zero_grad()
        raise
