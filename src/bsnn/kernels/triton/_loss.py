# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false
"""The loss of a time step and its gradient, in one pass over the logits; see `bsnn.kernels.loss`."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bsnn.kernels.triton._operator import counter, is_last, launch, operator

_PROGRAMS = 1024
_ELEMENTS = 1024


@triton.jit
def _loss_kernel(
    logits, labels, loss, gradient, partial, count, rows, classes, entropy_share, distance_share, smoothing,
    INDICES: tl.constexpr, ROWS: tl.constexpr, CLASSES: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    c = tl.arange(0, CLASSES)
    total = tl.zeros((), dtype=tl.float64)
    for start in range(program * ROWS, rows, programs * ROWS):
        r = start + tl.arange(0, ROWS)
        inside = (r < rows)[:, None] & (c < classes)[None, :]
        at = r.to(tl.int64)[:, None] * classes + c[None, :]
        z = tl.load(logits + at, mask=inside, other=float("-inf"))
        if INDICES:
            label = tl.load(labels + r, mask=r < rows, other=0)
            y = (c[None, :] == label[:, None]).to(tl.float32)
            # What is no class must not pass for a label without share: the loss and its gradient are then not finite.
            y = tl.where(((label >= 0) & (label < classes))[:, None], y, float("nan"))
        else:
            y = tl.load(labels + at, mask=inside, other=0.0)
        y = tl.where(inside, y * (1.0 - smoothing) + smoothing / classes, 0.0)
        highest = tl.max(z, axis=1)
        highest = tl.where(r < rows, highest, 0.0)
        raised = tl.exp(z - highest[:, None])
        normal = tl.sum(raised, axis=1)
        normal = tl.where(r < rows, normal, 1.0)
        weight = tl.sum(y, axis=1)  # 1, unless a distribution adds up to something else
        logs = z - highest[:, None] - tl.log(normal)[:, None]
        distance = tl.where(inside, z - y, 0.0)
        # A class of no share takes no part, as in torch, however unlikely it is.
        lost = distance * distance * distance_share - tl.where(y > 0, logs, 0.0) * y * entropy_share
        total += tl.sum(tl.where(inside, lost, 0.0).to(tl.float64))
        flows = (raised / normal[:, None] * weight[:, None] - y) * entropy_share + distance * (2.0 * distance_share)
        tl.store(gradient + at, flows, mask=inside)
    tl.store(partial + program, total)
    if is_last(count, programs):
        p = tl.arange(0, PROGRAMS)
        tl.store(loss, tl.sum(tl.load(partial + p, mask=p < programs, other=0.0)).to(tl.float32))


@operator(
    "Tensor logits, Tensor labels, Tensor(a!) loss, Tensor(b!) gradient, float entropy_share, float distance_share, "
    "float smoothing"
)
def mixed_loss(
    logits: Tensor, labels: Tensor, loss: Tensor, gradient: Tensor, entropy_share: float, distance_share: float,
    smoothing: float,
) -> None:  # fmt: skip
    """Writes the loss and its gradient.

    Args:
        logits: `[B, C]`.
        labels: Class indices `[B]`, or distributions `[B, C]`.
        loss: One number; written to.
        gradient: `[B, C]`; written to.
        entropy_share: Of each sample in the loss.
        distance_share: Of each squared distance in the loss.
        smoothing: Share of a label that is spread over all classes.
    """
    rows, classes = logits.shape
    wide = triton.next_power_of_2(classes)
    rows_at_once = max(1, min(_ELEMENTS // wide, triton.next_power_of_2(rows)))
    programs = min(triton.cdiv(rows, rows_at_once), _PROGRAMS)
    partial = logits.new_empty(programs, dtype=torch.float64)
    launch(
        _loss_kernel, (programs,), logits, labels, loss, gradient, partial, counter(logits, 1), rows, classes,
        entropy_share, distance_share, smoothing,
        INDICES=labels.dim() == 1, ROWS=rows_at_once, CLASSES=wide, PROGRAMS=_PROGRAMS,
    )  # fmt: skip


def loss_and_gradient(logits: Tensor, labels: Tensor, mixture: Any) -> tuple[Tensor, Tensor]:
    """See `operations.mixed_loss`."""
    logits, (batch, classes) = logits.contiguous(), logits.shape
    labels = labels.contiguous() if labels.dim() == 1 else labels.to(torch.float32).contiguous()
    loss, gradient = logits.new_empty(()), torch.empty_like(logits)
    share = 1 / (batch * mixture.time_steps)
    entropy_share, distance_share = (1 - mixture.mse_share) * share, mixture.mse_share * share / classes
    mixed_loss(logits, labels, loss, gradient, entropy_share, distance_share, mixture.label_smoothing)
    return loss, gradient
