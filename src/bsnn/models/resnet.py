"""The Bi-Real ResNet-18 with spiking neurons (paper, Section 5.1).

Sixteen blocks of one binary 3×3 convolution each, neuron → conv → BatchNorm → + shortcut: what flows between
blocks is real-valued, what enters a convolution is spikes. Stem, downsampling shortcuts and classifier are
real-valued.
"""

import copy
from typing import Unpack

from torch import nn

from bsnn.errors import UserError
from bsnn.models.vgg import LayerOptions, head, scaled
from bsnn.nn.network import ImageNetwork, Residual, Sequential
from bsnn.nn.neuron import LIF, Neuron
from bsnn.nn.norm import BatchNorm2d
from bsnn.nn.synapse import TracedConv2d, Weights

_STAGES = (64, 128, 256, 512)
_BLOCKS_PER_STAGE = 4


def _block(entering: int, leaving: int, stride: int, weights: Weights, neuron: Neuron) -> Residual:
    body = {
        "lif": copy.deepcopy(neuron),
        "conv": TracedConv2d(entering, leaving, 3, stride, padding=1, weights=weights),
        "norm": BatchNorm2d(leaving),
    }
    if stride == 1:
        return Residual(Sequential(body))
    shortcut = nn.Sequential(
        nn.AvgPool2d(2, ceil_mode=True), nn.Conv2d(entering, leaving, 1, bias=False), BatchNorm2d(leaving)
    )
    return Residual(Sequential(body), shortcut)


def resnet18(
    num_classes: int = 1000,
    in_channels: int = 3,
    width: float = 1.0,
    *,
    stem: int = 224,
    released: bool = False,
    **layers: Unpack[LayerOptions],
) -> ImageNetwork:
    """The Bi-Real ResNet-18.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of an image.
        width: Factor on every number of channels.
        stem: 224 for ImageNet's stem (7×7 convolution and max pooling, each with stride 2), 32 for a single
            3×3 convolution that keeps the size.
        released: As in the authors' code: a 3×3 stem of stride 1 with a bias whatever the size, and no neurons before
            the global pooling. For ImageNet it counts 4.16 MB, and ours 4.19; Table 2 has 4.22.
        layers: `weights` and `neuron`, as in `vgg`.

    Example:
        >>> net = resnet18(num_classes=10, width=0.125, stem=32)
        >>> net(torch.zeros(2, 3, 32, 32), None)[0].shape
        torch.Size([2, 10])
    """
    if stem not in (224, 32):
        raise UserError(f"stem: received {stem}; expected 224 (7×7, pooled) or 32 (3×3), by image size.")
    weights, neuron = layers.get("weights", "binary"), layers.get("neuron") or LIF()
    channels = [scaled(stage, width) for stage in _STAGES]
    made: dict[str, nn.Module] = {}
    if released:
        made["stem"] = nn.Conv2d(in_channels, channels[0], 3, padding=1)
        made["norm"] = BatchNorm2d(channels[0])
    elif stem == 224:
        made["stem"] = nn.Conv2d(in_channels, channels[0], 7, stride=2, padding=3, bias=False)
        made["norm"] = BatchNorm2d(channels[0])
        made["stem_pool"] = nn.MaxPool2d(3, stride=2, padding=1)
    else:
        made["stem"] = nn.Conv2d(in_channels, channels[0], 3, padding=1, bias=False)
        made["norm"] = BatchNorm2d(channels[0])
    entering = channels[0]
    for stage, leaving in enumerate(channels):
        for block in range(_BLOCKS_PER_STAGE):
            stride = 2 if stage > 0 and block == 0 else 1
            made[f"stage{stage + 1}_{block + 1}"] = _block(entering, leaving, stride, weights, neuron)
            entering = leaving
    if not released:
        made["lif"] = copy.deepcopy(neuron)
    made |= head(entering, num_classes)
    return ImageNetwork(made, in_channels, minimum_size=1)
