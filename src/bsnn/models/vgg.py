"""VGG networks: conv → BatchNorm → LIF, average pooling (paper, Section 5.1).

The first convolution and the classifier are real-valued, every convolution between them is binary.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

from torch import nn

from bsnn.errors import UserError
from bsnn.nn.network import ImageNetwork
from bsnn.nn.neuron import LIF, Neuron
from bsnn.nn.norm import BatchNorm2d
from bsnn.nn.synapse import TracedConv2d, Weights

POOL = "pool"
VGG11 = (64, 128, POOL, 256, 256, POOL, 512, 512, POOL, 512, 512)


def scaled(channels: int, width: float) -> int:
    """Channels of a layer in a network of another width."""
    if not width > 0:
        raise UserError(f"width: received {width}; expected a positive factor, 1.0 for the paper's network.")
    return max(1, round(channels * width))


def head(channels: int, num_classes: int) -> dict[str, nn.Module]:
    """What a network of convolutions ends in: the mean over all pixels, and a real-valued classifier."""
    return {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "classifier": nn.Linear(channels, num_classes)}


def vgg(
    plan: Sequence[int | str],
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    width: float = 1.0,
    weights: Weights = "binary",
    neuron: Neuron | None = None,
    convolution: Callable[[int, int], nn.Module] | None = None,
    normalized: bool = True,
    dropout: float = 0.0,
) -> ImageNetwork:
    """A chain of 3×3 convolutions with the channels of `plan`, then global pooling and a classifier.

    Args:
        plan: Channels of each convolution, and `"pool"` for 2×2 average pooling.
        num_classes: Number of logits.
        in_channels: Channels of an image.
        width: Factor on every number of channels.
        weights: `"binary"`, or for comparison `"latent"` or `"real"`, for all convolutions but the first.
        neuron: The neuron to copy into every layer; `LIF()` by default.
        convolution: Makes the convolutions behind the first from the channels that enter and leave, instead of
            `weights`; they must keep height and width.
        normalized: Whether there is BatchNorm before the neurons; without it, the first convolution has a bias.
        dropout: Behind each layer of neurons.

    Example:
        >>> net = vgg((8, "pool", 16), in_channels=1)
        >>> logits, state = net(torch.zeros(2, 1, 8, 8), None)
        >>> logits.shape
        torch.Size([2, 10])
    """
    if not plan or plan[0] == POOL or any(not isinstance(c, int) and c != POOL for c in plan):
        raise UserError(f"plan: received {plan}; expected channel numbers and {POOL!r}, a number first.")
    neuron = neuron or LIF()
    make = convolution or functools.partial(TracedConv2d, kernel_size=3, padding=1, weights=weights)
    layers: dict[str, nn.Module] = {}
    entering, index = in_channels, 0
    for item in plan:
        if not isinstance(item, int):
            again = sum(name.startswith(f"pool{index}_") or name == f"pool{index}" for name in layers)
            layers[f"pool{index}_{again + 1}" if again else f"pool{index}"] = nn.AvgPool2d(2)
            continue
        index += 1
        leaving = scaled(item, width)
        layers[f"conv{index}"] = (
            nn.Conv2d(entering, leaving, 3, padding=1, bias=not normalized) if index == 1 else make(entering, leaving)
        )
        if normalized:
            layers[f"norm{index}"] = BatchNorm2d(leaving)
        layers[f"lif{index}"] = copy.deepcopy(neuron)
        if dropout:
            layers[f"dropout{index}"] = nn.Dropout(dropout)
        entering = leaving
    layers |= head(entering, num_classes)
    return ImageNetwork(layers, in_channels, minimum_size=2 ** sum(item == POOL for item in plan))


class LayerOptions(TypedDict, total=False):
    """What the layers of any network are made of; see `vgg`."""

    weights: Weights
    neuron: Neuron | None


def vgg11(
    num_classes: int = 10, in_channels: int = 3, width: float = 1.0, **layers: Unpack[LayerOptions]
) -> ImageNetwork:
    """The paper's VGG-11: 64C3-128C3-AP2-256C3-256C3-AP2-512C3-512C3-AP2-512C3-512C3-GAP-FC.

    Args:
        num_classes: Number of logits.
        in_channels: Channels of an image.
        width: Factor on every number of channels.
        layers: `weights` and `neuron`, as in `vgg`.

    Example:
        >>> net = vgg11(num_classes=10)
        >>> round(bsnn.model_size(net).stored_bytes / 1e6, 2), round(bsnn.model_size(net).real_bytes / 1e6, 2)
        (1.2, 36.91)
    """
    return vgg(VGG11, num_classes=num_classes, in_channels=in_channels, width=width, **layers)
