# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false
"""Flips: bits are turned where W·M is above a threshold that the device itself computes, and counted."""

import itertools
from collections.abc import Sequence

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
    refused, bits, momenta, scales, moments, starts, ends, numbers, made, partial, count, gamma, eps,
    EIGHT_BITS: tl.constexpr, MOMENT: tl.constexpr, BYTES: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Flips where W·M > γ sqrt(v + ε), or without v where W·M > γ; γ and ε are the bits of double-precision numbers.

    Programs `starts[i]` to `ends[i]` share parameter i, so one launch is enough for all of them.
    """
    program = tl.program_id(0)
    own_bits, momentum, start, end, number, index = bits[0], momenta[0], starts[0], ends[0], numbers[0], 0
    if EIGHT_BITS:
        scale = scales[0]
    if MOMENT:
        moment = moments[0]
    for i in tl.static_range(1, len(bits)):
        here = program >= starts[i]
        own_bits, momentum = tl.where(here, bits[i], own_bits), tl.where(here, momenta[i], momentum)
        start, end = tl.where(here, starts[i], start), tl.where(here, ends[i], end)
        number, index = tl.where(here, numbers[i], number), tl.where(here, i, index)
        if EIGHT_BITS:
            scale = tl.where(here, scales[i], scale)
        if MOMENT:
            moment = tl.where(here, moments[i], moment)
    threshold = as_double(gamma)
    if MOMENT:
        threshold = threshold * tl.sqrt(tl.load(moment) + as_double(eps))
    limit = tl.where(tl.load(refused) == 0, threshold.to(tl.float32), float("inf"))
    flipped = tl.zeros((), dtype=tl.int32)
    for block in range(program - start, tl.cdiv(number, 8 * BYTES), end - start):
        byte = block * BYTES + tl.arange(0, BYTES)
        place = byte[:, None] * 8 + tl.arange(0, 8)[None, :]
        inside = place < number
        values = tl.load(momentum + place, mask=inside, other=0)
        if EIGHT_BITS:
            values = decoded(values, tl.load(scale + byte // 32, mask=byte * 8 < number, other=0.0))
        packed = tl.load(own_bits + byte, mask=byte * 8 < number, other=0).to(tl.int32)
        up = (packed[:, None] >> tl.arange(0, 8)[None, :]) & 1
        flips = ((tl.where(up == 1, values, -values) > limit) & inside).to(tl.int32)
        turned = tl.sum(flips << tl.arange(0, 8)[None, :], axis=1)
        tl.store(own_bits + byte, (packed ^ turned).to(tl.uint8), mask=byte * 8 < number)
        flipped += tl.sum(flips)
    tl.store(partial + program, flipped)
    if is_last(count + index, end - start):
        p = start + tl.arange(0, PROGRAMS)
        tl.store(made + index, tl.sum(tl.load(partial + p, mask=p < end, other=0).to(tl.int64)))


@operator(
    "Tensor(a!)[] bits, Tensor[] momenta, Tensor[]? scales, Tensor[]? moments, Tensor refused, Tensor(b!) made, "
    "int[] numbers, float gamma, float eps"
)
def flip(
    bits: Sequence[Tensor], momenta: Sequence[Tensor], scales: Sequence[Tensor] | None,
    moments: Sequence[Tensor] | None, refused: Tensor, made: Tensor, numbers: Sequence[int], gamma: float, eps: float,
) -> None:  # fmt: skip
    """Turns the bits where a weight flips, and writes their numbers to `made`; none if a gradient was refused.

    Args:
        bits: The weights of each parameter; written to.
        momenta: In single precision, or codes.
        scales: Of the codes.
        moments: v of each parameter, in double precision; None for a threshold of γ alone.
        refused: See `_momentum`.
        made: How many weights of each parameter flipped; written to.
        numbers: Of the weights of each parameter.
        gamma: γ.
        eps: ε.
    """
    programs = [min(triton.cdiv(number, 8 * _BYTES), _PROGRAMS) for number in numbers]
    ends = tuple(itertools.accumulate(programs))
    starts = (0, *ends[:-1])
    partial = made.new_empty(ends[-1], dtype=torch.int32)
    launch(
        _flip_kernel, (ends[-1],), refused, tuple(bits), tuple(momenta), None if scales is None else tuple(scales),
        None if moments is None else tuple(moments), starts, ends, tuple(numbers), made, partial,
        counter(made, len(numbers)), bits_of(gamma), bits_of(eps), EIGHT_BITS=scales is not None,
        MOMENT=moments is not None, BYTES=_BYTES, PROGRAMS=_PROGRAMS,
    )  # fmt: skip
