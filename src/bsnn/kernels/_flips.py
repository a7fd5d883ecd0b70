"""Flips of one-bit weights in C (csrc/flips.c): the same as in torch, with nothing in between in memory."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bsnn.kernels._library import Function, library_for, run
from bsnn.kernels.operations import Flippable, FlipThreshold


def flip(weights: Sequence[Flippable], refused: Tensor) -> list[Tensor] | None:
    """See `operations.flip`; on a CPU, gradients are refused before they get here."""
    libraries = [library_for(parameter.bits, torch.uint8) for parameter in weights]
    if None in libraries or not all(map(_is_plain, weights)):
        return None
    counts = []
    for library, (bits, number, stored, threshold) in zip(libraries, weights, strict=True):
        assert library is not None
        found = bits.new_empty(torch.get_num_threads(), dtype=torch.int64)
        limit, numbers = _limit(threshold), torch.tensor(number)
        run(library, Function.FLIP, stored["momentum"], bits, limit, numbers, found)
        counts.append(found.sum())
    return counts


def _is_plain(parameter: Flippable) -> bool:
    """Whether a momentum is in single precision, one number after another."""
    momentum = parameter.stored["momentum"]
    return "scales" not in parameter.stored and library_for(momentum) is not None and momentum.is_contiguous()


def _limit(threshold: FlipThreshold) -> Tensor:
    """γ sqrt(v + ε), or γ; compared in single precision, as a rule's own function does."""
    gamma, moment, eps = threshold
    return torch.tensor(gamma, dtype=torch.float32) if moment is None else (gamma * torch.sqrt(moment + eps)).float()
