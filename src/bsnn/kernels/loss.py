"""The loss of a time step on a GPU, with its gradient, in as few launches as a backend has.

L = ((1 − κ) cross-entropy + κ mean squared distance) / T, of logits z and a distribution y over C classes
∂L/∂z = ((1 − κ)(softmax(z) − y) + 2 κ (z − y) / C) / (B T)
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bsnn.kernels import operations
from bsnn.kernels.pieces import is_whole


class Mixture(NamedTuple):
    """The numbers of the loss."""

    mse_share: float
    """κ."""
    label_smoothing: float
    """Share of each label that is spread evenly over all classes."""
    time_steps: int
    """T."""


def mixed_loss(logits: Tensor, labels: Tensor, mixture: Mixture) -> Tensor | None:
    """The loss of logits `[B, C]` and class indices `[B]` or distributions `[B, C]`; None if torch computes it as well.

    That is so on a CPU, in other precision than single, and for labels that learn.
    """
    if not is_whole(logits) or logits.dtype != torch.float32 or labels.requires_grad or not logits.numel():
        return None
    return _MixedLoss.apply(logits, labels, mixture)  # pyright: ignore[reportReturnType]


class _MixedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, mixture: Mixture) -> Tensor:
        made = operations.mixed_loss(logits, labels, mixture)
        loss, gradient = _in_torch(logits, labels, mixture) if made is None else made
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.saved_tensors[0] * grad_outputs[0], None, None


def _in_torch(logits: Tensor, labels: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor]:
    batch, classes = logits.shape
    spread = mixture.label_smoothing
    if labels.dim() == 1:
        target = torch.full_like(logits, spread / classes)
        target.scatter_(1, labels[:, None].long(), 1 - spread + spread / classes)
    else:
        target = labels.to(logits.dtype)
        target = target * (1 - spread) + spread / classes if spread else target
    entropy_share = (1 - mixture.mse_share) / (batch * mixture.time_steps)
    distance_share = mixture.mse_share / (batch * classes * mixture.time_steps)
    logs, distance = logits.log_softmax(1), logits - target
    loss = torch.dot(target.reshape(-1), logs.view(-1)).mul_(-entropy_share)
    loss.add_(torch.dot(distance.view(-1), distance.view(-1)), alpha=distance_share)
    gradient = logs.exp_()
    if labels.dim() > 1:  # a distribution may add up to something else than 1, as it may in torch's cross-entropy
        gradient.mul_(target.sum(1, keepdim=True))
    return loss, gradient.sub_(target).mul_(entropy_share).add_(distance, alpha=2 * distance_share)
