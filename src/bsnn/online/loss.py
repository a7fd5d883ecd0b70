"""The loss of one time step (paper, Section 3.2, Eq. 8; the mixture is that of the authors' code), and TET's."""

from torch import Tensor
from torch.nn import functional as F

from bsnn.errors import UserError
from bsnn.kernels.loss import Mixture, mixed_loss
from bsnn.nn.trace import Activity, as_output


def tet_loss(logits: Tensor, labels: Tensor, mse_share: float = 1e-3, target: float = 1.0) -> Tensor:
    """(1 − κ) cross-entropy + κ mean squared distance of all logits from one number, of a time step (TET).

    Args:
        logits: Logits of one time step, [B, classes].
        labels: Class indices, [B], or a distribution for each sample, [B, classes].
        mse_share: κ.
        target: The number.

    Example:
        >>> tet_loss(torch.zeros(2, 4), torch.tensor([1, 3]), mse_share=0.5)  # (ln 4 + 1) / 2
        tensor(1.1931)
    """
    return (1 - mse_share) * F.cross_entropy(logits, labels) + mse_share * (logits - target).square().mean()


def step_loss(
    logits: Tensor | Activity, labels: Tensor, *, time_steps: int, mse_share: float = 0.05, label_smoothing: float = 0.0
) -> Tensor:
    """((1 − κ) cross-entropy + κ mean squared distance) / T, both to the labels' distribution over the classes.

    Args:
        logits: Logits of one time step, [B, classes]; of an activity, its spikes.
        labels: Class indices, [B], or a distribution for each sample, [B, classes], as mixup makes them.
        time_steps: T; the losses of a sequence add up to their mean.
        mse_share: κ.
        label_smoothing: Share ε of each label that is spread evenly over all classes.

    Example:
        >>> step_loss(torch.zeros(2, 4), torch.tensor([1, 3]), time_steps=2, mse_share=0.0)
        tensor(0.6931)
    """
    logits = as_output(logits)
    # Two comparisons, which a compiler can guard, where it takes `in` for its own.
    if labels.shape != logits.shape[:1] and labels.shape != logits.shape:
        raise UserError(
            f"step_loss: received labels of shape {tuple(labels.shape)} for logits of shape {tuple(logits.shape)}; "
            "expected class indices [batch], or a distribution over the classes for each sample, [batch, classes]."
        )
    made = mixed_loss(logits, labels, Mixture(mse_share, label_smoothing, time_steps)) if logits.dim() == 2 else None
    if made is not None:
        return made
    indices = labels.dim() < logits.dim()
    target = F.one_hot(labels, logits.shape[-1]).to(logits.dtype) if indices else labels.to(logits.dtype)
    if label_smoothing:
        target = (1 - label_smoothing) * target + label_smoothing / logits.shape[-1]
    # Class indices as they are if they can be: a sum over all classes would round otherwise.
    entropy = F.cross_entropy(logits, labels if indices and not label_smoothing else target)
    return ((1 - mse_share) * entropy + mse_share * F.mse_loss(logits, target)) / time_steps
