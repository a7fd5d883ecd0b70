"""Plain twins of what the library does fast: dense ±1 weights, ordinary autograd, one obvious line after another."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class DenseBSO:
    """BSO on dense float weights, as the paper writes it.

    Args:
        weights: The signs to begin with.
        config: Settings by the names of the fields of a training config, as `bsnn.optim.rules.build` takes them.
    """

    def __init__(self, weights: Tensor, config: Mapping[str, Any]) -> None:
        self.weights, self.config = weights.clone(), config
        self.momentum = torch.zeros_like(weights)

    def update(self, gradient: Tensor, t: int) -> None:
        rate = self.config["one_minus_beta1"]
        self.momentum = (1 - rate) * self.momentum + rate * gradient
        flips = self.weights * self.momentum > self.threshold(float((gradient.double() ** 2).mean()), t)
        self.weights = torch.where(flips, -self.weights, self.weights)

    def threshold(self, mean_square: float, t: int) -> float:
        return self.config["gamma"]


class DenseTBSO(DenseBSO):
    """T-BSO: a threshold for each time step, from the mean squares of its gradients."""

    def __init__(self, weights: Tensor, config: Mapping[str, Any]) -> None:
        super().__init__(weights, config)
        self.second_moments = [0.0] * config["time_steps"]

    def threshold(self, mean_square: float, t: int) -> float:
        self.second_moments[t] += self.config["one_minus_beta2"] * (mean_square - self.second_moments[t])
        return self.config["gamma"] * (self.second_moments[t] + self.config["eps"]) ** 0.5


class DenseSigmaBSO(DenseBSO):
    """Sigma-BSO: a threshold in standard deviations of the momentum of gradients that are noise."""

    variance = 0.0

    def threshold(self, mean_square: float, t: int) -> float:
        rate = self.config["one_minus_beta1"]
        self.variance = (1 - rate) ** 2 * self.variance + rate**2 * mean_square
        return self.config["gamma"] * self.variance**0.5


# The twin of each flip rule, by the name of the rule.
TWINS: dict[str, type[DenseBSO]] = {"bso": DenseBSO, "tbso": DenseTBSO, "sigma": DenseSigmaBSO}


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
