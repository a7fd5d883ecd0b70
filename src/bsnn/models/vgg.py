"""VGG networks: conv → BatchNorm → LIF, average pooling (paper, Section 5.1).

The first convolution and the classifier are real-valued, every convolution between them is binary.
"""

import copy
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

from torch import nn

from bsnn.errors import UserError
from bsnn.nn.network import ImageNetwork
from bsnn.nn.neuron import LIF, Neuron
from bsnn.nn.norm import BatchNorm2d
from bsnn.nn.synapse import TracedConv2d, Weights

POOL = "pool"
DOWN = "down"
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
        plan: Channels of each convolution, `"pool"` for 2×2 average pooling, and `"down"` before a convolution of
            stride 2, which also halves height and width.
        num_classes: Number of logits.
        in_channels: Channels of an image.
        width: Factor on every number of channels.
        weights: `"binary"`, or for comparison `"latent"` or `"real"`, for all convolutions but the first.
        neuron: The neuron to copy into every layer; `LIF()` by default.
        convolution: Makes the convolutions behind the first from the channels that enter and leave, instead of
            `weights`; they must keep height and width, so `plan` has no `"down"` before them.
        normalized: Whether there is BatchNorm before the neurons; without it, the first convolution has a bias.
        dropout: Behind each layer of neurons.

    Example:
        >>> net = vgg((8, "pool", 16), in_channels=1)
        >>> logits, state = net(torch.zeros(2, 1, 8, 8), None)
        >>> logits.shape
        torch.Size([2, 10])
    """
    _check(plan, strided=convolution is None)
    neuron = neuron or LIF()
    make = convolution or functools.partial(TracedConv2d, kernel_size=3, padding=1, weights=weights)
    layers: dict[str, nn.Module] = {}
    entering, index = in_channels, 0
    for before, item in itertools.pairwise((None, *plan)):
        if item == POOL:
            again = sum(name.startswith(f"pool{index}_") or name == f"pool{index}" for name in layers)
            layers[f"pool{index}_{again + 1}" if again else f"pool{index}"] = nn.AvgPool2d(2)
        if not isinstance(item, int):
            continue
        index += 1
        leaving = scaled(item, width)
        stride: dict[str, Any] = {"stride": 2} if before == DOWN else {}
        layers[f"conv{index}"] = (
            nn.Conv2d(entering, leaving, 3, padding=1, bias=not normalized, **stride)
            if index == 1
            else make(entering, leaving, **stride)
        )
        if normalized:
            layers[f"norm{index}"] = BatchNorm2d(leaving)
        layers[f"lif{index}"] = copy.deepcopy(neuron)
        if dropout:
            layers[f"dropout{index}"] = nn.Dropout(dropout)
        entering = leaving
    layers |= head(entering, num_classes)
    return ImageNetwork(layers, in_channels, _minimum_size(plan))


def _check(plan: Sequence[int | str], *, strided: bool) -> None:
    """Refuses a plan that is no chain of convolutions and poolings."""
    received = f"plan: received {','.join(map(str, plan)) or 'none'}; expected"
    if not plan or plan[0] == POOL or any(not isinstance(item, int) and item not in (POOL, DOWN) for item in plan):
        raise UserError(f"{received} channel numbers, {POOL!r} and {DOWN!r}, a convolution first, as 32,{POOL},64.")
    for place, item in enumerate(plan):
        if item == DOWN and not isinstance(next(iter(plan[place + 1 :]), None), int):
            raise UserError(f"{received} channels behind each {DOWN!r}, as 32,{DOWN},64.")
        if item == DOWN and place and not strided:
            raise UserError(f"{received} no {DOWN!r} behind the first convolution: this network's have no stride.")


def _minimum_size(plan: Sequence[int | str]) -> int:
    """The smallest height and width of which something is left."""
    size = 1
    for item in reversed(plan):
        size = 2 * size - (item == DOWN) if item in (POOL, DOWN) else size
    return size


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
