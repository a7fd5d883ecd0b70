"""Updates of one-bit weights in torch on a GPU: all parameters together, because each would cost its launches.

The same values as one parameter at a time. What decides stays on the device: `refused` is 0, and NaN from the first
gradient on that is not finite; then no momentum moves, and no weight flips, because nothing is above NaN.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bsnn.kernels import torch_internals as internals
from bsnn.kernels.bits import pack_flat, unpack
from bsnn.kernels.operations import Flippable
from bsnn.kernels.pieces import widest


def mean_squares(gradients: Sequence[Tensor], refused: Tensor) -> list[Tensor]:
    """The mean squares of gradients; adds NaN to `refused`, and is 0 for all, if one is not finite."""
    squares = torch.stack(internals.mean_squares(gradients, widest(refused.device)))
    refused.add_(squares.sum(), alpha=0)
    return list(squares.nan_to_num_(0, 0, 0).unbind())


def fold(gradients: Sequence[Tensor], momenta: Sequence[Tensor], refused: Tensor, rate: float, adding: bool) -> None:
    """M ← M + rate · (G − M) or, if `adding`, M + rate · G, unless a gradient was refused; for flat tensors."""
    # What is not finite would stay so when it is multiplied by a rate of 0.
    parts = torch.cat(list(gradients)).nan_to_num_(0, 0, 0).split([len(gradient) for gradient in gradients])
    internals.move_together(momenta, parts, (refused + rate).nan_to_num_(0), adding=adding)


def flip(weights: Sequence[Flippable], momenta: Sequence[Tensor], refused: Tensor) -> list[Tensor]:
    """Turns the bits where W·M is above the threshold; returns how many of each parameter were turned.

    Args:
        weights: Parameters on one device.
        momenta: Theirs, flat.
        refused: See above.
    """
    packed = torch.cat([parameter.bits for parameter in weights])
    sizes = [8 * len(parameter.bits) for parameter in weights]
    signs = unpack(packed, 8 * len(packed), momenta[0].dtype).split(sizes)
    products = internals.products(
        [values[: parameter.number] for values, parameter in zip(signs, weights, strict=True)], momenta
    )
    filled = all(size == parameter.number for size, parameter in zip(sizes, weights, strict=True))
    turned = (torch.empty if filled else torch.zeros)(8 * len(packed), dtype=torch.bool, device=packed.device)
    parts = [part[: parameter.number] for part, parameter in zip(turned.split(sizes), weights, strict=True)]
    for product, limit, part in zip(products, _limits(weights, refused), parts, strict=True):
        torch.gt(product, limit, out=part)
    packed ^= pack_flat(turned)
    internals.copy_together([parameter.bits for parameter in weights], packed.split([size // 8 for size in sizes]))
    return [part.sum() for part in parts]


def _limits(weights: Sequence[Flippable], refused: Tensor) -> list[Tensor]:
    """γ sqrt(v + ε) of each parameter, or γ; NaN if a gradient was refused."""
    limits: dict[int, Tensor] = {}
    alike: dict[tuple[float, float | None], list[int]] = {}
    for index, (_, _, _, threshold) in enumerate(weights):
        alike.setdefault((threshold.gamma, None if threshold.moment is None else threshold.eps), []).append(index)
    for (gamma, eps), indices in alike.items():
        if eps is None:
            values = (refused + gamma).expand(len(indices))
        else:
            moments = [weights[index].threshold.moment for index in indices]
            values = torch.stack([moment for moment in moments if moment is not None])
            values = values.add_(eps).sqrt_().mul_(gamma).add_(refused)
        limits |= dict(zip(indices, values.unbind(), strict=True))
    return [limits[index] for index in range(len(weights))]
