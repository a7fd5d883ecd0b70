# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false
"""The way back through a layer of neurons: surrogate, pooling, and BatchNorm by the two sums that it needs."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bsnn.kernels.triton._fire import pixel
from bsnn.kernels.triton._operator import column_sums, counter, is_last, launch, operator, shared_programs, tile

SURROGATES = ("sigmoid", "rectangle", "triangle", "arctan")


@triton.jit
def _derivative(x, parameter, SURROGATE: tl.constexpr):
    """∂s/∂u at distance x from the threshold."""
    if SURROGATE == 0:
        z = tl.exp(-tl.abs(parameter * x))  # the derivative is even, and this cannot overflow
        made = parameter * z / ((1.0 + z) * (1.0 + z))
    elif SURROGATE == 1:
        made = tl.where(tl.abs(x) < parameter / 2, 1.0 / parameter, 0.0)
    elif SURROGATE == 2:
        inside = parameter - tl.abs(x)
        made = tl.where(inside < 0, 0.0, inside) / (parameter * parameter)
    else:
        y = 1.5707963267948966 * parameter * x
        made = parameter / 2 / (1.0 + y * y)
    return made


@triton.jit
def _through_kernel(
    sent, membrane, bits, current, mean, deviation, weight, gradient, made, partial, count,
    rows, width, channels, threshold, parameter,
    NORM: tl.constexpr, POOLED: tl.constexpr, SURROGATE: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """`partial` is [2][programs][channels], `made` as in `through`."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = c < channels
    row_bytes = (channels + 7) // 8
    sums = tl.zeros((CHANNELS,), dtype=tl.float64)
    products = tl.zeros((CHANNELS,), dtype=tl.float64)
    if NORM:
        center = tl.load(mean + c, mask=known, other=0.0)[None, :]
    for start in range(program * ROWS, rows, programs * ROWS):
        r = start + tl.arange(0, ROWS)
        inside = (r < rows)[:, None] & known[None, :]
        arrived = tl.load(sent + r.to(tl.int64)[:, None] * channels + c[None, :], mask=inside, other=0.0)
        arrived = arrived.to(tl.float32) * (0.25 if POOLED else 1.0)
        for place in tl.static_range(4 if POOLED else 1):
            row = pixel(r, place, width, POOLED)[:, None]
            at = row * channels + c[None, :]
            byte = tl.load(bits + row * row_bytes + c[None, :] // 8, mask=inside, other=0).to(tl.int32)
            silent = 1 - ((byte >> (c % 8)[None, :]) & 1)
            # u − V_th: the reset has taken V_th off already where the neuron fired.
            distance = tl.load(membrane + at, mask=inside, other=0.0) - silent.to(tl.float32) * threshold
            # What lies outside of the tensor must not count, nor a number times it.
            flows = tl.where(inside, _derivative(distance, parameter, SURROGATE) * arrived, 0.0)
            tl.store(gradient + at, flows, mask=inside)
            if NORM:
                off = tl.load(current + at, mask=inside, other=0.0).to(tl.float32) - center
                sums += tl.sum(flows, axis=0).to(tl.float64)
                products += tl.sum(tl.where(inside, flows * off, 0.0), axis=0).to(tl.float64)
    if NORM:
        plane, place_of_sums = programs * channels, partial + program * channels + c
        tl.store(place_of_sums, sums, mask=known)
        tl.store(place_of_sums + plane, products, mask=known)
        if is_last(count + tl.program_id(1), programs):
            sums = column_sums(partial, programs, channels, c, known, 16, CHANNELS)
            products = column_sums(partial + plane, programs, channels, c, known, 16, CHANNELS)
            sigma = tl.load(deviation + c, mask=known, other=0.0).to(tl.float64)
            scale = tl.load(weight + c, mask=known, other=0.0).to(tl.float64) * sigma
            number = rows.to(tl.float64) * (4.0 if POOLED else 1.0)
            grad_weight = products * sigma
            slope = scale * sigma * grad_weight / -number
            shift = scale * sums / -number - slope * tl.load(mean + c, mask=known, other=0.0)
            tl.store(made + c, grad_weight.to(tl.float32), mask=known)
            tl.store(made + channels + c, sums.to(tl.float32), mask=known)
            tl.store(made + 2 * channels + c, scale.to(tl.float32), mask=known)
            tl.store(made + 3 * channels + c, slope.to(tl.float32), mask=known)
            tl.store(made + 4 * channels + c, shift.to(tl.float32), mask=known)


@operator(
    "Tensor sent, Tensor membrane, Tensor bits, Tensor? current, Tensor? mean, Tensor? deviation, Tensor? weight, "
    "Tensor(a!) gradient, Tensor(b!)? made, float threshold, float parameter, int surrogate"
)
def through(
    sent: Tensor, membrane: Tensor, bits: Tensor, current: Tensor | None, mean: Tensor | None,
    deviation: Tensor | None, weight: Tensor | None, gradient: Tensor, made: Tensor | None, threshold: float,
    parameter: float, surrogate: int,
) -> None:  # fmt: skip
    """Goes from the gradient of what was sent on to ∂L/∂u, and adds up what BatchNorm's backward needs.

    Args:
        sent: Gradient of what was sent on, channels last.
        membrane: After its reset.
        bits: Spikes, as `fire` makes them.
        current: What entered BatchNorm; None, and so with the next three, if there is none.
        mean: Of the batch.
        deviation: 1/σ of the batch.
        weight: Of BatchNorm.
        gradient: ∂L/∂u; written to.
        made: `[5, C]`: gradients of weight and bias, and scale, slope and shift for `through_norm`; written to.
        threshold: V_th.
        parameter: Of the surrogate.
        surrogate: Its number in `SURROGATES`.
    """
    channels = membrane.shape[1]
    width = membrane.shape[3] if membrane.dim() == 4 else 1
    pooled = sent.shape != membrane.shape
    rows = sent.numel() // max(1, channels)
    rows_at_once, wide = tile(rows, channels, 256 if pooled else 512)
    across = triton.cdiv(channels, wide)
    programs, partial = triton.cdiv(rows, rows_at_once), None
    if made is not None:
        programs = shared_programs(programs, across)
        partial = made.new_empty(2, programs, channels, dtype=torch.float64)
    launch(
        _through_kernel, (programs, across), sent, membrane, bits, current, mean, deviation, weight, gradient, made,
        partial, counter(sent, across), rows, width, channels, threshold, parameter,
        NORM=made is not None, POOLED=pooled, SURROGATE=surrogate, ROWS=rows_at_once, CHANNELS=wide,
    )  # fmt: skip


@triton.jit
def _through_norm_kernel(
    gradient, current, numbers, rows, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (r < rows)[:, None] & (c < channels)[None, :]
    at = r.to(tl.int64)[:, None] * channels + c[None, :]
    scale = tl.load(numbers + 2 * channels + c, mask=c < channels, other=0.0)[None, :]
    slope = tl.load(numbers + 3 * channels + c, mask=c < channels, other=0.0)[None, :]
    shift = tl.load(numbers + 4 * channels + c, mask=c < channels, other=0.0)[None, :]
    entered = tl.load(current + at, mask=inside, other=0.0).to(tl.float32)
    flows = tl.load(gradient + at, mask=inside, other=0.0) * scale + entered * slope + shift
    tl.store(gradient + at, flows, mask=inside)


@operator("Tensor(a!) gradient, Tensor current, Tensor numbers")
def through_norm(gradient: Tensor, current: Tensor, numbers: Tensor) -> None:
    """Replaces ∂L/∂BN(I) by ∂L/∂I, by the numbers that `through` has made."""
    channels = numbers.shape[1]
    rows = gradient.numel() // max(1, channels)
    rows_at_once, wide = tile(rows, channels)
    grid = triton.cdiv(rows, rows_at_once), triton.cdiv(channels, wide)
    launch(
        _through_norm_kernel, grid, gradient, current, numbers, rows, channels, ROWS=rows_at_once, CHANNELS=wide
    )  # fmt: skip
