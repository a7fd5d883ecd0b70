"""A first convolution that is not learned: filters that make neighboring pixels uncorrelated, with equal variance.

They are the principal axes of the small squares that the training samples consist of, each divided by its standard
deviation, and the negatives of these: a neuron fires for positive currents only. With more output channels than that,
sums and differences of two axes follow. BatchNorm behind them is not learned either, so that nothing goes back through
the largest maps.
"""

import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bsnn.errors import UserError

NUM_SAMPLES = 2000
"""Training samples that the filters are computed from."""

# Added to variances, relative to their mean: axes in which samples hardly differ are noise.
_REGULARIZATION = 5e-4
# Variances below this share of the mean square are rounding.
_ROUNDING = 1e-9
# Numbers that are worked on at a time.
_CHUNK = 1 << 22


def fix_first_layer(net: nn.Module) -> nn.Conv2d:
    """Fixes the first convolution of a network and the BatchNorm behind it, and returns the convolution.

    Raises:
        UserError: If the network begins otherwise, or with more filters than there are axes and pairs of them.
    """
    first, norm = [*(module for module in net.modules() if not list(module.children())), None, None][:2]
    begins = f"first_layer: received whitened for a network that begins with {type(first).__name__}"
    if type(first) is not nn.Conv2d or first.groups > 1 or not isinstance(norm, nn.modules.batchnorm._BatchNorm):
        groups = f" of {first.groups} groups" if isinstance(first, nn.Conv2d) and first.groups > 1 else ""
        raise UserError(
            f"{begins}{groups} and {type(norm).__name__}; expected torch's Conv2d without groups, and BatchNorm2d. "
            "Leave the first layer learned."
        )
    number, weights = first.out_channels, first.weight[0].numel()
    if number % 2 or number > 2 * weights**2:
        raise UserError(
            f"{begins} of {number} filters, {weights} weights each; expected an even number of filters, at most "
            f"{2 * weights**2}. Change its channels (--plan, --width), or leave the first layer learned."
        )
    for parameter in (*first.parameters(), *norm.parameters()):
        parameter.requires_grad_(False)
    return first


def whiten(net: nn.Module, samples: Iterable[Tensor]) -> None:
    """Computes the first convolution of a network from samples, and fixes it and the BatchNorm behind it.

    Args:
        net: The network; its first layer is a convolution with real-valued weights, its second one BatchNorm.
        samples: Batches of what enters it.

    Raises:
        UserError: If that cannot be done with this network, or if samples are all alike, or smaller than a filter.

    Example:
        >>> net = bsnn.models.residual((16, "max", 32), in_channels=1)
        >>> whiten(net, [torch.randn(8, 1, 16, 16)])
        >>> net.stem.weight.requires_grad
        False
    """
    convolution = fix_first_layer(net)
    filters = _filters(_axes(convolution, samples), convolution.out_channels)
    with torch.no_grad():
        convolution.weight.copy_(filters.view_as(convolution.weight))


def _axes(convolution: nn.Conv2d, samples: Iterable[Tensor]) -> Tensor:
    """The principal axes of what the filters see, over their standard deviations; the largest variance first."""
    size = convolution.weight[0].numel()
    total, squares, number = torch.zeros(size).double(), torch.zeros(size, size).double(), 0
    for images in _chunks(convolution, samples):
        seen = F.unfold(images, convolution.kernel_size, convolution.dilation, 0, convolution.stride)
        rows = seen.transpose(1, 2).flatten(0, 1).double().cpu()
        total, squares, number = total + rows.sum(0), squares + rows.T @ rows, number + len(rows)
    covariance = squares / max(number, 1) - torch.outer(total, total) / max(number, 1) ** 2
    if not covariance.trace() > _ROUNDING * squares.trace() / max(number, 1):
        raise UserError(
            "first_layer: received whitened for training samples without any difference between pixels; expected "
            "samples that differ. Look at them with `bsnn data`, or leave the first layer learned."
        )
    variances, axes = torch.linalg.eigh(covariance)
    axes = axes / (variances.clamp(min=0) + _REGULARIZATION * variances.mean()).sqrt()
    # An axis has no direction; so that it has one on every machine, its largest element is positive.
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    return (axes * largest.sign()).T.flip(0)


def _chunks(convolution: nn.Conv2d, samples: Iterable[Tensor]) -> Iterator[Tensor]:
    """A few images at a time."""
    reach = [d * (k - 1) + 1 for d, k in zip(convolution.dilation, convolution.kernel_size, strict=True)]
    for batch in samples:
        images = batch.flatten(0, -4).to(convolution.weight)
        if any(side < needed for side, needed in zip(images.shape[2:], reach, strict=True)):
            raise UserError(
                f"first_layer: received whitened for samples of {' × '.join(map(str, images.shape[2:]))} pixels; "
                f"expected at least the {' × '.join(map(str, reach))} of a filter. Leave the first layer learned."
            )
        yield from images.split(max(1, _CHUNK // (images[0, 0].numel() * convolution.weight[0].numel())))


def _filters(axes: Tensor, number: int) -> Tensor:
    """So many filters: the axes, or the first of them, then sums and differences of two that are near to each other."""
    combined = (
        (axes[index] + sign * axes[index + distance]) / 2**0.5
        for sign in (1, -1)
        for distance in range(1, len(axes))
        for index in range(len(axes) - distance)
    )
    filters = torch.stack(list(itertools.islice(itertools.chain(axes, combined), number // 2)))
    return torch.cat([filters, -filters])
