"""Sigma-BSO, a rule of our own: a flip threshold in standard deviations of the momentum's noise.

    n ← β1² n + (1 − β1)² mean(G²[t])                                    one number per layer
    W ← −sign(W ⊙ M − γ sqrt(n)) ⊙ W

Legend: W signs, M momentum, n noise, G gradient, γ gamma.
"""

from typing import Any

import torch
from torch import Tensor

from bsnn.kernels.pieces import mean_square, widest
from bsnn.nn.bits import BinaryParameter
from bsnn.optim.base import FlipRule
from bsnn.optim.momentum import moved
from bsnn.optim.rules.bso import BSO
from bsnn.optim.rules.tbso import tbso_rule


class SigmaBSO(BSO):
    """BSO with a threshold in standard deviations of the momentum's noise: flips where W·M > γ sqrt(n).

    n is the variance that M would have if its gradients were independent and of mean zero: it follows the momentum
    exactly, from its first update on and through any schedule. γ then means the same whatever the rate of the momentum,
    the loss and the layer, and training settles without annealing, which suits a stream without a known end.

    Args:
        params: Binary parameters, or groups of them.
        gamma: γ, in standard deviations.
        beta: Decay of the momentum.
        initial_momentum: δ: the momentum begins at −δ·W; see `BSO`.
        momentum_bits: 32, or 8 for a quarter of the memory; see `bsnn.optim.momentum`.

    Example:
        >>> layer = bsnn.BinaryLinear(8, 4)
        >>> flip = SigmaBSO([layer.weight], gamma=0.5)
        >>> layer(torch.ones(2, 8)).sum().backward()  # every weight wants to go down, by one standard deviation
        >>> flip.step()
        >>> bsnn.signs(layer.weight).unique()
        tensor([-1.])
    """

    label = "Sigma-BSO"
    elementwise = True
    defers = True

    def __init__(
        self,
        params: Any,
        gamma: float = 2.0,
        beta: float = 0.99,
        *,
        initial_momentum: float = 0.0,
        momentum_bits: int = 32,
    ) -> None:
        super().__init__(params, gamma, beta, initial_momentum=initial_momentum, momentum_bits=momentum_bits)

    def initial_state(self, parameter: BinaryParameter) -> dict[str, Tensor]:
        """See `FlipOptimizer.initial_state`."""
        noise = torch.zeros((), dtype=widest(parameter.device), device=parameter.device)
        return {**super().initial_state(parameter), "noise": noise}

    def set_momentum(self, parameter: BinaryParameter, momentum: Tensor) -> None:
        """Sets M of a parameter. How much of it is noise is not known: all of it, so that few weights flip at once."""
        super().set_momentum(parameter, momentum)
        self.state[parameter]["noise"] = mean_square(momentum)

    def observe(self, group: dict[str, Any], parameter: BinaryParameter, mean_square: Tensor, t: int | None) -> None:
        """See `FlipOptimizer.observe`."""
        state, rate = self.state[parameter], group["one_minus_beta1"]
        kept = 1.0 if parameter in self._accumulated else (1 - rate) ** 2
        noise = moved(state["noise"], parameter)
        state["noise"] = self.accepted(kept * noise + rate**2 * mean_square, noise)

    def rule(self, group: dict[str, Any], parameter: BinaryParameter, t: int | None) -> FlipRule:
        """See `FlipOptimizer.rule`."""
        return tbso_rule(self.state[parameter]["noise"], group["gamma"], eps=0.0)
