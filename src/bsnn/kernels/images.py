"""Images `[B, C, H, W]` with their channels last in memory, the order that convolutions and the C are fastest in.

Not on Apple's GPUs: convolutions there have their channels first, and PyTorch's backward pass takes many times as long
for others (pytorch#193349).
"""

import torch
from torch import Tensor

from bsnn.kernels.pieces import is_apple


def channels_last(x: Tensor) -> Tensor:
    """The same values, channels last; of anything but images, and on Apple's GPUs, contiguous."""
    last = x.dim() == 4 and not is_apple(x.device)
    return x.contiguous(memory_format=torch.channels_last) if last else x.contiguous()


def empty_images(like: Tensor, size: tuple[int, ...]) -> Tensor:
    """Room for images of another size."""
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def halved_images(like: Tensor) -> Tensor:
    """Room for images of half the height and width."""
    batch, channels, height, width = like.shape
    return empty_images(like, (batch, channels, height // 2, width // 2))


def channels_as_rows(x: Tensor) -> Tensor:
    """The same memory with the channels as the last axis."""
    return x.permute(0, 2, 3, 1) if x.dim() == 4 else x
