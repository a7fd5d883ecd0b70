"""Momentum in eight bits a weight, in blocks, rounded at random so that it stays unbiased.

    M = scale · sign(q) · (q / 127)²        q = −127 … 127, one scale a block of 256 weights

Plain rounding would lose every step smaller than half a level; rounded at random, each is kept on average, at the
price of noise. A step of δ between levels g apart adds a variance of δ g, so that over 1 / (1 − β1) updates the noise
does not shrink with 1 − β1 as the momentum's own does. Squaring puts the levels 127 times closer together around zero,
where the sign of M and with it every flip is decided, and leaves the noise to weights that are far from one
(benchmarks/momentum.py).
"""

import math

import torch
from torch import Tensor

BLOCK = 256
_LEVELS = 127


def zeros(num_weights: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Codes and scales of a momentum of zeros."""
    blocks = math.ceil(num_weights / BLOCK)
    codes = torch.zeros(blocks * BLOCK, dtype=torch.int8, device=device)
    return codes, torch.zeros(blocks, dtype=torch.float32, device=device)


def decode(codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values of whole blocks.

    Example:
        >>> codes, scales = encode(torch.linspace(-1, 1, 256), torch.Generator().manual_seed(0))
        >>> values = decode(codes, scales)
        >>> values[0], values[-1], (values - torch.linspace(-1, 1, 256)).abs().max() < 2 / 127
        (tensor(-1.), tensor(1.), tensor(True))
    """
    values = codes.to(dtype)
    return values.mul_(values.abs()).view(-1, BLOCK).mul_(scales[:, None] / _LEVELS**2).view(-1)


def encode(values: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Codes and scales of whole blocks; each value is rounded to one of the two levels around it, on average itself."""
    blocks = values.view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1)
    # In units in which the levels are 0, 1, 4, 9, …; a block of zeros has no scale.
    unit = torch.where(scales > 0, _LEVELS**2 / scales, 0.0)
    magnitude = (blocks.abs() * unit[:, None]).view(-1)
    lower = magnitude.sqrt().floor_().clamp_(max=_LEVELS - 1)
    above = (magnitude - lower.square()).div_(2 * lower + 1)  # 0 at the level below, 1 at the level above
    dice = torch.rand(above.shape, generator=random, dtype=above.dtype, device=above.device)
    codes = lower.add_(dice < above).copysign_(values)
    return codes.to(torch.int8), scales.float()
