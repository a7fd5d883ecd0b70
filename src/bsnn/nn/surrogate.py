"""Spikes forward, a surrogate derivative backward (paper, Sections 3.1 and 3.2).

H(x) = 1 where x ≥ 0 has no useful derivative; each class below gives a smooth stand-in for ∂s/∂u. Those that C computes
too say under which name, and with which parameter.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bsnn.errors import UserError
from bsnn.extras import named_object


class Surrogate(Protocol):
    """Anything with a `derivative` of the distance from the threshold, x = u − V_th."""

    def derivative(self, x: Tensor) -> Tensor:
        """∂s/∂u at distance `x` from the threshold."""
        ...


class _KnownToKernels:
    """A surrogate that C computes too. A subclass may compute something else, so it is not known unless it says so."""

    kernel: ClassVar[str | None] = None
    """Its name there."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kernel" not in vars(cls):
            cls.kernel = None

    @property
    def parameter(self) -> float:
        """Its slope or width."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sigmoid(_KnownToKernels):
    """α σ(αx) (1 − σ(αx)).

    Example:
        >>> Sigmoid(alpha=4.0).derivative(torch.zeros(1))
        tensor([1.])
    """

    kernel: ClassVar[str | None] = "sigmoid"
    alpha: float = 4.0

    @property
    def parameter(self) -> float:
        """The slope."""
        return self.alpha

    def derivative(self, x: Tensor) -> Tensor:
        """∂s/∂u at distance `x` from the threshold."""
        sigmoid = (self.alpha * x).sigmoid_()
        return torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1).mul_(self.alpha)


@dataclass(frozen=True)
class Rectangle(_KnownToKernels):
    """1/a where |x| < a/2, else 0."""

    kernel: ClassVar[str | None] = "rectangle"
    width: float = 1.0

    @property
    def parameter(self) -> float:
        """The width."""
        return self.width

    def derivative(self, x: Tensor) -> Tensor:
        """∂s/∂u at distance `x` from the threshold."""
        return (x.abs() < self.width / 2).to(x.dtype) / self.width


@dataclass(frozen=True)
class Triangle(_KnownToKernels):
    """max(0, a − |x|) / a²."""

    kernel: ClassVar[str | None] = "triangle"
    width: float = 1.0

    @property
    def parameter(self) -> float:
        """The width."""
        return self.width

    def derivative(self, x: Tensor) -> Tensor:
        """∂s/∂u at distance `x` from the threshold."""
        return (self.width - x.abs()).clamp(min=0) / self.width**2


@dataclass(frozen=True)
class Arctan(_KnownToKernels):
    """(α/2) / (1 + (π α x / 2)²)."""

    kernel: ClassVar[str | None] = "arctan"
    alpha: float = 2.0

    @property
    def parameter(self) -> float:
        """The slope."""
        return self.alpha

    def derivative(self, x: Tensor) -> Tensor:
        """∂s/∂u at distance `x` from the threshold."""
        return (self.alpha / 2) / (1 + (math.pi / 2 * self.alpha * x) ** 2)


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
        made = named_object(name, "surrogate")
        try:
            made = made()
        except TypeError as error:
            raise UserError(
                f"surrogate: {name} cannot be built without arguments ({error}); give them defaults."
            ) from error
        if not callable(getattr(made, "derivative", None)):
            raise UserError(
                f"surrogate: {name} has no method `derivative`; expected one, as bsnn.nn.surrogate.Sigmoid has."
            )
        return made
    own = {key.lower(): value for key, value in globals().items() if getattr(value, "__module__", "") == __name__}
    found = {key: value for key, value in own.items() if value is not Surrogate and hasattr(value, "derivative")}
    if name not in found:
        raise UserError(f"surrogate: received {name!r}; expected one of {', '.join(found)}, or module:Class.")
    return found[name]()
