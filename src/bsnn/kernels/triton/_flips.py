# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false
"""Flips: bits are turned where W·M is above a threshold that the device itself computes, and counted."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bsnn.kernels.triton._momentum import decoded
from bsnn.kernels.triton._operator import as_double, bits_of, counter, is_last, launch, operator

_BYTES = 256
_PROGRAMS = 2048


@triton.jit
def _flip_kernel(
    bits, momentum, scales, moment, refused, made, partial, count, number, gamma, eps,
    EIGHT_BITS: tl.constexpr, MOMENT: tl.constexpr, BYTES: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Flips where W·M > γ sqrt(v + ε), or without v where W·M > γ; γ and ε are the bits of double-precision numbers."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    threshold = as_double(gamma)
    if MOMENT:
        threshold = threshold * tl.sqrt(tl.load(moment) + as_double(eps))
    limit = tl.where(tl.load(refused) == 0, threshold.to(tl.float32), float("inf"))
    flipped = tl.zeros((), dtype=tl.int32)
    for start in range(program, tl.cdiv(number, 8 * BYTES), programs):
        byte = start * BYTES + tl.arange(0, BYTES)
        place = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
        inside = place < number
        values = tl.load(momentum + place, mask=inside, other=0)
        if EIGHT_BITS:
            values = decoded(values, tl.load(scales + byte // 32, mask=byte * 8 < number, other=0.0))
        packed = tl.load(bits + byte, mask=byte * 8 < number, other=0).to(tl.int32)
        up = (packed[:, None] >> tl.arange(0, 8)[None, :]) & 1
        flips = ((tl.where(up == 1, values, -values) > limit) & inside).to(tl.int32)
        turned = tl.sum(flips << tl.arange(0, 8)[None, :], axis=1)
        tl.store(bits + byte, (packed ^ turned).to(tl.uint8), mask=byte * 8 < number)
        flipped += tl.sum(flips)
    tl.store(partial + program, flipped)
    if is_last(count, programs):
        p = tl.arange(0, PROGRAMS)
        tl.store(made, tl.sum(tl.load(partial + p, mask=p < programs, other=0).to(tl.int64)))


@operator(
    "Tensor(a!) bits, Tensor momentum, Tensor? scales, Tensor? moment, Tensor refused, Tensor(b!) made, int number, "
    "float gamma, float eps"
)
def flip(
    bits: Tensor, momentum: Tensor, scales: Tensor | None, moment: Tensor | None, refused: Tensor, made: Tensor,
    number: int, gamma: float, eps: float,
) -> None:  # fmt: skip
    """Turns the bits where a weight flips, and writes their number to `made`; none if a gradient was refused.

    Args:
        bits: The weights; written to.
        momentum: In single precision, or codes.
        scales: Of the codes.
        moment: v, in double precision; None for a threshold of γ alone.
        refused: See `_momentum`.
        made: The number of flips; written to.
        number: Of weights.
        gamma: γ.
        eps: ε.
    """
    programs = min(triton.cdiv(number, 8 * _BYTES), _PROGRAMS)
    partial = bits.new_empty(programs, dtype=torch.int32)
    launch(
        _flip_kernel, (programs,), bits, momentum, scales, moment, refused, made, partial, counter(bits, 1), number,
        bits_of(gamma), bits_of(eps), EIGHT_BITS=scales is not None, MOMENT=moment is not None, BYTES=_BYTES,
        PROGRAMS=_PROGRAMS,
    )  # fmt: skip
