"""ResNet-34 without BatchNorm, for OTTT on ImageNet: standardized weights, and blocks x + 0.2 · f(x / β).

β² is the variance that x has by then if every f keeps it: 1 after the first block of a stage, and 0.04 more after each
block. f is neuron → conv → neuron → conv. Where a stage begins, the shortcut is pooled and has a 1×1 convolution, on
x / β.
"""

import copy

from torch import nn

from bsnn.models.vgg import head, scaled
from bsnn.nn.network import ImageNetwork, Residual, Sequential
from bsnn.nn.neuron import LIF, Neuron
from bsnn.nn.standardized import Scale, StandardizedConv2d

_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
_ALPHA = 0.2


def nf_resnet34(
    num_classes: int = 1000, in_channels: int = 3, width: float = 1.0, neuron: Neuron | None = None
) -> ImageNetwork:
    """The normalizer-free ResNet-34.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of an image.
        width: Factor on every number of channels.
        neuron: The neuron to copy into every layer; `LIF()` by default.

    Example:
        >>> net = nf_resnet34(num_classes=10, width=0.125)
        >>> net(torch.zeros(1, 3, 64, 64), None)[0].shape
        torch.Size([1, 10])
    """
    neuron = neuron or LIF()
    entering = scaled(_STAGES[0][0], width)
    made: dict[str, nn.Module] = {
        "stem": StandardizedConv2d(in_channels, entering, 7, stride=2, padding=3),
        "stem_pool": nn.MaxPool2d(3, stride=2, padding=1),
    }
    for stage, (channels, count) in enumerate(_STAGES, start=1):
        leaving, variance = scaled(channels, width), 1.0
        for number in range(1, count + 1):
            stride = 2 if stage > 1 and number == 1 else 1
            made[f"stage{stage}_{number}"] = _block(entering, leaving, stride, variance**-0.5, neuron)
            variance = (1.0 if entering != leaving else variance) + _ALPHA**2
            entering = leaving
    made["lif"] = copy.deepcopy(neuron)
    made |= head(entering, num_classes)
    return ImageNetwork(made, in_channels, minimum_size=1)


def _block(entering: int, leaving: int, stride: int, factor: float, neuron: Neuron) -> Residual:
    body = Sequential(
        {
            "scale1": Scale(factor),
            "lif1": copy.deepcopy(neuron),
            "conv1": StandardizedConv2d(entering, leaving, 3, stride, padding=1),
            "lif2": copy.deepcopy(neuron),
            "conv2": StandardizedConv2d(leaving, leaving, 3, padding=1),
            "scale2": Scale(_ALPHA),
        }
    )
    if stride == 1 and entering == leaving:
        return Residual(body)
    pool = nn.AvgPool2d(stride, ceil_mode=True)
    return Residual(body, Sequential(Scale(factor), pool, StandardizedConv2d(entering, leaving, 1)))
