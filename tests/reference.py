"""Plain twins of what the library does fast: dense ±1 weights, ordinary autograd, one obvious line after another."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class DenseFlips:
    """BSO and T-BSO on dense float weights, as the paper writes them."""

    def __init__(
        self, weights: Tensor, gamma: float, beta1: float, beta2: float = 0.0, eps: float = 0.0, time_steps: int = 0
    ) -> None:
        self.weights = weights.clone()
        self.gamma, self.rate1, self.rate2, self.eps = gamma, 1 - beta1, 1 - beta2, eps
        self.momentum = torch.zeros_like(weights)
        self.second_moments = [0.0] * time_steps

    def update(self, gradient: Tensor, t: int | None = None) -> None:
        self.momentum = (1 - self.rate1) * self.momentum + self.rate1 * gradient
        threshold = self.gamma
        if t is not None:
            mean_square = float((gradient.double() ** 2).mean())
            self.second_moments[t] += self.rate2 * (mean_square - self.second_moments[t])
            threshold = self.gamma * (self.second_moments[t] + self.eps) ** 0.5
        self.weights = torch.where(self.weights * self.momentum > threshold, -self.weights, self.weights)


def bop(weights: Tensor, momentum: Tensor, gradient: Tensor, rate: float, threshold: float) -> tuple[Tensor, Tensor]:
    """The Bop update of Helwegen et al. (2019), Algorithm 1, with their names: rate is their γ, threshold their τ."""
    momentum = (1 - rate) * momentum + rate * gradient
    flips = (momentum.abs() > threshold) & (torch.sign(momentum) == torch.sign(weights))
    return torch.where(flips, -weights, weights), momentum


def soft_spike(x: Tensor, alpha: float = 4.0) -> Tensor:
    """A hard spike whose gradient is that of sigmoid(αx), without a custom autograd function."""
    soft = torch.sigmoid(alpha * x)
    return (x >= 0).to(x.dtype) + (soft - soft.detach())  # the bracket is exactly 0


def lif_network_loss(
    frames: Tensor,
    layers: Sequence[Callable[[Tensor], Tensor]],
    leaks: Sequence[float],
    readout: Callable[[Tensor], Tensor],
    step_loss: Callable[[Tensor], Tensor],
    carried: Sequence[float],
    spike: Callable[[Tensor], Tensor] = soft_spike,
    threshold: float = 1.0,
    reset: bool = True,
) -> Tensor:
    """Sum of the losses of a chain of LIF layers over time, as one graph.

    `carried[l]` stands for λ in the gradient ∂u[t]/∂u[t−1] of layer l: the leak itself keeps it, 0 cuts it. The
    reset is always detached.
    """
    membranes: list[Tensor | None] = [None] * len(layers)
    total = frames.new_zeros(())
    for x in frames:
        for index, (layer, leak) in enumerate(zip(layers, leaks, strict=True)):
            current, past = layer(x), membranes[index]
            if past is not None:
                current = current + leak * past.detach() + carried[index] * (past - past.detach())
            x = spike(current - threshold)
            membranes[index] = current - threshold * x.detach() if reset else current
        total = total + step_loss(readout(x))
    return total


def watched(net: nn.Module) -> nn.Module:
    """The same network with a hook on every module, whose modules therefore run one by one as they are."""
    for module in net.modules():
        module.register_forward_hook(lambda *_: None)
    return net
