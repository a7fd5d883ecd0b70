# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false
"""What all Triton kernels share: how each becomes an operator of torch, and sums over programs in a fixed order.

Every operator writes into tensors that its caller has made and returns nothing, so on tensors without storage (`meta`,
fake ones) it has nothing to do, and tools that watch operators see one call for each launch.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bsnn.kernels.compiler import LIBRARY

# Programs that share a sum over the rows of a tensor: enough to fill a large GPU, few enough to add up at the end.
_SHARED_SUM = 512

Launch = Callable[..., None]


def operator(schema: str) -> Callable[[Launch], Launch]:
    """Makes a function that launches a kernel an operator of torch, `torch.ops.bsnn.NAME`.

    Args:
        schema: Its arguments, those that it writes to marked as `Tensor(a!)`.
    """

    def decorate(launch: Launch) -> Launch:
        name = launch.__name__
        LIBRARY.define(f"{name}({schema}) -> ()", tags=(torch.Tag.pt2_compliant_tag,))
        for device in ("CPU", "CUDA"):  # on the CPU, Triton's interpreter runs it
            LIBRARY.impl(name, launch, device)
        torch.library.register_fake(f"bsnn::{name}", _nothing, lib=LIBRARY)
        return getattr(torch.ops.bsnn, name).default

    return decorate


def _nothing(*_arguments: Any) -> None:
    pass


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Runs a kernel on the device of its first argument, products and sums rounded one by one as torch rounds them.

    A fused multiply-add would let neurons fire where the reference's do not; kernels that want one call `tl.fma`.
    """
    if 0 in grid:
        return
    first = arguments[0]
    with torch.cuda.device_of(first):
        kernel[grid](*arguments, enable_fp_fusion=False, **constants)


def counter(like: Tensor, number: int) -> Tensor:
    """Zeros by which programs of one launch count who has finished; the last program of each leaves a zero again.

    One for each device and stream, so that launches that may overlap do not share it.
    """
    stream = torch.cuda.current_stream(like.device).cuda_stream if like.is_cuda else 0
    return _counters(like.device, stream)[:number]


@cache
def _counters(device: torch.device, stream: int) -> Tensor:
    return torch.zeros(1 << 12, dtype=torch.int32, device=device)


@triton.jit
def is_last(count, total):
    """Whether all other programs that share `count` have finished what they had stored before."""
    tl.debug_barrier()
    last = tl.atomic_add(count, 1) == total - 1
    if last:
        tl.store(count, 0)
    return last


@triton.jit
def column_sums(partial, number, stride, places, inside, BLOCK: tl.constexpr, CHANNELS: tl.constexpr):
    """Sums of `number` rows at `partial`, in double precision and always in the same order."""
    total = tl.zeros((CHANNELS,), dtype=tl.float64)
    for start in range(0, number, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        mask = (rows < number)[:, None] & inside[None, :]
        total += tl.sum(tl.load(partial + rows[:, None] * stride + places[None, :], mask=mask, other=0.0), axis=0)
    return total


def shared_programs(tiles: int, across: int) -> int:
    """How many programs share the tiles of a column: each has several, so that their sums are little beside them."""
    return min(triton.cdiv(tiles, 4), max(1, _SHARED_SUM // max(1, across)))


def bits_of(number: float) -> int:
    """A number in double precision as an integer; Triton would hand a float on in single precision."""
    return struct.unpack("<q", struct.pack("<d", number))[0]


@triton.jit
def as_double(bits):
    """The number that `bits_of` has made an integer of."""
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


def tile(rows: int, channels: int, elements: int = 1024) -> tuple[int, int]:
    """How many rows and channels a program works on at a time: powers of two, at least one byte of bits."""
    wide = min(max(8, triton.next_power_of_2(channels)), 64)
    return max(1, min(elements // wide, triton.next_power_of_2(max(1, rows)))), wide
