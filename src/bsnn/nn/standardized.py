"""Convolutions with scaled weight standardization, which OTTT has in the place of BatchNorm.

    ŵ = 2.74 · g · (w − mean) / √(N · variance + ε)        by output channel, N its number of weights

g is learned, and there is a bias. The factor brings the variance of what spikes send through the layer back to about 1.
"""

import torch
from torch import Tensor, nn

from bsnn.nn.synapse import Size, TracedConv2d
from bsnn.nn.trace import Activity

FACTOR = 2.74
_EPS = 1e-5


def standardized(weight: Tensor, gain: Tensor) -> Tensor:
    """ŵ, from w and g.

    Example:
        >>> standardized(torch.tensor([[[[1.0, 3.0]]]]), torch.tensor([1.0])) / FACTOR  # (w − 2) / √(2 · 1)
        tensor([[[[-0.7071,  0.7071]]]])
    """
    rows = weight.flatten(1)
    variance, mean = torch.var_mean(rows, dim=1, unbiased=False, keepdim=True)
    rows = FACTOR * gain[:, None] * (rows - mean) / torch.sqrt(rows.shape[1] * variance + _EPS)
    return rows.view_as(weight)


class StandardizedConv2d(TracedConv2d):
    """A real-valued convolution with standardized weights and a bias; its weight gradient comes from the trace.

    Args:
        in_channels: Channels that enter.
        out_channels: Channels that leave.
        kernel_size: Height and width of the kernel.
        stride: As in `nn.Conv2d`.
        padding: Zeros around the input, as in `nn.Conv2d`.

    Example:
        >>> layer = StandardizedConv2d(2, 4, 3, padding=1)
        >>> layer(torch.ones(1, 2, 8, 8)).shape
        torch.Size([1, 4, 8, 8])
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Size = 0
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, weights="real")
        self.gain = nn.Parameter(torch.ones(out_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, x: Tensor | Activity) -> Tensor:
        """Current for the neurons behind it."""
        product = self._multiply(x, self.convolution, standardized(self.weight, self.gain))
        return product + self.bias.view(1, -1, 1, 1)


class Scale(nn.Module):
    """Multiplies by a constant.

    Args:
        factor: The constant.

    Example:
        >>> Scale(0.5)(torch.ones(2))
        tensor([0.5000, 0.5000])
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """The product."""
        return self.factor * x

    def extra_repr(self) -> str:
        """The constant, for printing."""
        return f"{self.factor:g}"
