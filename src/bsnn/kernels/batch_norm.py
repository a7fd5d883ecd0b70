"""BatchNorm: how a batch is normalized, in training and in evaluation, in a fused step and, compiled, by itself."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bsnn.kernels.compiler import alone, operator
from bsnn.kernels.operations import Norm, folded as folded_by_backend
from bsnn.kernels.pieces import is_whole, widest


def count_batch(num_batches: Tensor, rate: float | None) -> float:
    """Counts a batch of training; returns its share in the running statistics, as torch has it."""
    num_batches += 1
    return 1 / float(num_batches) if rate is None else rate


def folded(
    weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Scale and shift of evaluation, one number per channel, computed in double precision if the device has it.

    Example:
        >>> folded(None, None, torch.tensor([2.0]), torch.tensor([4.0]), 0.0)
        (tensor([0.5000]), tensor([-1.]))
    """
    # An operator has no gradient, and in evaluation mode, too, weight and bias may learn.
    fold = _fold_in_torch if torch.is_grad_enabled() else folded_norm
    return fold(weight, bias, mean, variance, eps)


def _fold_in_torch(
    weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    dtype, wide = mean.dtype, widest(mean.device)
    mean, deviation = mean.to(wide), (variance.to(wide) + eps).sqrt()
    scale = 1 / deviation if weight is None else weight.to(wide) / deviation
    shift = -mean * scale if bias is None else bias.to(wide) - mean * scale
    return scale.to(dtype), shift.to(dtype)


@operator(
    "(Tensor? weight, Tensor? bias, Tensor mean, Tensor variance, float eps) -> (Tensor, Tensor)",
    lambda weight, bias, mean, variance, eps: (torch.empty_like(mean), torch.empty_like(mean)),
    lambda made: tuple(alone(number) for number in made),
)
def folded_norm(
    weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """See `folded`."""
    made = None
    if weight is not None and bias is not None:
        made = folded_by_backend(weight, bias, mean, variance, eps)
    return _fold_in_torch(weight, bias, mean, variance, eps) if made is None else made


def scaled(x: Tensor, scale: Tensor, shift: Tensor, *, in_place: bool) -> Tensor:
    """Evaluation by one multiplication and one addition per number, rounded after each."""
    scale, shift = (numbers.view((1, -1) + (1,) * (x.dim() - 2)) for numbers in (scale, shift))
    return x.mul_(scale).add_(shift) if in_place else x * scale + shift


def _fake_batch_norm(x: Tensor, weight: Tensor | None, bias: Any, *rest: Any) -> tuple[Tensor, ...]:
    dtype = x.dtype if weight is None else weight.dtype
    mean, deviation = (x.new_empty(x.shape[1], dtype=dtype) for _ in range(2))
    running = (x.new_empty(0) if tensor is None else torch.empty_like(tensor) for tensor in rest[:3])
    return torch.empty_like(x), mean, deviation, *running


@operator(
    "(Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? variance, Tensor? num_batches, float? rate, "
    "float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _fake_batch_norm,
    lambda made: made,
)
def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, variance: Tensor | None,
    num_batches: Tensor | None, rate: float | None, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Training.

    Args:
        x: What is normalized.
        weight: Of BatchNorm.
        bias: Of BatchNorm.
        mean: Running mean, if there is one.
        variance: Running variance.
        num_batches: How many batches there were.
        rate: Share of the batch in the running statistics; None for one over the number of batches.
        eps: Of BatchNorm.

    Returns:
        BN(x), mean and 1/σ of the batch; new running mean, variance and number of batches, without elements if there
        are none.
    """
    mean, variance, num_batches = (None if old is None else old.clone() for old in (mean, variance, num_batches))
    share = 0.0 if num_batches is None else count_batch(num_batches, rate)
    made = torch.native_batch_norm(x, weight, bias, mean, variance, True, share, eps)
    return *made, *(x.new_empty(0) if new is None else new for new in (mean, variance, num_batches))


@operator(
    "(Tensor grad, Tensor x, Tensor? weight, Tensor mean, Tensor deviation) -> (Tensor, Tensor, Tensor)",
    lambda grad, x, weight, mean, deviation: (torch.empty_like(x), torch.empty_like(mean), torch.empty_like(mean)),
    lambda made: made,
)
def batch_norm_gradients(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, deviation: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias."""
    statistics = None, None, mean, deviation, True, 0.0
    return torch.ops.aten.native_batch_norm_backward(grad, x, weight, *statistics, [True] * 3)


class _Normalized(torch.autograd.Function):
    """Hands a normalized batch on; what flows back goes through BatchNorm."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, normal: Tensor, mean: Tensor, deviation: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, deviation)
        return normal

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, mean, deviation = ctx.saved_tensors
        of_x, of_weight, of_bias = batch_norm_gradients(grad_outputs[0], x, weight, mean, deviation)
        learns = weight is not None
        return of_x, of_weight if learns else None, of_bias if learns else None, None, None, None


def traced_batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None,
    running: tuple[Tensor | None, Tensor | None, Tensor | None], rate: float | None, eps: float,
) -> Tensor:  # fmt: skip
    """BatchNorm in training as the compiler sees it, with torch's own numbers.

    Args:
        x: What is normalized.
        weight: Of BatchNorm.
        bias: Of BatchNorm.
        running: Mean, variance and the number of batches, or None for each; written to.
        rate: Share of the batch in the running statistics; None for one over the number of batches.
        eps: Of BatchNorm.
    """
    with torch.no_grad():
        normal, mean, deviation, *new = batch_norm(x, weight, bias, *running, rate, eps)
        for target, value in zip(running, new, strict=True):
            if target is not None:
                target.copy_(value)
    made: Any = _Normalized.apply(x, weight, bias, normal, mean, deviation)
    return made


def training_norm(
    weight: Tensor, bias: Tensor, running: tuple[Tensor, Tensor, Tensor], rate: float | None, eps: float,
    counted: list[Tensor],
) -> Norm:  # fmt: skip
    """BatchNorm in training.

    Args:
        weight: Of BatchNorm.
        bias: Of BatchNorm.
        running: Mean, variance and the number of batches; written to.
        rate: Share of a batch in the running statistics; None for one over the number of batches.
        eps: Of BatchNorm.
        counted: Is given the number of batches if the caller is to add one to it, together with others'.
    """
    mean, variance, num_batches = running

    def normalize(current: Tensor, in_place: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
        share, written = rate, {}
        if share is None or not is_whole(current):
            share = count_batch(num_batches, rate)
        else:
            counted.append(num_batches)
        if in_place:
            written["out"] = current.detach(), torch.empty_like(weight), torch.empty_like(weight)
        return torch.native_batch_norm(current, weight, bias, mean, variance, True, share, eps, **written)

    return Norm(weight, bias, normalize, lambda: folded(weight, bias, mean, variance, eps), running, rate, eps)


def evaluation_norm(weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Norm:
    """BatchNorm in evaluation, by its folded scale and shift."""

    def normalize(current: Tensor, in_place: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
        return scaled(current, scale, shift, in_place=in_place), None, None

    return Norm(weight, bias, normalize, lambda: (scale, shift), None, None, eps)
