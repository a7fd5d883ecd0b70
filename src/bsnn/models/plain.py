"""An ordinary network, without spikes or one-bit weights, for others to learn from (`--teacher`).

It is made to learn CIFAR-10 in ten epochs, after Jordan's airbench (2024): maximum pooling before BatchNorm, which has
no scale and whose shift learns faster than the rest, convolutions that begin as the identity, and most channels where
images are small.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bsnn.kernels.precision import precision
from bsnn.kernels.torch_internals import multiplies_bf16
from bsnn.models.vgg import scaled
from bsnn.nn.compared import Rectifier
from bsnn.nn.network import ImageNetwork, Sequential, Value
from bsnn.nn.neuron import Neuron
from bsnn.nn.trace import as_output

# Factor on the shifts of BatchNorm: its square is how much faster they learn.
_SHIFT_SCALE = 8.0
# Factor on the logits: they are small at first, and the classifier learns slowly.
_LOGIT_SCALE = 1 / 9


class _Shifted(nn.BatchNorm2d):
    """BatchNorm without a scale, whose shift learns 64 times as fast as other parameters."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.weight.requires_grad_(False)

    def forward(self, input: Tensor) -> Tensor:
        training = self.training or self.running_mean is None
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        share = self.momentum
        if share is None:
            share = 1 / float(self.num_batches_tracked) if self.num_batches_tracked is not None else 0.0
        return F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, _SHIFT_SCALE * self.bias, training, share, self.eps
        )


class _Classifier(nn.Linear):
    """A classifier of small logits."""

    def forward(self, input: Tensor) -> Tensor:
        logits = super().forward(input)
        return (logits.float() if logits.dtype == torch.bfloat16 else logits) * _LOGIT_SCALE


class _Rounded(Sequential):
    """Layers that compute in bf16, if that is the precision that is set and the CPU has instructions for it."""

    def forward(self, x: Value, state: tuple[Any, ...] | None) -> tuple[Value, tuple[Any, ...]]:
        device = as_output(x).device.type
        rounded = precision() == "bf16" and (device != "cpu" or multiplies_bf16())
        with torch.autocast(device, torch.bfloat16, enabled=rounded):
            return super().forward(x, state)

    def lowered_as(self) -> Sequential:
        """The same layers; in evaluation, only the precision differs."""
        return Sequential(dict(self.named_children()))


def plain(
    num_classes: int = 10, in_channels: int = 3, width: float = 1.0, neuron: Neuron | None = None
) -> ImageNetwork:
    """A convolution of 2×2, three blocks of two 3×3 convolutions each, global maximum pooling and a classifier.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of an image.
        width: Factor on every number of channels.
        neuron: To copy behind every convolution; `Rectifier()` by default.

    Example:
        >>> net = plain(num_classes=10)
        >>> sum(parameter.numel() for parameter in net.parameters())
        1972816
    """
    neuron = neuron or Rectifier()
    entering = 8 * in_channels
    # In single precision: a whitened layer multiplies the rounding errors of what enters it.
    stem = {"stem": nn.Conv2d(in_channels, entering, 2, bias=False), "norm": nn.BatchNorm2d(entering)}
    layers: dict[str, nn.Module] = {"lif": copy.deepcopy(neuron)}
    for index, channels in enumerate((64, 256, 256), start=1):
        leaving = scaled(channels, width)
        layers[f"conv{index}a"] = _identity(entering, leaving)
        layers[f"pool{index}"] = nn.MaxPool2d(2)
        layers[f"norm{index}a"] = _Shifted(leaving)
        layers[f"lif{index}a"] = copy.deepcopy(neuron)
        layers[f"conv{index}b"] = _identity(leaving, leaving)
        layers[f"norm{index}b"] = _Shifted(leaving)
        layers[f"lif{index}b"] = copy.deepcopy(neuron)
        entering = leaving
    layers |= {"pool": nn.AdaptiveMaxPool2d(1), "flatten": nn.Flatten()}
    layers["classifier"] = _Classifier(entering, num_classes, bias=False)
    return ImageNetwork({**stem, "body": _Rounded(layers)}, in_channels, minimum_size=9)


def _identity(entering: int, leaving: int) -> nn.Conv2d:
    """A convolution whose first filters pass on what enters."""
    convolution = nn.Conv2d(entering, leaving, 3, padding=1, bias=False)
    same = min(entering, leaving)
    nn.init.dirac_(convolution.weight.data[:same])
    return convolution
