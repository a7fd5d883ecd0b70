"""What a backend can compute: each operation is tried on the backends in use, the fastest first.

None means that no backend supports the tensors; then the caller computes it with torch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from bsnn import kernels
from bsnn.kernels.bits import unpack

_Pair = tuple[int, int]


class Geometry(NamedTuple):
    """How a convolution moves its filters."""

    stride: _Pair = (1, 1)
    padding: _Pair = (0, 0)
    dilation: _Pair = (1, 1)
    groups: int = 1


class Neuron(NamedTuple):
    """A LIF neuron in numbers, functions for torch, and names for other backends."""

    leak: float
    threshold: float
    derivative: Callable[[Tensor], Tensor]
    """Of the surrogate, from the distance to the threshold."""
    surrogate: str | None
    """Its name if a backend may know it: `"sigmoid"`, `"rectangle"`, `"triangle"` or `"arctan"`."""
    parameter: float
    """Of the surrogate: its slope or width."""
    update_trace: Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]
    """The new trace from the past one, spikes, membrane, previous membrane and leak."""
    trace: str | None
    """Its name if a backend may know it: `"leaky"` or `"none"`."""
    needs_membrane: bool
    """Whether the trace depends on the membrane."""


class NeuronKernel(Protocol):
    """A layer of neurons on a backend; all tensors have their channels last."""

    overwrites: bool
    """Whether `fire` writes spikes over the currents."""

    def fire(self, x: Tensor, membrane: Tensor, trace: Tensor | None) -> tuple[Tensor, Tensor | None, Sequence[Tensor]]:
        """Moves membrane and trace one step on, in place.

        Returns:
            The spikes and the trace that are sent on, and the spikes as bits, which `through` is given again.
        """
        ...

    def keep(self, current: Tensor) -> Tensor:
        """What `through` must be given of a current, in less room if possible."""
        ...

    def through(
        self, sent: Tensor, membrane: Tensor, bits: Sequence[Tensor], current: Tensor | None, mean: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """∂L/∂u from the gradient of what was sent on; its sums and those of its product with I − mean, per channel."""
        ...

    def through_norm_(self, gradient: Tensor, current: Tensor, scale: Tensor, slope: Tensor, shift: Tensor) -> None:
        """Replaces ∂L/∂BN(I) by ∂L/∂I = scale · ∂L/∂BN(I) + slope · I + shift."""
        ...


def convolve(x: Tensor, bits: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor | None:
    """The convolution of spikes, or of means of four spikes, with one-bit weights of `shape`."""
    return _first("convolve", x, bits, shape, geometry)


def input_gradient(grad: Tensor, bits: Tensor, shape: torch.Size, size: _Pair, geometry: Geometry) -> Tensor | None:
    """The gradient of images of `size` that enter a convolution with one-bit weights."""
    return _first("input_gradient", grad, bits, shape, size, geometry)


def weight_gradient(grad: Tensor, x: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor | None:
    """The weight gradient of a convolution that `x`, spikes or a trace, enters."""
    return _first("weight_gradient", grad, x, shape, geometry)


def tile_bytes(batch: int, shape: torch.Size, entering: _Pair, leaving: _Pair, geometry: Geometry) -> int:
    """The memory that the gradients of a convolution on the CPU share; 0 if they are left to torch.

    Args:
        batch: Images.
        shape: Of the weights.
        entering: Height and width of what enters.
        leaving: Height and width of what leaves.
        geometry: Of the convolution.
    """
    return _first("tile_bytes", batch, shape, entering, leaving, geometry) or 0


def neurons(x: Tensor, neuron: Neuron, pooled: bool) -> NeuronKernel | None:
    """The layer of neurons that `x` enters.

    Args:
        x: What enters, `[B, C, H, W]` or `[B, C]`.
        neuron: What each of them does.
        pooled: Whether means of two by two pixels are sent on.
    """
    return _first("neurons", x, neuron, pooled)


def signs(bits: Tensor, number: int, dtype: torch.dtype) -> Tensor:
    """As `unpack`, faster if a backend can."""
    made = _first("signs", bits, number, dtype)
    return unpack(bits, number, dtype) if made is None else made


def _first(operation: str, *arguments: Any) -> Any:
    for module in kernels.modules():
        result = getattr(module, operation)(*arguments)
        if result is not None:
            return result
    return None
