# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false
"""A gradient's mean square, and the gradient taken into the momentum, in 32 or in 8 bits.

`refused` is one number on the device: 0, and NaN from the first gradient on that is not finite. From then on nothing is
folded and nothing flips, and the host need not wait to know.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bsnn.kernels.triton._operator import counter, is_last, launch, operator

_BLOCK = 4096
_PROGRAMS = 1024
_BLOCK_OF_CODES = 256
_LEVELS = tl.constexpr(127)


@triton.jit
def _square_kernel(gradient, square, refused, partial, count, number, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    program, programs = tl.program_id(0), tl.num_programs(0)
    total = tl.zeros((), dtype=tl.float64)
    for start in range(program, tl.cdiv(number, BLOCK), programs):
        place = start * BLOCK + tl.arange(0, BLOCK)
        # In double precision no square overflows, and tiny ones do not vanish.
        values = tl.load(gradient + place, mask=place < number, other=0.0).to(tl.float64)
        total += tl.sum(values * values)
    tl.store(partial + program, total)
    if is_last(count, programs):
        p = tl.arange(0, PROGRAMS)
        mean = tl.sum(tl.load(partial + p, mask=p < programs, other=0.0)) / number
        tl.store(square, tl.where(mean - mean == 0, mean, 0.0))
        tl.store(refused, tl.load(refused) + (mean - mean))  # 0, or what is not a number and stays so


@operator("Tensor gradient, Tensor(a!) square, Tensor(b!) refused")
def mean_square(gradient: Tensor, square: Tensor, refused: Tensor) -> None:
    """Writes the mean square of a gradient or, if it is not finite, 0, and adds NaN to `refused`."""
    programs = min(triton.cdiv(gradient.numel(), _BLOCK), _PROGRAMS)
    partial = gradient.new_empty(programs, dtype=torch.float64)
    launch(
        _square_kernel, (programs,), gradient, square, refused, partial, counter(gradient, 1), gradient.numel(),
        BLOCK=_BLOCK, PROGRAMS=_PROGRAMS,
    )  # fmt: skip


@triton.jit
def _moved(past, now, rate, ADDING: tl.constexpr):
    """The momentum with a gradient taken into it, rounded once as torch's `lerp_` and `add_` round it on a CPU."""
    now = now.to(tl.float32)
    rates = tl.zeros_like(past) + rate
    if ADDING:
        moved = tl.fma(now, rates, past)
    else:
        small = tl.abs(rates) < 0.5
        moved = tl.fma(tl.where(small, rates, rates - 1.0), now - past, tl.where(small, past, now))
    return moved


@triton.jit
def _fold_kernel(gradient, momentum, refused, number, rate, ADDING: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < tl.where(tl.load(refused) == 0, number, 0)
    moved = _moved(tl.load(momentum + place, mask=inside), tl.load(gradient + place, mask=inside), rate, ADDING)
    tl.store(momentum + place, moved, mask=inside)


@operator("Tensor gradient, Tensor(a!) momentum, Tensor refused, float rate, bool adding")
def fold(gradient: Tensor, momentum: Tensor, refused: Tensor, rate: float, adding: bool) -> None:
    """M ← M + rate · (G − M) or, if `adding`, M + rate · G; nothing if a gradient was refused."""
    grid = (triton.cdiv(gradient.numel(), 1024),)
    launch(_fold_kernel, grid, gradient, momentum, refused, gradient.numel(), rate, ADDING=adding, BLOCK=1024)


@triton.jit
def decoded(codes, scales):
    """The values of codes, a row for each scale."""
    values = codes.to(tl.float32)
    return values * tl.abs(values) * tl.div_rn(scales, tl.zeros_like(scales) + _LEVELS * _LEVELS)[:, None]


@triton.jit(do_not_specialize=["seed"])
def _fold_8_kernel(
    gradient, codes, scales, dice, refused, seed, number, blocks, rate,
    ADDING: tl.constexpr, DICE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = row.to(tl.int64)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    accepted = tl.load(refused) == 0
    known = row < tl.where(accepted, blocks, 0)
    whole = known[:, None] & (place >= 0)
    inside = place < tl.where(accepted, number, 0)
    past = decoded(tl.load(codes + place, mask=whole, other=0), tl.load(scales + row, mask=known, other=0.0))
    moved = _moved(past, tl.load(gradient + place, mask=inside, other=0.0), rate, ADDING)
    values = tl.where(inside, moved, past)
    scale = tl.max(tl.abs(values), axis=1)
    one = tl.zeros_like(scale) + 1.0
    unit = tl.where(scale > 0, tl.div_rn(one, tl.where(scale > 0, scale, one)) * (_LEVELS * _LEVELS), 0.0)
    magnitude = tl.abs(values) * unit[:, None]
    lower = tl.minimum(tl.floor(tl.sqrt_rn(magnitude)), _LEVELS - 1)
    above = tl.div_rn(magnitude - lower * lower, 2 * lower + 1)
    rolled = tl.load(dice + place, mask=whole, other=1.0) if DICE else tl.rand(seed, place)
    code = lower + (rolled < above).to(tl.float32)
    tl.store(codes + place, tl.where(values < 0, -code, code).to(tl.int8), mask=whole)
    tl.store(scales + row, scale, mask=known)


@operator(
    "Tensor gradient, Tensor(a!) codes, Tensor(b!) scales, Tensor? dice, Tensor refused, int seed, float rate, "
    "bool adding"
)
def fold_8(
    gradient: Tensor, codes: Tensor, scales: Tensor, dice: Tensor | None, refused: Tensor, seed: int, rate: float,
    adding: bool,
) -> None:  # fmt: skip
    """As `fold`, with the momentum in blocks of 256 codes, each block with its scale, rounded at random.

    Args:
        gradient: Flat.
        codes: Written to.
        scales: Written to.
        dice: A random number for each code; None lets the kernel make them, which moves no bytes.
        refused: See above.
        seed: Of the kernel's own random numbers.
        rate: See `fold`.
        adding: See `fold`.
    """
    blocks, rows = len(scales), 4
    launch(
        _fold_8_kernel, (triton.cdiv(blocks, rows),), gradient, codes, scales, dice, refused, seed, gradient.numel(),
        blocks, rate, ADDING=adding, DICE=dice is not None, ROWS=rows, BLOCK=_BLOCK_OF_CODES,
    )  # fmt: skip
