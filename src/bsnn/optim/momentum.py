"""How the momentum is stored: in single precision, or in eight bits per weight.

In eight bits it is stored in blocks, rounded at random so that it stays unbiased:

    M = scale · sign(q) · (q / 127)²        q = −127 … 127, one scale per block of 256 weights

Plain rounding would lose every step smaller than half a level; rounded at random, each is kept on average, at the
price of noise. A step of δ between levels g apart adds a variance of δ g, so that over 1 / (1 − β1) updates the noise
does not shrink with 1 − β1 as the momentum's own does. Squaring puts the levels 127 times closer together around zero,
where the sign of M and with it every flip is decided, and leaves the noise to weights that are far from one
(benchmarks/momentum.py).
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from bsnn.kernels.pieces import is_whole, pieces, widest

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


# What an optimizer keeps for a parameter: `momentum`, and in eight bits also `scales`, the number of `roundings`, and
# the `shape` of the weights, which whole blocks do not tell.
Stored = dict[str, Any]
ON_CPU = ("roundings", "shape")
"""What of it stays on the CPU, whatever device the weights are on."""


def stored_zeros(weights: Tensor, bits: int) -> Stored:
    """A momentum of zeros for such weights, in 8 or 32 bits per weight (64 for weights in double precision)."""
    if bits == 8:
        codes, scales = zeros(weights.numel(), weights.device)
        shape = torch.tensor(weights.shape, dtype=torch.int64, device="cpu")
        roundings = torch.zeros((), dtype=torch.int64, device="cpu")
        return {"momentum": codes, "scales": scales, "roundings": roundings, "shape": shape}
    return {"momentum": torch.zeros(weights.shape, dtype=_wide(weights), device=weights.device)}


def stored_shape(stored: Stored) -> tuple[int, ...]:
    """The shape of the weights that a momentum belongs to."""
    return tuple(stored["shape"].tolist()) if "scales" in stored else tuple(stored["momentum"].shape)


def dense(stored: Stored, shape: torch.Size) -> Tensor:
    """The momentum as an ordinary tensor, whatever it is stored in."""
    if "scales" in stored:
        return decode(stored["momentum"], stored["scales"])[: shape.numel()].view(shape)
    return stored["momentum"].view(shape)


def read_pieces(stored: Stored, number: int) -> Iterator[tuple[slice, Tensor]]:
    """The momentum of `number` weights, flat, piece by piece, and where each piece lies."""
    for place in pieces(number, is_whole(stored["momentum"])):
        if "scales" in stored:
            blocks = slice(place.start // BLOCK, math.ceil(place.stop / BLOCK))
            whole = slice(place.start, blocks.stop * BLOCK)
            yield place, decode(stored["momentum"][whole], stored["scales"][blocks])[: place.stop - place.start]
        else:
            yield place, stored["momentum"].view(-1)[place]


def change_pieces(
    stored: Stored, weights: Tensor, change: Callable[[Tensor, slice], object], seed: Callable[[], int]
) -> None:
    """Lets `change` write to the momentum, flat, piece by piece.

    Args:
        stored: The momentum.
        weights: The parameter that it belongs to.
        change: Given a piece and its place.
        seed: Called for the seed of the rounding, if it is rounded.
    """
    move(stored, weights)
    if "scales" not in stored:
        change(stored["momentum"].view(-1), slice(0, weights.numel()))
        return
    codes, scales = stored["momentum"], stored["scales"]
    random = torch.Generator(weights.device).manual_seed(seed())
    for place in pieces(weights.numel(), is_whole(codes)):
        blocks = slice(place.start // BLOCK, math.ceil(place.stop / BLOCK))
        whole = slice(place.start, blocks.stop * BLOCK)
        values = decode(codes[whole], scales[blocks])
        change(values[: place.stop - place.start], place)
        codes[whole], scales[blocks] = encode(values, random)


def move(stored: Stored, weights: Tensor) -> None:
    """Takes a momentum to where its weights are; the network may have been moved or cast since."""
    if "scales" in stored:
        stored.update((name, stored[name].to(weights.device)) for name in ("momentum", "scales"))
    else:
        stored["momentum"] = stored["momentum"].to(weights.device, _wide(weights))


def moved(statistic: Tensor, weights: Tensor) -> Tensor:
    """A statistic of a rule where its weights are, in the most precise type there; see `move`."""
    return statistic.to(weights.device, widest(weights.device))


def _wide(weights: Tensor) -> torch.dtype:
    """At least single precision: in half precision, steps of 1 − β1 would be lost."""
    return torch.promote_types(weights.dtype, torch.float32)
