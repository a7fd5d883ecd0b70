"""A first convolution that is not learned: filters that make neighboring pixels uncorrelated, with equal variance.

They are the principal axes of the small squares that the training samples consist of, each divided by its standard
deviation, and the negatives of these: a neuron fires for positive currents only. With more output channels than that,
sums and differences of two axes follow. BatchNorm behind them is not learned either, so that nothing goes back through
the largest maps.
"""

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bsnn.errors import UserError

NUM_SAMPLES = 2000
"""Training samples that the filters are computed from."""

# Added to variances, relative to their mean: axes in which samples hardly differ are noise.
_REGULARIZATION = 5e-4


def whiten(net: nn.Module, samples: Iterable[Tensor]) -> None:
    """Computes the first convolution of a network from samples, and fixes it and the BatchNorm behind it.

    Args:
        net: The network; its first layer is a convolution with real-valued weights, its second one BatchNorm.
        samples: Batches of what enters it.

    Raises:
        UserError: If the network begins otherwise, or with more filters than there are axes and pairs of them, or if
            the samples are all alike.

    Example:
        >>> net = bsnn.models.residual((16, "down", 32), in_channels=1)
        >>> whiten(net, [torch.randn(8, 1, 16, 16)])
        >>> net.stem.weight.requires_grad
        False
    """
    convolution, norm = [*(module for module in net.modules() if not list(module.children())), None, None][:2]
    if not isinstance(convolution, nn.Conv2d) or not isinstance(norm, nn.modules.batchnorm._BatchNorm):
        raise UserError(
            f"first_layer: received whitened for a network that begins with {type(convolution).__name__} and "
            f"{type(norm).__name__}; expected Conv2d and BatchNorm2d. Leave the first layer learned."
        )
    axes = _axes(convolution, samples)
    filters = _filters(axes, convolution.out_channels)
    with torch.no_grad():
        convolution.weight.copy_(filters.view_as(convolution.weight))
    for parameter in (*convolution.parameters(), *norm.parameters()):
        parameter.requires_grad_(False)


def _axes(convolution: nn.Conv2d, samples: Iterable[Tensor]) -> Tensor:
    """The principal axes of what the filters see, over their standard deviations; the largest variance first."""
    total = squares = number = 0
    for batch in samples:
        images = batch.flatten(0, -4).to(convolution.weight)
        seen = F.unfold(images, convolution.kernel_size, convolution.dilation, 0, convolution.stride)
        rows = seen.transpose(1, 2).flatten(0, 1).double()
        total, squares, number = total + rows.sum(0), squares + rows.T @ rows, number + len(rows)
    assert isinstance(total, Tensor)
    covariance = squares / number - torch.outer(total, total) / number**2
    if not covariance.trace() > 0:
        raise UserError(
            "first_layer: received whitened for training samples without any difference between pixels; expected "
            "samples that differ. Look at them with `bsnn data`, or leave the first layer learned."
        )
    variances, axes = torch.linalg.eigh(covariance)
    axes = axes / (variances.clamp(min=0) + _REGULARIZATION * variances.mean()).sqrt()
    # An axis has no direction; so that it has one on every machine, its largest element is positive.
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    return (axes * largest.sign()).T.flip(0)


def _filters(axes: Tensor, number: int) -> Tensor:
    """So many filters: the axes, or the first of them, then sums and differences of two that are near to each other."""
    combined = (
        (axes[index] + sign * axes[index + distance]) / 2**0.5
        for sign in (1, -1)
        for distance in range(1, len(axes))
        for index in range(len(axes) - distance)
    )
    half = list(itertools.islice(itertools.chain(axes, combined), number // 2))
    if number % 2 or 2 * len(half) < number:
        most = 2 * len(axes) ** 2
        raise UserError(
            f"first_layer: received whitened for {number} filters of {len(axes)} weights each; expected an even number "
            f"of filters, at most {most}. Change the first number of --plan, or leave the first layer learned."
        )
    filters = torch.stack(half)
    return torch.cat([filters, -filters])
