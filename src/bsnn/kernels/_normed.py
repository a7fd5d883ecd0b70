"""A step of neurons behind BatchNorm, from what a backend computes one after another: normalize, fire, and back."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from bsnn.kernels.operations import Norm, Saved
from bsnn.kernels.torch_internals import is_view


class _Parts(Protocol):
    """What a backend computes; all tensors have their channels last."""

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


class NormedNeurons(_Parts):
    """The two passes of `operations.NeuronKernel`, from the parts."""

    def forward(
        self, current: Tensor, membrane: Tensor, trace: Tensor | None, norm: Norm | None, *, learning: bool, spare: bool
    ) -> tuple[Tensor, Tensor | None, Saved]:
        """See `operations.NeuronKernel`."""
        normal, mean, deviation, kept = current, None, None, None
        spare = spare and self.overwrites and not is_view(current)
        if norm is not None and learning:
            kept = self.keep(current.detach() if self.overwrites else current)
            spare = spare and kept.dtype != current.dtype
        if norm is not None:
            normal, mean, deviation = norm.normalize(current, spare)
        elif self.overwrites:
            normal = current.clone()
        spikes, sent_trace, bits = self.fire(normal, membrane, trace)
        return spikes, sent_trace, Saved(kept, bits, mean, deviation)

    def backward(
        self, sent: Tensor, membrane: Tensor, weight: Tensor | None, saved: Saved
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """See `operations.NeuronKernel`."""
        gradient, sums, products = self.through(sent, membrane, saved.bits, saved.current, saved.mean)
        if saved.current is None:
            return gradient, None, None
        assert weight is not None
        assert saved.mean is not None
        assert saved.deviation is not None
        count, scale = gradient.numel() // len(saved.mean), weight * saved.deviation
        grad_weight = products * saved.deviation
        slope = (scale * saved.deviation * grad_weight / -count).to(scale.dtype)
        shift = (scale * sums / -count - slope * saved.mean).to(scale.dtype)
        self.through_norm_(gradient, saved.current, scale, slope, shift)
        return gradient, grad_weight.to(weight.dtype), sums.to(weight.dtype)
