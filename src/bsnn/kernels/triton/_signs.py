# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false
"""One-bit weights as signs, in the order in which a convolution wants them: channels last."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bsnn.kernels.triton._operator import launch, operator

_BLOCK = 1024


@triton.jit
def _signs_kernel(bits, made, number, channels, taps, BLOCK: tl.constexpr):
    """`made` is [outs][taps][channels] in memory; bits are in the order [outs][channels][taps]."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # 32 bits: wider divisions would cost more than the memory
    inside = place < number
    channel, rest = place % channels, place // channels
    source = (rest // taps * channels + channel) * taps + rest % taps
    byte = tl.load(bits + source // 8, mask=inside, other=0).to(tl.int32)
    sign = ((byte >> (source % 8)) & 1) * 2 - 1
    tl.store(made + place, sign.to(tl.float32).to(made.dtype.element_ty), mask=inside)


@operator("Tensor bits, Tensor(a!) made")
def unpack_signs(bits: Tensor, made: Tensor) -> None:
    """Writes the signs of bits to `made`, `[outs, channels, ...]` with its channels last in memory."""
    channels = made.shape[1] if made.dim() > 1 else 1
    taps = made[0, 0].numel() if made.dim() > 2 and made.numel() else 1
    grid = (triton.cdiv(made.numel(), _BLOCK),)
    launch(_signs_kernel, grid, bits, made, made.numel(), channels, taps, BLOCK=_BLOCK)


def signs(bits: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """See `operations.signs`; filters of convolutions have their channels last."""
    order = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    made = torch.empty(shape, dtype=dtype, device=bits.device, memory_format=order)
    unpack_signs(bits, made)
    return made
