"""ResNets of blocks with two 3×3 convolutions each, as the systems that the paper compares with have them.

With `spikes_added=False` a block is neuron(BN(conv(neuron(BN(conv(x))))) + shortcut), the usual block with neurons for
ReLUs; with True it is SEW's, neuron(BN(conv(neuron(BN(conv(x)))))) + shortcut, which adds spikes to spikes.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from bsnn.errors import UserError
from bsnn.models.vgg import head, scaled
from bsnn.nn.network import ImageNetwork, Residual, Sequential
from bsnn.nn.neuron import LIF, Neuron
from bsnn.nn.norm import BatchNorm2d
from bsnn.nn.synapse import TracedConv2d, Weights

Convolution = Callable[..., nn.Module]
"""Called as `nn.Conv2d` is, with the channels, the size of the kernel, stride and padding."""

_STAGES = (64, 128, 256, 512)


def basic_resnet(
    blocks: Sequence[int] = (2, 2, 2, 2),
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    width: float = 1.0,
    stem: int = 32,
    weights: Weights = "real",
    neuron: Neuron | None = None,
    convolution: Convolution | None = None,
    spikes_added: bool = False,
) -> ImageNetwork:
    """A ResNet of two-convolution blocks; (2, 2, 2, 2) is ResNet-18, (3, 4, 6, 3) ResNet-34.

    Args:
        blocks: Number of blocks of each stage, of 64, 128, 256 and 512 channels.
        num_classes: Number of logits.
        in_channels: Channels of an image.
        width: Factor on every number of channels.
        stem: 32 for a 3×3 convolution that keeps the size, 224 for ImageNet's 7×7 with max pooling, each with stride 2.
        weights: Of all convolutions but the stem.
        neuron: The neuron to copy into every layer; `LIF()` by default.
        convolution: Makes all convolutions but the stem, instead of `weights`.
        spikes_added: Whether a block ends in neurons before the shortcut is added, as in SEW-ResNet, or after.

    Example:
        >>> net = basic_resnet(num_classes=35, in_channels=1)
        >>> round(bsnn.model_size(net).stored_bytes / 1e6, 2)  # ATIF's, in Table 5
        44.74
    """
    if stem not in (224, 32):
        raise UserError(f"stem: received {stem}; expected 224 (7×7, pooled) or 32 (3×3), by image size.")
    neuron, make = neuron or LIF(), convolution or functools.partial(TracedConv2d, weights=weights)
    channels = [scaled(stage, width) for stage in _STAGES[: len(blocks)]]
    first: dict[str, Any] = {"kernel_size": 3, "padding": 1}
    if stem == 224:
        first = {"kernel_size": 7, "stride": 2, "padding": 3}
    made: dict[str, nn.Module] = {
        "stem": nn.Conv2d(in_channels, channels[0], bias=False, **first),
        "norm": BatchNorm2d(channels[0]),
        "lif": copy.deepcopy(neuron),
    }
    if stem == 224:
        made["pool1"] = nn.MaxPool2d(3, stride=2, padding=1)
    entering = channels[0]
    for stage, (leaving, count) in enumerate(zip(channels, blocks, strict=True), start=1):
        for number in range(1, count + 1):
            stride = 2 if stage > 1 and number == 1 else 1
            block = _added_before if spikes_added else _added_after
            made[f"stage{stage}_{number}"] = block(entering, leaving, stride, neuron, make)
            entering = leaving
    made |= head(entering, num_classes)
    return ImageNetwork(made, in_channels, minimum_size=1)


def _body(entering: int, leaving: int, stride: int, neuron: Neuron, make: Convolution) -> dict[str, nn.Module]:
    return {
        "conv1": make(entering, leaving, 3, stride=stride, padding=1),
        "norm1": BatchNorm2d(leaving),
        "lif1": copy.deepcopy(neuron),
        "conv2": make(leaving, leaving, 3, stride=1, padding=1),
        "norm2": BatchNorm2d(leaving),
    }


def _shortcut(entering: int, leaving: int, stride: int, make: Convolution) -> dict[str, nn.Module]:
    """Nothing where the shape stays."""
    if stride == 1 and entering == leaving:
        return {}
    return {"conv": make(entering, leaving, 1, stride=stride, padding=0), "norm": BatchNorm2d(leaving)}


def _added_after(entering: int, leaving: int, stride: int, neuron: Neuron, make: Convolution) -> Sequential:
    shortcut = _shortcut(entering, leaving, stride, make)
    body = Sequential(_body(entering, leaving, stride, neuron, make))
    return Sequential(
        {"sum": Residual(body, Sequential(shortcut) if shortcut else None), "lif2": copy.deepcopy(neuron)}
    )


def _added_before(entering: int, leaving: int, stride: int, neuron: Neuron, make: Convolution) -> Residual:
    shortcut = _shortcut(entering, leaving, stride, make)
    if shortcut:
        shortcut["lif"] = copy.deepcopy(neuron)
    body = {**_body(entering, leaving, stride, neuron, make), "lif2": copy.deepcopy(neuron)}
    return Residual(Sequential(body), Sequential(shortcut) if shortcut else None)


def wide_7b(
    *,
    num_classes: int = 10,
    in_channels: int = 2,
    width: float = 1.0,
    weights: Weights = "real",
    neuron: Neuron | None = None,
    convolution: Convolution | None = None,
    blocks: int = 7,
) -> ImageNetwork:
    """SEW's network for DVS-CIFAR10, "Wide-7B-Net" or 16Conv1FC: three blocks of 64 channels and four of 128.

    A 1×1 convolution with BatchNorm and neurons makes the channels where they change; a max pooling of two ends each
    block. Images of 128 × 128 leave one number per channel.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of an image.
        width: Factor on every number of channels.
        weights: Of all convolutions but the first.
        neuron: The neuron to copy into every layer; `LIF()` by default.
        convolution: Makes all convolutions but the first, instead of `weights`.
        blocks: Fewer than 7 for smaller images; what is left over is averaged.

    Example:
        >>> net = wide_7b(neuron=bsnn.LIF(gradient="bptt"), width=0.125)
        >>> net(torch.zeros(1, 2, 128, 128), None)[0].shape
        torch.Size([1, 10])
    """
    neuron, make = neuron or LIF(), convolution or functools.partial(TracedConv2d, weights=weights)
    made: dict[str, nn.Module] = {}
    entering = in_channels
    for number, channels in enumerate((64, 64, 64, 128, 128, 128, 128)[:blocks], start=1):
        leaving = scaled(channels, width)
        if entering != leaving:
            plain = nn.Conv2d(entering, leaving, 1, bias=False)
            made[f"conv{number}"] = plain if number == 1 else make(entering, leaving, 1, stride=1, padding=0)
            made[f"norm{number}"] = BatchNorm2d(leaving)
            made[f"lif{number}"] = copy.deepcopy(neuron)
        made[f"block{number}"] = _added_before(leaving, leaving, 1, neuron, make)
        made[f"pool{number}"] = nn.MaxPool2d(2)
        entering = leaving
    made |= head(entering, num_classes)
    return ImageNetwork(made, in_channels, minimum_size=2**blocks)
