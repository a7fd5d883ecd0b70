# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false
"""BatchNorm's statistics of a batch, and what they make of it: one scale and one shift per channel.

Read once: a tile's mean and squared deviations from it, then those of all tiles joined in double precision (Chan et
al., 1979), so that a large mean costs no digits of the variance.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bsnn.kernels.triton._operator import (
    as_double,
    bits_of,
    column_sums,
    counter,
    is_last,
    launch,
    operator,
    shared_programs,
    tile,
)


@triton.jit
def _moments_kernel(
    x, weight, bias, running_mean, running_var, num_batches, made, partial, count,
    rows, channels, rate, eps, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """`partial` is [3][programs][channels]: values, their mean, squared deviations; `made` as in `moments`."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = c < channels
    number = tl.zeros((CHANNELS,), dtype=tl.float64)
    mean = tl.zeros((CHANNELS,), dtype=tl.float64)
    squares = tl.zeros((CHANNELS,), dtype=tl.float64)
    for start in range(program * ROWS, rows, programs * ROWS):
        r = start + tl.arange(0, ROWS)
        inside = (r < rows)[:, None] & known[None, :]
        values = tl.load(x + r.to(tl.int64)[:, None] * channels + c[None, :], mask=inside, other=0.0).to(tl.float32)
        size = tl.minimum(rows - start, ROWS).to(tl.float32)
        tile_mean = tl.sum(values, axis=0) / size
        off = tl.where(inside, values - tile_mean[None, :], 0.0)
        distance = tile_mean.to(tl.float64) - mean
        joined = number + size.to(tl.float64)
        share = size.to(tl.float64) / joined
        squares += tl.sum(off * off, axis=0).to(tl.float64) + distance * distance * number * share
        mean += distance * share
        number = joined
    plane, place = programs * channels, partial + program * channels + c
    tl.store(place, number, mask=known)
    tl.store(place + plane, number * mean, mask=known)
    tl.store(place + 2 * plane, squares, mask=known)
    if is_last(count + tl.program_id(1), programs):
        mean = column_sums(partial + plane, programs, channels, c, known, 16, CHANNELS) / rows
        squares = column_sums(partial + 2 * plane, programs, channels, c, known, 16, CHANNELS)
        for start in range(0, programs, 16):
            p = start + tl.arange(0, 16)
            inside = (p < programs)[:, None] & known[None, :]
            places = partial + p[:, None] * channels + c[None, :]
            size = tl.load(places, mask=inside, other=0.0)
            off = tl.load(places + plane, mask=inside, other=0.0) / tl.where(size > 0, size, 1.0) - mean[None, :]
            squares += tl.sum(size * off * off, axis=0)
        deviation = 1.0 / tl.sqrt(squares / rows + eps)
        scale = (tl.load(weight + c, mask=known, other=0.0).to(tl.float64) * deviation).to(tl.float32)
        shift = tl.load(bias + c, mask=known, other=0.0).to(tl.float64) - mean * scale.to(tl.float64)
        tl.store(made + c, mean.to(tl.float32), mask=known)
        tl.store(made + channels + c, deviation.to(tl.float32), mask=known)
        tl.store(made + 2 * channels + c, scale, mask=known)
        tl.store(made + 3 * channels + c, shift.to(tl.float32), mask=known)
        batches = tl.load(num_batches) + 1
        if rate < 0:
            rate = 1.0 / batches.to(tl.float32)
        past = tl.load(running_mean + c, mask=known, other=0.0).to(tl.float64)
        tl.store(running_mean + c, (past + rate * (mean - past)).to(tl.float32), mask=known)
        past = tl.load(running_var + c, mask=known, other=0.0).to(tl.float64)
        unbiased = squares / tl.maximum(rows - 1, 1).to(tl.float64)
        tl.store(running_var + c, (past + rate * (unbiased - past)).to(tl.float32), mask=known)
        if is_last(count + tl.num_programs(1), tl.num_programs(1)):  # after all others have read it
            tl.store(num_batches, batches)


@operator(
    "Tensor x, Tensor weight, Tensor bias, Tensor(a!) running_mean, Tensor(b!) running_var, Tensor(c!) num_batches, "
    "Tensor(d!) made, float rate, float eps"
)
def moments(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, num_batches: Tensor,
    made: Tensor, rate: float, eps: float,
) -> None:  # fmt: skip
    """Writes mean, 1/σ, scale and shift of a batch to `made`, `[4, C]`, and takes it into the running statistics.

    Args:
        x: What is normalized, channels last.
        weight: Of BatchNorm.
        bias: Of BatchNorm.
        running_mean: Written to.
        running_var: Written to.
        num_batches: How many there were; written to.
        made: Written to.
        rate: Share of the batch in the running statistics; below 0, one over the number of batches.
        eps: Of BatchNorm.
    """
    channels = made.shape[1]
    rows = x.numel() // max(1, channels)
    rows_at_once, wide = tile(rows, channels)
    across = triton.cdiv(channels, wide)
    programs = shared_programs(triton.cdiv(rows, rows_at_once), across)
    partial = made.new_empty(3, programs, channels, dtype=torch.float64)
    launch(
        _moments_kernel, (programs, across), x, weight, bias, running_mean, running_var, num_batches, made, partial,
        counter(x, across + 1), rows, channels, rate, eps, ROWS=rows_at_once, CHANNELS=wide,
    )  # fmt: skip


@triton.jit
def _fold_norm_kernel(weight, bias, mean, variance, made, channels, eps, CHANNELS: tl.constexpr):
    c = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    known = c < channels
    deviation = tl.sqrt(tl.load(variance + c, mask=known, other=1.0).to(tl.float64) + as_double(eps))
    scale = tl.load(weight + c, mask=known, other=0.0).to(tl.float64) / deviation
    shift = tl.load(bias + c, mask=known, other=0.0) - tl.load(mean + c, mask=known, other=0.0) * scale
    tl.store(made + c, scale.to(tl.float32), mask=known)
    tl.store(made + channels + c, shift.to(tl.float32), mask=known)


@operator("Tensor weight, Tensor bias, Tensor mean, Tensor variance, Tensor(a!) made, float eps")
def fold_norm(weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, made: Tensor, eps: float) -> None:
    """Writes scale and shift of BatchNorm in evaluation to `made`, `[2, C]`."""
    grid = (triton.cdiv(made.shape[1], 128),)
    launch(_fold_norm_kernel, grid, weight, bias, mean, variance, made, made.shape[1], bits_of(eps), CHANNELS=128)
