"""Flip optimizers and ordinary ones side by side: one call for all, and a bad gradient changes no weight."""

import math
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsnn.errors import UserError
from bsnn.kernels.pieces import is_apple, is_whole
from bsnn.kernels.torch_internals import can_skip_step, largest, step_unless
from bsnn.optim._folding import folding
from bsnn.optim._gradients import NotFinite
from bsnn.optim.base import FlipOptimizer


class Updates:
    """Updates all optimizers of a training loop, in a `with` block around its backward passes.

    Gradients are folded, or, if they are to be clipped, kept until they are. An error that leaves the block leaves no
    gradients behind and no sequence unfinished.

    Args:
        optimizers: Flip optimizers and ordinary ones.
        clip_norm: The largest norm of the gradients of a time step over all parameters, as for torch's
            `clip_grad_norm_`; None to leave them as they are.
    """

    def __init__(self, optimizers: Iterable[Optimizer], clip_norm: float | None = None) -> None:
        optimizers = list(optimizers)
        self._flip = [optimizer for optimizer in optimizers if isinstance(optimizer, FlipOptimizer)]
        self._ordinary = [optimizer for optimizer in optimizers if not isinstance(optimizer, FlipOptimizer)]
        if clip_norm is not None and not 0 < clip_norm < math.inf:
            raise UserError(f"clip_norm: received {clip_norm}; expected a finite number above 0, or None.")
        if clip_norm is not None and any(optimizer.is_folding for optimizer in self._flip):
            raise UserError(
                f"clip_norm: received {clip_norm} within bsnn.optim.folding, where no gradient is kept; expected None. "
                "Leave the block out."
            )
        self._clip_norm = clip_norm
        self._sums: dict[nn.Parameter, Tensor] = {}
        self._stack = ExitStack()

    def __enter__(self) -> "Updates":
        if self._clip_norm is None:
            self._stack.enter_context(folding(*self._flip))
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self._stack.close()
        if kind is not None:
            for optimizer in self._flip:
                optimizer.abandon()
            for optimizer in self._ordinary:
                optimizer.zero_grad()

    def accumulate(self, t: int) -> None:
        """Lets flip optimizers take the gradients of a time step; ordinary ones let theirs add up until `update`."""
        if self._clip_norm is not None:
            self._clip()
            # Put aside, so that the next time step's gradients are clipped by themselves.
            for parameter in _parameters(self._ordinary):
                if parameter.grad is not None:
                    past = self._sums.get(parameter)
                    self._sums[parameter] = parameter.grad if past is None else past + parameter.grad
                    parameter.grad = None
        for optimizer in self._flip:
            optimizer.accumulate(t=t)

    def update(self, t: int | None) -> None:
        """Lets every optimizer use its gradients and forget them.

        Raises:
            NotFinite: If a gradient of any of them is not finite. No weight has changed then; finite gradients that
                were folded or accumulated stay in the momentum.
        """
        if self._clip_norm is not None and t is not None:
            self._clip()
        for parameter, total in self._sums.items():
            parameter.grad = total
        self._sums = {}
        deferring = next((optimizer for optimizer in self._flip if optimizer.defers), None)
        deferred = {o: _refusal(o) for o in self._ordinary if deferring is not None and _can_defer(o)}
        for optimizer in self._ordinary:
            if optimizer not in deferred:
                _check_finite(optimizer)
        for optimizer in self._flip:
            optimizer.check_finite()
            if t is not None:
                optimizer.checked_time(t)
        for optimizer in self._flip:
            for refusal in [*deferred.values(), *(r for o in self._flip if o is not optimizer for r in o.refusals())]:
                optimizer.refusal(refusal.device).add_(refusal, alpha=0)
        for optimizer in self._flip:
            optimizer.step(t=t)
        for optimizer in self._ordinary:
            if optimizer in deferred and deferring is not None:
                step_unless(optimizer, deferring.refusal(deferred[optimizer].device))
            else:
                optimizer.step()
        for optimizer in [*self._flip, *self._ordinary]:
            optimizer.zero_grad()

    def _clip(self) -> None:
        assert self._clip_norm is not None
        nn.utils.clip_grad_norm_(_parameters([*self._flip, *self._ordinary]), self._clip_norm)


def _parameters(optimizers: Iterable[Optimizer]) -> list[nn.Parameter]:
    """The parameters of all optimizers, each once."""
    return list(dict.fromkeys(p for o in optimizers for group in o.param_groups for p in group["params"]))


def _can_defer(optimizer: Optimizer) -> bool:
    """Whether nobody need wait to know if all gradients of an optimizer are finite.

    On Apple's GPUs, fused optimizers step whatever they are told (pytorch#186360).
    """
    given = [p for p in _parameters([optimizer]) if p.grad is not None]
    return bool(given) and can_skip_step(optimizer) and all(is_whole(p) and not is_apple(p.device) for p in given)


def _refusal(optimizer: Optimizer) -> Tensor:
    """A number that is finite if all gradients of an optimizer are; on their device."""
    return largest([p.grad for p in _parameters([optimizer]) if p.grad is not None])


def _check_finite(optimizer: Optimizer) -> None:
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    if gradients and not torch.stack([gradient.isfinite().all() for gradient in gradients]).all():
        raise NotFinite(
            f"{type(optimizer).__name__}: a gradient of the real-valued parameters holds NaN or infinite values; "
            "expected finite ones. No weight was updated. Look for bad inputs, or lower the learning rate."
        )
