"""Spikes forward, a surrogate derivative backward (paper, Sections 3.1 and 3.2).

H(x) = 1 where x ≥ 0 has no useful derivative; each class below gives a smooth stand-in for ∂s/∂u. All of them are
elementwise, and each says under which name, and with which parameter, C computes it too.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bsnn.errors import UserError
from bsnn.extras import named_instance
from bsnn.kernels import formulas

__all__ = ["Arctan", "Rectangle", "Sigmoid", "Surrogate", "Triangle", "named", "spike"]


def __dir__() -> list[str]:
    return __all__


class Surrogate(Protocol):
    """Anything with a `derivative` of the distance from the threshold, x = u − V_th.

    It sees the whole layer, `[batch, channels, ...]`. A class attribute `elementwise = True` says that it treats every
    neuron by itself; then the fused step may hand it a part of the batch, with channels as the last axis.
    """

    def derivative(self, x: Tensor) -> Tensor:
        """∂s/∂u at distance `x` from the threshold."""
        ...


class _BuiltIn:
    """A surrogate that C computes too; what it says of itself does not hold for a subclass that adds a method."""

    elementwise: ClassVar[bool]
    kernel: ClassVar[str | None]
    """Its name in `bsnn.kernels`."""

    @property
    def parameter(self) -> float:
        """Its slope or width."""
        raise NotImplementedError

    def derivative(self, x: Tensor) -> Tensor:
        """See `Surrogate`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sigmoid(_BuiltIn):
    """α σ(αx) (1 − σ(αx)).

    Example:
        >>> Sigmoid(alpha=4.0).derivative(torch.zeros(1))
        tensor([1.])
    """

    elementwise: ClassVar[bool] = True
    kernel: ClassVar[str | None] = "sigmoid"
    alpha: float = 4.0

    @property
    def parameter(self) -> float:
        """The slope."""
        return self.alpha

    def derivative(self, x: Tensor) -> Tensor:
        """∂s/∂u at distance `x` from the threshold."""
        return formulas.derivative(x, "sigmoid", self.alpha)


@dataclass(frozen=True)
class Rectangle(_BuiltIn):
    """1/a where |x| < a/2, else 0."""

    elementwise: ClassVar[bool] = True
    kernel: ClassVar[str | None] = "rectangle"
    width: float = 1.0

    @property
    def parameter(self) -> float:
        """The width."""
        return self.width

    def derivative(self, x: Tensor) -> Tensor:
        """∂s/∂u at distance `x` from the threshold."""
        return formulas.derivative(x, "rectangle", self.width)


@dataclass(frozen=True)
class Triangle(_BuiltIn):
    """max(0, a − |x|) / a²."""

    elementwise: ClassVar[bool] = True
    kernel: ClassVar[str | None] = "triangle"
    width: float = 1.0

    @property
    def parameter(self) -> float:
        """The width."""
        return self.width

    def derivative(self, x: Tensor) -> Tensor:
        """∂s/∂u at distance `x` from the threshold."""
        return formulas.derivative(x, "triangle", self.width)


@dataclass(frozen=True)
class Arctan(_BuiltIn):
    """(α/2) / (1 + (π α x / 2)²)."""

    elementwise: ClassVar[bool] = True
    kernel: ClassVar[str | None] = "arctan"
    alpha: float = 2.0

    @property
    def parameter(self) -> float:
        """The slope."""
        return self.alpha

    def derivative(self, x: Tensor) -> Tensor:
        """∂s/∂u at distance `x` from the threshold."""
        return formulas.derivative(x, "arctan", self.alpha)


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, surrogate: Surrogate) -> Tensor:
        ctx.save_for_backward(x)
        ctx.surrogate = surrogate
        return (x >= 0).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        return grad_outputs[0] * ctx.surrogate.derivative(x), None


def spike(x: Tensor, surrogate: Surrogate) -> Tensor:
    """Fires where x ≥ 0 (Eq. 3); backward uses the surrogate's derivative.

    Example:
        >>> spike(torch.tensor([-0.5, 0.0, 0.5]), Sigmoid())
        tensor([0., 1., 1.])
    """
    return _Spike.apply(x, surrogate)  # pyright: ignore[reportReturnType]


def named(name: str) -> Surrogate:
    """A surrogate with its default width, by the name of its class in lower case, or `module:Class` for your own.

    Example:
        >>> named("triangle")
        Triangle(width=1.0)
    """
    if ":" in name:
        made = named_instance(name, "surrogate")
        if not callable(getattr(made, "derivative", None)):
            raise UserError(
                f"surrogate: {name} has no method `derivative`; expected one, as bsnn.nn.surrogate.Sigmoid has."
            )
        return made
    found = {kind.__name__.lower(): kind for kind in _BuiltIn.__subclasses__() if kind.__module__ == __name__}
    if name not in found:
        raise UserError(f"surrogate: received {name!r}; expected one of {', '.join(found)}, or module:Class.")
    return found[name]()
