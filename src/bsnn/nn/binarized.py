"""Convolutions with latent weights that are quantized in the forward pass, as the methods that we compare with do it.

`ScaledSignConv2d` is Q-SNN's, `ConstrainedConv2d` CBP's. Both are for BPTT: they use no trace. Legend: w latent weight,
ŵ the same standardized, t temperature.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class _SoftSign(torch.autograd.Function):
    """sign(x), whose derivative is k t (1 − tanh²(t x)) with k = max(1/t, 1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, temperature: Tensor) -> Tensor:
        ctx.save_for_backward(x, temperature)
        return torch.where(x < 0, -1.0, 1.0).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, t = ctx.saved_tensors
        return grad_outputs[0] * (1 / t).clamp(min=1) * t * (1 - torch.tanh(t * x).square()), None


def scaled_sign(weight: Tensor, temperature: Tensor) -> Tensor:
    """Q-SNN's binary weights, by output channel: sign(ŵ) 2^round(log2 mean|ŵ|), ŵ = (w − mean) / deviation.

    The gradient passes the sign by its soft derivative, and the standardization; the power of two is a constant.

    Args:
        weight: w, output channels first.
        temperature: t, a tensor of one number: the larger, the nearer is the soft derivative to the sign's own.

    Example:
        >>> scaled_sign(torch.tensor([[1.0, 2.0, 6.0]]), torch.tensor(1.0))  # mean|ŵ| is 0.756, nearest to 2⁰
        tensor([[-1., -1.,  1.]])
    """
    rows = weight.flatten(1)
    rows = (rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True)
    scale = torch.exp2(rows.abs().mean(1, keepdim=True).log2().round()).detach()
    signs: Any = _SoftSign.apply(rows, temperature)
    return (signs * scale).view_as(weight)


class ScaledSignConv2d(nn.Conv2d):
    """A convolution with Q-SNN's binary weights, without bias.

    Its `temperature` is a buffer, which a method raises in the course of training.

    Example:
        >>> layer = ScaledSignConv2d(2, 4, 3, padding=1)
        >>> layer(torch.ones(1, 2, 8, 8)).shape
        torch.Size([1, 4, 8, 8])
    """

    bits_per_weight = 1
    temperature: Tensor

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, bias=False)
        self.register_buffer("temperature", torch.tensor(0.1))

    def forward(self, input: Tensor) -> Tensor:
        """Current for the neurons behind it."""
        return F.conv2d(input, scaled_sign(self.weight, self.temperature), None, self.stride, self.padding)


def constraint(weight: Tensor, scale: Tensor, g: float) -> Tensor:
    """CBP's constraint function cs(w), which is 0 at ±a and in a window around 0 that closes as g grows.

    2 (|w| − a) outside ±a; inside, 2 (a − |w|), but 0 where that is above 2 a (1 − 1/g), which is |w| < a/g.

    Args:
        weight: w.
        scale: a.
        g: From 1 on.

    Example:
        >>> constraint(torch.tensor([0.1, -0.6, 1.0, -1.5]), torch.tensor(1.0), g=2)
        tensor([0.0000, 0.8000, 0.0000, 1.0000])
    """
    distance = 2 * (weight.abs() - scale)
    return torch.where(distance >= 0, distance, torch.where(-distance > 2 * scale * (1 - 1 / g), 0.0, -distance))


class ConstrainedConv2d(nn.Conv2d):
    """A convolution that can be constrained to weights of ±a, as CBP does it; real-valued until then.

    Once constrained, it computes with a sign(w), and backward takes that for w.

    Example:
        >>> layer = ConstrainedConv2d(2, 4, 3, padding=1)
        >>> layer.constrain()
        >>> layer.quantized().unique().numel()
        2
    """

    bits_per_weight = 1
    scale: Tensor
    """a; 0 if the weights are not constrained."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
        bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, bias=bias)
        self.register_buffer("scale", torch.tensor(0.0))

    def constrain(self) -> None:
        """Fixes a at the mean magnitude of the weights as they are now."""
        self.scale.copy_(self.weight.detach().abs().mean())

    def quantized(self) -> Tensor:
        """The weights a sign(w), or the weights themselves if they are not constrained; backward is the identity."""
        weight = self.weight.detach()
        signed = self.scale * torch.where(weight < 0, -1.0, 1.0)
        # Adds 0, so that the values are exact, and the gradient is that of the weights.
        return torch.where(self.scale > 0, signed, weight) + (self.weight - weight)

    def forward(self, input: Tensor) -> Tensor:
        """Current for the neurons behind it."""
        return F.conv2d(input, self.quantized(), self.bias, self.stride, self.padding)
