"""The loss of one time step (paper, Section 3.2, Eq. 8; the mixture is that of the authors' code)."""

from torch import Tensor
from torch.nn import functional as F


def step_loss(logits: Tensor, labels: Tensor, *, time_steps: int, mse_share: float = 0.05) -> Tensor:
    """((1 − κ) cross-entropy + κ mean squared distance to one-hot) / T.

    Args:
        logits: Logits of one time step, [B, classes].
        labels: Class indices, [B].
        time_steps: T; the losses of a sequence add up to their mean.
        mse_share: κ.

    Example:
        >>> step_loss(torch.zeros(2, 4), torch.tensor([1, 3]), time_steps=2, mse_share=0.0)
        tensor(0.6931)
    """
    one_hot = F.one_hot(labels, logits.shape[-1]).to(logits.dtype)
    mixed = (1 - mse_share) * F.cross_entropy(logits, labels) + mse_share * F.mse_loss(logits, one_hot)
    return mixed / time_steps
