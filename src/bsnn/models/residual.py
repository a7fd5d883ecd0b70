"""A residual network without real-valued convolutions behind the stem: every block's shortcut is free of weights.

A block is x + BN(conv(LIF(BN(x)))): what flows between blocks is real-valued, as in Bi-Real networks, what enters a
binary convolution is spikes. The inner BatchNorm gives each channel of each block a threshold of its own. If a block
has more channels, the shortcut repeats its own. The resolution is halved by the maximum of what flows between two
blocks, or by averages within a block, of its spikes and of its shortcut.
"""

import copy
import functools
import itertools
from collections.abc import Callable, Sequence

from torch import nn

from bsnn.errors import UserError
from bsnn.models.vgg import head, scaled
from bsnn.nn.network import Concat, ImageNetwork, Residual, Sequential
from bsnn.nn.neuron import LIF, Neuron
from bsnn.nn.norm import BatchNorm2d
from bsnn.nn.synapse import TracedConv2d, Weights

DOWN = "down"
MAX = "max"


def residual(
    plan: Sequence[int | str],
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    width: float = 1.0,
    weights: Weights = "binary",
    neuron: Neuron | None = None,
    convolution: Callable[[int, int], nn.Module] | None = None,
) -> ImageNetwork:
    """A real-valued 3×3 stem, residual blocks of one binary 3×3 convolution each, global pooling and a classifier.

    Args:
        plan: Channels of the stem, then those of each block; `"max"` between two of them for 2×2 maximum pooling;
            `"down"` before a stem of stride 2 or a block that halves height and width by averages. Each number of
            channels is that before it, or a multiple.
        num_classes: Number of logits.
        in_channels: Channels of an image.
        width: Factor on the stem's channels; those of each block remain the same multiple of them.
        weights: `"binary"`, or for comparison `"latent"` or `"real"`, of the blocks' convolutions.
        neuron: The neuron to copy into every block; `LIF()` by default.
        convolution: Makes the blocks' convolutions from the channels that enter and leave, instead of `weights`.

    Example:
        >>> net = residual((64, "max", 128, 128, "max", 256, 256, "max", 512, 512))
        >>> bsnn.model_size(net).binary_weights
        4644864
    """
    _check(plan)
    neuron = neuron or LIF()
    make = convolution or functools.partial(TracedConv2d, kernel_size=3, padding=1, weights=weights)
    channels = [item for item in plan if isinstance(item, int)]
    stem, *before = [word for word, item in itertools.pairwise((None, *plan)) if isinstance(item, int)]
    strided, halvings = stem == DOWN, sum(word in (DOWN, MAX) for word in before)
    entering = scaled(channels[0], width)
    made: dict[str, nn.Module] = {
        "stem": nn.Conv2d(in_channels, entering, 3, stride=1 + strided, padding=1, bias=False),
        "norm": BatchNorm2d(entering),
    }
    for index, word in enumerate(before, start=1):
        copies = channels[index] // channels[index - 1]
        if word == MAX:
            made[f"pool{index}"] = nn.MaxPool2d(2)
        made[f"block{index}"] = _block(entering, copies, make, neuron, down=word == DOWN)
        entering *= copies
    made |= {"last_norm": BatchNorm2d(entering), "lif": copy.deepcopy(neuron)}
    made |= head(entering, num_classes)
    return ImageNetwork(made, in_channels, minimum_size=2**halvings * (1 + strided) - strided)


def _block(
    entering: int, copies: int, convolution: Callable[[int, int], nn.Module], neuron: Neuron, *, down: bool
) -> Residual:
    """One block, which leaves `copies` times as many channels as enter it."""
    leaving = entering * copies
    body: dict[str, nn.Module] = {"norm1": BatchNorm2d(entering), "lif": copy.deepcopy(neuron)}
    shortcut: list[nn.Module] = []
    if down:
        body["pool"] = nn.AvgPool2d(2)
        shortcut.append(nn.AvgPool2d(2))
    body["conv"] = convolution(entering, leaving)
    body["norm2"] = BatchNorm2d(leaving)
    if copies > 1:
        shortcut.append(Concat(*(nn.Identity() for _ in range(copies))))
    return Residual(Sequential(body), Sequential(*shortcut) if shortcut else None)


def _check(plan: Sequence[int | str]) -> None:
    """Refuses a plan that is no chain of blocks."""
    words = f"plan: received {','.join(map(str, plan)) or 'none'}; expected"
    if any(item not in (DOWN, MAX) and not (isinstance(item, int) and item > 0) for item in plan):
        raise UserError(f"{words} channel numbers, {MAX!r} and {DOWN!r}, such as 64,{MAX},128,128.")
    followed = all(isinstance(after, int) for item, after in itertools.pairwise((*plan, None)) if isinstance(item, str))
    if not plan or plan[0] == MAX or not followed:
        raise UserError(
            f"{words} the stem's channels first, which only {DOWN!r} may precede, and a number of channels after each "
            f"{MAX!r} or {DOWN!r}."
        )
    channels = [item for item in plan if isinstance(item, int)]
    for before, after in itertools.pairwise(channels):
        if after % before:
            raise UserError(
                f"{words} each number of channels to be a multiple of that before it, because a shortcut repeats its "
                f"channels; {after} is no multiple of {before}."
            )
