"""BSO (paper, Section 4.2).

    W ← −sign(W ⊙ M − γ) ⊙ W                                             Eq. 12

A weight flips only when W·M is strictly above the threshold: at a tie the paper's sign(0) would make it 0.

Legend: W signs, M momentum, γ gamma.
"""

from functools import partial
from typing import Any

from torch import Tensor

from bsnn.kernels.operations import FlipThreshold
from bsnn.nn.bits import BinaryParameter
from bsnn.optim.base import FlipOptimizer, FlipRule, ThresholdRule
from bsnn.optim.settings import check_betas


def bso_flips(signs: Tensor, momentum: Tensor, gamma: float) -> Tensor:
    """BSO's rule (Eq. 12): which weights flip.

    Example:
        >>> bso_flips(torch.tensor([1.0, 1.0, -1.0]), torch.tensor([0.3, 0.1, 0.3]), gamma=0.2)
        tensor([ True, False, False])
    """
    return signs * momentum > gamma


class BSO(FlipOptimizer):
    """Binary spiking online optimization: flips where W·M > γ (Eq. 11 and 12).

    It is the Bop rule applied at each time step; Larq calls the paper's 1 − β "gamma" and its γ "threshold".

    Args:
        params: Binary parameters, or groups of them.
        gamma: γ, on the scale of the gradients and therefore of the loss.
        beta: Decay of the momentum.
        initial_momentum: δ: the momentum begins at −δ·W. With 0, the first update flips about half of all
            weights, harmless at the start and fatal for a trained network that lost its momentum.
        momentum_bits: 32, or 8 for a quarter of the memory; see `bsnn.optim.momentum`.

    Example:
        >>> layer = bsnn.BinaryLinear(8, 4)
        >>> flip = BSO([layer.weight], gamma=1e-3, beta=0.9)
        >>> layer(torch.ones(2, 8)).sum().backward()  # every weight wants to go down
        >>> num_up = int((bsnn.signs(layer.weight) == 1).sum())
        >>> flip.step()
        >>> flip.flip_counts == [num_up]
        True
    """

    label = "BSO"
    elementwise = True
    defers = True

    def __init__(
        self,
        params: Any,
        gamma: float = 5e-7,
        beta: float = 0.999,
        *,
        initial_momentum: float = 0.0,
        momentum_bits: int = 32,
    ) -> None:
        check_betas("beta", (beta,), 1)
        defaults = dict(gamma=gamma, one_minus_beta1=1 - beta, initial_momentum=initial_momentum)
        super().__init__(params, defaults, momentum_bits=momentum_bits)

    def rule(self, group: dict[str, Any], parameter: BinaryParameter, t: int | None) -> FlipRule:
        """See `FlipOptimizer.rule`."""
        return ThresholdRule(partial(bso_flips, gamma=group["gamma"]), FlipThreshold(group["gamma"]))
