"""Synapses: spikes forward, the trace in the weight gradient (paper, Section 3.2, Eq. 6).

    forward   I = W s           backward   ∂L/∂s = Wᵀ g,   ∂L/∂W = g âᵀ

There is one forward convolution per step. The product is bilinear, so the trace can simply stand in for the spikes
where the weight gradient is made, and neither the spikes nor dense weights are kept for backward.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bsnn.errors import UserError
from bsnn.kernels.operations import Geometry
from bsnn.kernels.product import gradients, multiply
from bsnn.nn.bits import BinaryModule, BinaryParameter
from bsnn.nn.trace import Activity, where_lost

Weights = Literal["binary", "latent", "real"]
Size = int | tuple[int, int]
"""Height and width; one number for both."""


class _Synapse(torch.autograd.Function):
    """W s, whose weight gradient comes from the trace; without a trace, from the spikes."""

    @staticmethod
    def forward(
        ctx: Any,
        spikes: Tensor,
        trace: Tensor | None,
        weight: Tensor,
        bits: Tensor | None,
        geometry: Geometry | None,
    ) -> Tensor:
        # Saving the bits, not their dense copy, also lets autograd notice a flip between forward and backward.
        ctx.save_for_backward(spikes if trace is None else trace, weight, bits)
        ctx.geometry = geometry
        return multiply(spikes, weight, bits, geometry)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        presynaptic, weight, bits = ctx.saved_tensors
        wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[2]
        grad_spikes, grad_weight = gradients(grad_outputs[0], presynaptic, weight, bits, ctx.geometry, wanted)
        return grad_spikes, None, grad_weight, None, None


class _Binarize(torch.autograd.Function):
    """sign(w) with the straight-through estimator: the gradient passes where |w| ≤ 1 (Eq. 4)."""

    @staticmethod
    def forward(ctx: Any, latent: Tensor) -> Tensor:
        ctx.save_for_backward(latent)
        return torch.where(latent < 0, -1.0, 1.0).to(latent.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (latent,) = ctx.saved_tensors
        return grad_outputs[0] * (latent.abs() <= 1)


class TracedLayer(BinaryModule):
    """Base of synapses. `weights` says what they are: one bit each, or for comparison latent or real."""

    weight: nn.Parameter

    def __init__(self, shape: tuple[int, ...], weights: Weights) -> None:
        super().__init__()
        if weights not in ("binary", "latent", "real"):
            raise UserError(f"weights: received {weights!r}; expected 'binary', 'latent' or 'real'.")
        if any(length < 1 for length in shape):
            raise UserError(f"{type(self).__name__}: received weight shape {shape}; expected positive sizes.")
        self.weights = weights
        values = nn.init.kaiming_normal_(torch.empty(shape))
        self.weight = BinaryParameter.from_signs(values) if weights == "binary" else nn.Parameter(values)

    def _multiply(self, x: Tensor | Activity, geometry: Geometry | None, standing_in: Tensor | None = None) -> Tensor:
        """The product with the weights, or with real-valued ones that were computed from them."""
        lost = where_lost(x)
        if lost:
            raise UserError(
                f"layer {lost} stands between a neuron and this {type(self).__name__} {tuple(self.weight.shape)}; "
                "expected only pooling or flattening there, because a trace passes through linear layers alone. Give "
                "it a trace of its own with bsnn.Retraced(neuron, layer), move it before the neuron, or choose a "
                "gradient rule without a trace, such as 'sltt'."
            )
        spikes, trace = x if isinstance(x, Activity) else (x, None)
        if trace is not None and trace.shape != spikes.shape:
            raise UserError(
                f"{type(self).__name__}: received spikes of shape {tuple(spikes.shape)} with a trace of shape "
                f"{tuple(trace.shape)}; expected the same."
            )
        weight, bits = self.weight, None
        if standing_in is not None:
            weight = standing_in
        elif isinstance(weight, BinaryParameter):
            bits = weight.bits
        elif self.weights == "latent":
            weight = _Binarize.apply(weight)
        elif self.weights == "binary":
            raise UserError(
                f"{type(self).__name__}: received a {type(weight).__name__} as the weight of a binary layer; expected "
                "a BinaryParameter. Write layer.weight = bsnn.BinaryParameter.from_signs(values), or build the layer "
                "with weights='real'."
            )
        return _Synapse.apply(spikes, trace, weight, bits, geometry)  # pyright: ignore[reportReturnType]


class TracedConv2d(TracedLayer):
    """A convolution whose weight gradient comes from the trace of what enters it.

    Given an `Activity`, it uses its trace; given a plain tensor, such as an image, the tensor itself.

    Args:
        in_channels: Channels that enter.
        out_channels: Channels that leave.
        kernel_size: Height and width of the kernel.
        stride: As in `nn.Conv2d`.
        padding: Zeros around the input, as in `nn.Conv2d`; a number or a pair.
        dilation: As in `nn.Conv2d`.
        groups: As in `nn.Conv2d`.
        weights: `"binary"`, `"latent"` (sign of a real weight, straight-through) or `"real"`.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0,
        dilation: Size = 1, groups: int = 1, *, weights: Weights,
    ) -> None:  # fmt: skip
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise UserError(
                f"groups: received {groups} for {in_channels} to {out_channels} channels; expected a number "
                "that divides both."
            )
        super().__init__((out_channels, in_channels // groups, *_pair(kernel_size)), weights)
        self.convolution = Geometry(_pair(stride), _pair(padding), _pair(dilation), groups)
        for name, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
            if min(getattr(self.convolution, name)) < least:
                raise UserError(f"{name}: received {getattr(self.convolution, name)}; expected {least} or more.")

    def forward(self, x: Tensor | Activity) -> Tensor:
        """Current for the neurons behind it."""
        shape = tuple((x.spikes if isinstance(x, Activity) else x).shape)
        if len(shape) != 4:
            raise UserError(
                f"{type(self).__name__}: received input of shape {shape}; expected [batch, channels, H, W]."
            )
        return self._multiply(x, self.convolution)

    def extra_repr(self) -> str:
        """Shape and geometry, for printing."""
        c = self.convolution
        return f"{tuple(self.weight.shape)}, {self.weights}, stride={c.stride}, padding={c.padding}"


class TracedLinear(TracedLayer):
    """A matrix product whose weight gradient comes from the trace of what enters it.

    Args:
        in_features: Features that enter, the last axis.
        out_features: Features that leave.
        weights: `"binary"`, `"latent"` (sign of a real weight, straight-through) or `"real"`.
    """

    def __init__(self, in_features: int, out_features: int, *, weights: Weights) -> None:
        super().__init__((out_features, in_features), weights)

    def forward(self, x: Tensor | Activity) -> Tensor:
        """Current for the neurons behind it."""
        return self._multiply(x, None)

    def extra_repr(self) -> str:
        """Shape, for printing."""
        return f"{tuple(self.weight.shape)}, {self.weights}"


class BinaryConv2d(TracedConv2d):
    """A convolution with one-bit weights, without bias or scale; see `TracedConv2d`.

    Example:
        >>> layer = BinaryConv2d(2, 4, 3, padding=1)
        >>> layer(torch.ones(1, 2, 8, 8)).shape
        torch.Size([1, 4, 8, 8])
        >>> layer.weight
        BinaryParameter of shape (4, 2, 3, 3) in 9 bytes, torch.float32 on cpu
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0,
        dilation: Size = 1, groups: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, weights="binary")


class BinaryLinear(TracedLinear):
    """A matrix product with one-bit weights, without bias or scale; see `TracedLinear`.

    Example:
        >>> BinaryLinear(16, 4)(torch.ones(2, 16)).shape
        torch.Size([2, 4])
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, weights="binary")


def _pair(value: Size) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else value
    if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(v, int) for v in pair)):
        raise UserError(f"received {value!r}; expected a whole number or a pair of them, such as 1 or (1, 1).")
    return pair
