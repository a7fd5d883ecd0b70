"""The flip rules as pure functions: BSO and T-BSO (paper, Sections 4.2 and 4.3).

    W ← −sign(W ⊙ M − threshold) ⊙ W                                     Eq. 12, 14
    threshold = γ (BSO)      γ sqrt(v[t] + ε) (T-BSO)      γ sqrt(n) (Sigma-BSO)

A weight flips only when W·M is strictly above the threshold: at a tie the paper's sign(0) would make it 0.

Legend: W signs, M momentum, v second moment, n noise, γ gamma.
"""

import torch
from torch import Tensor


def bso_flips(signs: Tensor, momentum: Tensor, gamma: float) -> Tensor:
    """BSO's rule (Eq. 12): which weights flip.

    Example:
        >>> bso_flips(torch.tensor([1.0, 1.0, -1.0]), torch.tensor([0.3, 0.1, 0.3]), gamma=0.2)
        tensor([ True, False, False])
    """
    return signs * momentum > gamma


def tbso_flips(signs: Tensor, momentum: Tensor, second_moment: Tensor, gamma: float, eps: float) -> Tensor:
    """T-BSO's rule (Eq. 14): which weights flip at a time step with second moment v[t].

    Example:
        >>> v = torch.tensor(0.25)
        >>> tbso_flips(torch.tensor([1.0, 1.0]), torch.tensor([0.3, 0.1]), v, gamma=0.4, eps=0.0)
        tensor([ True, False])
    """
    return signs * momentum > gamma * torch.sqrt(second_moment + eps)
