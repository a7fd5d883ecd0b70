# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false
"""A time step of a layer of neurons: BatchNorm's scale and shift, LIF, trace, spikes as bits, pooling, in one pass."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from bsnn.kernels.triton._operator import launch, operator, tile

TRACES: tuple[Any, ...] = ("none", "leaky", "clamped ratio", "ratio")
"""By number: no trace, λ (OTTT), the ratio of membranes (NDOT) clamped to [−λ, λ], and as it is."""


@triton.jit
def pixel(r, place: tl.constexpr, width, POOLED: tl.constexpr):
    """The row of a tensor that pixel `place` of the window of a row that is sent on lies in."""
    if not POOLED:
        return r.to(tl.int64)
    y, x = r // (width // 2), r % (width // 2)  # y counts rows of all images
    return (2 * y + place // 2).to(tl.int64) * width + 2 * x + place % 2


@triton.jit
def _fire_kernel(
    x, scale, shift, membrane, trace, sent, sent_trace, bits, ratios,
    rows, width, channels, leak, threshold,
    NORM: tl.constexpr, TRACE: tl.constexpr, POOLED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """A program makes ROWS rows of what is sent on, from as many rows or, pooled, from four times as many."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    byte = tl.program_id(1) * (CHANNELS // 8) + tl.arange(0, CHANNELS // 8)
    row_bytes = (channels + 7) // 8
    inside = (r < rows)[:, None] & (c < channels)[None, :]
    of_bits = (r < rows)[:, None] & (byte < row_bytes)[None, :]
    if NORM:
        factor = tl.load(scale + c, mask=c < channels, other=0.0)[None, :]
        added = tl.load(shift + c, mask=c < channels, other=0.0)[None, :]
    spike_sum = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    trace_sum = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    for place in tl.static_range(4 if POOLED else 1):
        row = pixel(r, place, width, POOLED)[:, None]
        at = row * channels + c[None, :]
        current = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            current = current * factor + added
        before = tl.load(membrane + at, mask=inside, other=0.0)
        u = before * leak + current
        fired = (u >= threshold) & inside
        spikes = fired.to(tl.float32)
        after = u - spikes * threshold
        tl.store(membrane + at, after, mask=inside)
        each = tl.reshape(fired.to(tl.int32), (ROWS, CHANNELS // 8, 8)) << tl.arange(0, 8)[None, None, :]
        tl.store(bits + row * row_bytes + byte[None, :], tl.sum(each, axis=2).to(tl.uint8), mask=of_bits)
        spike_sum += spikes
        if TRACE > 0:
            factor_of_trace = leak
            if TRACE > 1:
                defined = before != 0.0
                ratio = tl.where(defined, tl.div_rn(after, tl.where(defined, before, 1.0)), leak)
                outside = (tl.abs(ratio) > leak) & inside
                tl.atomic_add(ratios, tl.sum(outside.to(tl.int64)))
                tl.atomic_add(ratios + 1, tl.sum((defined & inside).to(tl.int64)))
                factor_of_trace = ratio
                if TRACE == 2:  # what is not a number stays one, as in torch
                    factor_of_trace = tl.where(ratio > leak, leak, tl.where(ratio < -leak, -leak, ratio))
            moved = tl.load(trace + at, mask=inside, other=0.0) * factor_of_trace + spikes
            tl.store(trace + at, moved, mask=inside)
            trace_sum += moved
    at = r.to(tl.int64)[:, None] * channels + c[None, :]
    share = 0.25 if POOLED else 1.0
    tl.store(sent + at, (spike_sum * share).to(sent.dtype.element_ty), mask=inside)
    if POOLED and TRACE > 0:
        tl.store(sent_trace + at, trace_sum * share, mask=inside)


@operator(
    "Tensor x, Tensor? scale, Tensor? shift, Tensor(a!) membrane, Tensor(b!)? trace, Tensor(c!) sent, "
    "Tensor(d!)? sent_trace, Tensor(e!) bits, Tensor(f!)? ratios, float leak, float threshold, int kind"
)
def fire(
    x: Tensor, scale: Tensor | None, shift: Tensor | None, membrane: Tensor, trace: Tensor | None, sent: Tensor,
    sent_trace: Tensor | None, bits: Tensor, ratios: Tensor | None, leak: float, threshold: float, kind: int,
) -> None:  # fmt: skip
    """Moves membranes and traces one step on.

    Args:
        x: What enters, channels last, in single or half precision.
        scale: Of BatchNorm, one number per channel.
        shift: Of BatchNorm.
        membrane: In single precision; written to.
        trace: In single precision; written to.
        sent: Spikes, or means of two by two pixels; written to.
        sent_trace: Means of the trace, if there is pooling; written to.
        bits: Spikes, `[rows, bytes of channels]`; written to.
        ratios: How many of NDOT's ratios were over λ, and how many had a denominator; added to.
        leak: λ.
        threshold: V_th.
        kind: Of the trace; see `TRACES`.
    """
    channels = x.shape[1]
    width = x.shape[3] if x.dim() == 4 else 1
    pooled = sent.shape != x.shape
    rows = sent.numel() // max(1, channels)
    rows_at_once, wide = tile(rows, channels, 512 if pooled else 1024)
    launch(
        _fire_kernel, (triton.cdiv(rows, rows_at_once), triton.cdiv(channels, wide)),
        x, scale, shift, membrane, trace, sent, sent_trace, bits, ratios,
        rows, width, channels, leak, threshold,
        NORM=scale is not None, TRACE=kind, POOLED=pooled, ROWS=rows_at_once, CHANNELS=wide,
    )  # fmt: skip
