"""Surrogate derivatives and traces in torch, by the names that backends know them by; `bsnn.nn` says what they are for.

Legend: x distance from the threshold, â trace, s spikes, m membrane after its reset, λ leak.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bsnn.kernels.compiler import operator


def sigmoid(x: Tensor, alpha: float) -> Tensor:
    """α σ(αx) (1 − σ(αx))."""
    made = (alpha * x).sigmoid_()
    return torch.addcmul(made, made, made, value=-1).mul_(alpha)


def rectangle(x: Tensor, width: float) -> Tensor:
    """1/a where |x| < a/2, else 0."""
    return (x.abs() < width / 2).to(x.dtype) / width


def triangle(x: Tensor, width: float) -> Tensor:
    """max(0, a − |x|) / a²."""
    return (width - x.abs()).clamp(min=0) / width**2


def arctan(x: Tensor, alpha: float) -> Tensor:
    """(α/2) / (1 + (π α x / 2)²)."""
    return (alpha / 2) / (1 + (math.pi / 2 * alpha * x) ** 2)


_SURROGATES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "sigmoid": sigmoid, "rectangle": rectangle, "triangle": triangle, "arctan": arctan,
}  # fmt: skip


def derivative(x: Tensor, name: str, parameter: float) -> Tensor:
    """The derivative of a surrogate, by its name.

    Example:
        >>> derivative(torch.zeros(1), "sigmoid", 4.0)
        tensor([1.])
    """
    if torch.is_grad_enabled():  # the operator has no gradient
        return _SURROGATES[name](x, parameter)
    return surrogate(x, name, parameter)


@operator("(Tensor x, str name, float parameter) -> Tensor", lambda x, *_: torch.empty_like(x), lambda made: made)
def surrogate(x: Tensor, name: str, parameter: float) -> Tensor:
    """See `derivative`; an operator because a compiler rounds exponentials in its own way."""
    return _SURROGATES[name](x, parameter)


def leaky_trace(past: Tensor, spikes: Tensor, leak: float) -> Tensor:
    """λ â + s."""
    return torch.add(spikes, past, alpha=leak)


def membrane_ratio(membrane: Tensor, previous: Tensor, leak: float) -> tuple[Tensor, Tensor, Tensor]:
    """The ratio of two membranes, λ if there was none before; how many are over λ, and how many had a denominator."""
    defined = previous != 0
    ratio = torch.where(defined, membrane / torch.where(defined, previous, 1.0), leak)
    return ratio, (ratio.abs() > leak).sum(), defined.sum()


class NamedTrace:
    """A trace by its name, with a count of its ratios.

    Args:
        name: `"none"`, `"leaky"`, `"ratio"` or `"clamped ratio"`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.counts: list[Tensor] | None = None
        """How many ratios were over the leak, and how many had a denominator; None without ratios."""

    def count(self, saturated: Tensor, ratios: Tensor) -> None:
        """Adds to the counts."""
        more = [saturated, ratios]
        self.counts = more if self.counts is None else [a + b for a, b in zip(self.counts, more, strict=True)]

    def update(self, past: Tensor, spikes: Tensor, membrane: Tensor, previous: Tensor, leak: float) -> Tensor:
        """The new trace; see `operations.Neuron`."""
        if self._name == "leaky":
            return leaky_trace(past, spikes, leak)
        ratio, saturated, ratios = membrane_ratio(membrane, previous, leak)
        self.count(saturated, ratios)
        return (ratio.clamp(-leak, leak) if self._name == "clamped ratio" else ratio).mul_(past).add_(spikes)
