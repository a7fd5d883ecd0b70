"""What a backend can compute: each operation is tried on the backends in use, the fastest first.

None means that no backend supports the tensors; then the caller computes it with torch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from bsnn import kernels
from bsnn.kernels import pieces
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
    """Its name if a backend may know it: `"none"`, `"leaky"`, `"ratio"` or `"clamped ratio"`."""
    needs_membrane: bool
    """Whether the trace depends on the membrane."""
    count_ratios: Callable[[Tensor, Tensor], None] | None = None
    """Takes note of how many ratios were over the leak, and how many had a denominator."""


class Norm(NamedTuple):
    """BatchNorm before the neurons."""

    weight: Tensor
    bias: Tensor
    normalize: Callable[[Tensor, bool], tuple[Tensor, Tensor | None, Tensor | None]]
    """BN(I), mean and 1/σ of a batch from I, which it may write over if told so; without the two in evaluation."""
    folded: Callable[[], tuple[Tensor, Tensor]]
    """Scale and shift of evaluation."""
    running: tuple[Tensor, Tensor, Tensor] | None
    """In training, its running mean and variance, and the number of batches."""
    rate: float | None
    """Share of a batch in the running statistics; None for one over the number of batches."""
    eps: float


class Saved(NamedTuple):
    """What the backward pass of a layer of neurons needs besides the membrane and BatchNorm's weight."""

    current: Tensor | None
    """What entered BatchNorm, as a backend keeps it; None without BatchNorm, or if nothing learns."""
    bits: Sequence[Tensor]
    """Spikes."""
    mean: Tensor | None
    """Of the batch."""
    deviation: Tensor | None
    """1/σ of the batch."""


class FlipThreshold(NamedTuple):
    """A weight flips where W·M > γ sqrt(v + ε), or without v where W·M > γ."""

    gamma: float
    moment: Tensor | None = None
    """v, one number in double precision."""
    eps: float = 0.0


class Flippable(NamedTuple):
    """The weights of one parameter, and what decides about their flips."""

    bits: Tensor
    """Written to."""
    number: int
    """How many weights they are."""
    stored: dict[str, Any]
    """`momentum` and, in eight bits, `scales`."""
    threshold: FlipThreshold


class NeuronKernel(Protocol):
    """A layer of neurons on a backend; all tensors have their channels last."""

    def forward(
        self, current: Tensor, membrane: Tensor, trace: Tensor | None, norm: Norm | None, *, learning: bool, spare: bool
    ) -> tuple[Tensor, Tensor | None, Saved]:
        """Normalizes, and moves membrane and trace one step on, in place.

        Args:
            current: What enters.
            membrane: Of the neurons; written to.
            trace: Of their spikes; written to.
            norm: BatchNorm before them.
            learning: Whether `backward` will be called.
            spare: Whether the current may be written over.

        Returns:
            The spikes and the trace that are sent on, and what `backward` needs.
        """
        ...

    def backward(
        self, sent: Tensor, membrane: Tensor, weight: Tensor | None, saved: Saved
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """∂L/∂I from the gradient of what was sent on, and the gradients of BatchNorm's weight and bias."""
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


def signs(bits: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """The signs of weights of `shape`, in the order in memory that a backend's convolutions prefer."""
    made = _first("signs", bits, shape, dtype)
    return unpack(bits, shape.numel(), dtype).view(shape) if made is None else made


def folded(weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
    """Scale and shift of BatchNorm in evaluation, computed in double precision."""
    return _first("folded", weight, bias, mean, variance, eps)


def folds(gradient: Tensor) -> bool:
    """Whether gradients are folded one by one: on a CPU, and by a backend that does so in few launches."""
    return not pieces.is_whole(gradient) or _first("folds", gradient) is True


def mean_square(gradient: Tensor, refused: Tensor) -> Tensor:
    """The mean of a gradient's squares, in double precision; on a GPU, 0 if it is not finite, so that sums stay so.

    Args:
        gradient: The gradient.
        refused: One number on its device, 0 as long as every gradient was finite and NaN from then on; added to.
    """
    made = _first("mean_square", gradient, refused)
    if made is None:
        made = pieces.mean_square(gradient)
        if pieces.is_whole(gradient):
            refused.add_(made, alpha=0)
            made.nan_to_num_(0, 0, 0)
    return made


def fold(gradient: Tensor, stored: dict[str, Any], refused: Tensor, rate: float, adding: bool, seed: Any) -> bool:
    """Takes a gradient into a momentum, unless one was refused; returns whether a backend could.

    Args:
        gradient: In the order of the weights.
        stored: `momentum` and, in eight bits, `scales`; written to.
        refused: See `mean_square`.
        rate: M ← M + rate · (G − M).
        adding: M ← M + rate · G instead.
        seed: Called for the seed of the rounding, if it is rounded.
    """
    return _first("fold", gradient, stored, refused, rate, adding, seed) or False


def flip(weights: Sequence[Flippable], refused: Tensor) -> list[Tensor] | None:
    """Turns the bits of the weights that flip, unless a gradient was refused; returns how many of each parameter did.

    Args:
        weights: Parameters on one device.
        refused: See `mean_square`.
    """
    return _first("flip", weights, refused)


def mixed_loss(logits: Tensor, labels: Tensor, mixture: Any) -> tuple[Tensor, Tensor] | None:
    """The loss of a time step and its gradient; see `kernels.loss`."""
    return _first("mixed_loss", logits, labels, mixture)


def _first(operation: str, *arguments: Any) -> Any:
    for module in kernels.modules():
        result = getattr(module, operation)(*arguments)
        if result is not None:
            return result
    return None
