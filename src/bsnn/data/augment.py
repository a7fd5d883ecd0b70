"""Augmentation of whole batches: random crop, flip, Cutout, normalization (appendix, "Datasets"), and mixup.

Every function takes its random values as arguments and draws none, so the same values give the same bits on
every device. A batch is [B, C, H, W], or [B, T, C, H, W] for events, where all frames of a sample share one
crop, one flip and one Cutout square. Crop and flip run on the raw bytes; only their result becomes floats.

On the CPU the work is done by NumPy, on the tensor's own memory: torch would wake its thread pool for each of
these short passes, and when another process holds a core, waiting for the pool costs far more than the work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bsnn.data.autoaugment import NUM_POLICY_DRAWS, autoaugment
from bsnn.data.dataset import Kind
from bsnn.data.grid import grid_of, values_of_bytes
from bsnn.data.resizing import triangles
from bsnn.errors import UserError

# Uniform numbers that one sample consumes: top, left, flip, Cutout's row and column, and the policy's. Their
# places are fixed, so switching one transformation off leaves the random values of the others as they were.
NUM_DRAWS = 5 + NUM_POLICY_DRAWS


CropMode = Literal["zeros", "reflect"]


def crop_and_flip(
    batch: Tensor, top: Tensor, left: Tensor, flipped: Tensor, padding: int, mode: CropMode = "zeros"
) -> Tensor:
    """Pads, cuts a window of the original size out of each sample, mirrors the chosen ones.

    Zeros are raw values: black for bytes, no event for frames.

    Args:
        batch: [B, ..., H, W], of any dtype.
        top: [B], row of the padded sample where its window begins, from 0 to 2 · `padding`.
        left: [B], the column, likewise.
        flipped: [B], bool: mirror this sample left to right.
        padding: pixels added on each side.
        mode: what they are: zeros, or the sample reflected at its border, which is not repeated.

    Returns:
        A new batch of the same shape and dtype.

    Example:
        >>> batch = torch.tensor([[[[1, 2], [3, 4]]]])
        >>> one = torch.tensor([1])
        >>> crop_and_flip(batch, one * 2, one, torch.tensor([False]), padding=1).tolist()
        [[[[3, 4], [0, 0]]]]
        >>> crop_and_flip(batch, one, one, torch.tensor([True]), padding=1).tolist()
        [[[[2, 1], [4, 3]]]]
    """
    if mode == "reflect" and padding >= min(batch.shape[-2:]):
        raise UserError(
            f"crop_padding: received {padding} pixels of reflection for images of {batch.shape[-2]} × "
            f"{batch.shape[-1]}; expected fewer than the image has. Lower it, or pad with zeros."
        )
    planes = batch.reshape(len(batch), -1, *batch.shape[-2:])
    if batch.is_cpu:
        cut = torch.from_numpy(_cut(planes.numpy(), top.numpy(), left.numpy(), flipped.numpy(), padding, mode))
    else:
        device = batch.device
        cut = _gather(planes, top.to(device), left.to(device), flipped.to(device), padding, mode)
    return cut.view(batch.shape)


def _cut(
    planes: np.ndarray, top: np.ndarray, left: np.ndarray, flipped: np.ndarray, padding: int, mode: CropMode
) -> np.ndarray:
    """Copies windows of the padded samples."""
    count, _, height, width = planes.shape
    sides = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    padded = np.pad(planes, sides, mode="reflect" if mode == "reflect" else "constant")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    # [B, C, top, left, H, W] → [B, top, left, C, H, W]: the three axes that are indexed come first.
    cut = windows.transpose(0, 2, 3, 1, 4, 5)[np.arange(count), top, left]
    cut[flipped] = cut[flipped][..., ::-1]
    return cut


def _gather(planes: Tensor, top: Tensor, left: Tensor, flipped: Tensor, padding: int, mode: CropMode) -> Tensor:
    """Computes for each pixel where it comes from, and gathers."""
    height, width = planes.shape[-2:]
    if mode == "reflect":  # by indices, because torch reflects no bytes
        places = (torch.from_numpy(np.pad(np.arange(side), padding, "reflect")) for side in (height, width))
        row, column = (place.to(planes.device) for place in places)
        padded = planes[:, :, row][..., column].flatten(2)
    else:
        padded = functional.pad(planes, (padding,) * 4).flatten(2)
    rows = torch.arange(height, device=planes.device) + top[:, None]
    columns = torch.arange(width, device=planes.device)
    columns = torch.where(flipped[:, None], columns.flip(0), columns) + left[:, None]
    source = (rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]).flatten(1)
    return padded.gather(2, source[:, None, :].expand(-1, padded.shape[1], -1))


def shrunk_batch(images: Tensor, size: int) -> Tensor:
    """A batch of square images with fewer rows and columns, on any device.

    Args:
        images: `[B, C, H, H]`, real numbers.
        size: Rows and columns.

    Example:
        >>> shrunk_batch(torch.tensor([[[[0.0, 8.0, 8.0, 0.0]] * 4]]), 2)
        tensor([[[[4.5714, 4.5714],
                  [4.5714, 4.5714]]]])
    """
    weights = torch.from_numpy(triangles(images.shape[-1], size)).to(images)
    return weights @ images @ weights.T


def normalize(batch: Tensor, mean: Sequence[float], std: Sequence[float], scale: float, kind: Kind = "image") -> Tensor:
    """(batch / scale − mean) / std by channel, as float32, rounded to the numbers that a device takes (`data/grid.py`).

    The same raw values give the same bits on every device.

    Args:
        batch: [B, ..., C, H, W], bytes or floats.
        mean: of each channel, of values divided by `scale`.
        std: likewise.
        scale: 255 for bytes, 1 for floats.
        kind: of the data: how large a value can be says how fine the numbers are.

    Returns:
        A new float32 batch.

    Example:
        >>> normalize(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), [0.5], [0.25], 255.0).tolist()
        [[[[-2.0, 2.0]]]]
    """
    grid = grid_of(mean, std, scale, kind)
    if batch.dtype == torch.uint8:
        return _from_bytes(batch, values_of_bytes(grid))
    # The factors are rounded once: powers of two change no digit.
    factor = np.array([2.0**grid.bits / (scale * s) for s in std], np.float32)[:, None, None]
    shift = np.array([-m / s * 2.0**grid.bits for m, s in zip(mean, std, strict=True)], np.float32)[:, None, None]
    if batch.is_cpu:
        values = batch.numpy().astype(np.float32)
        values *= factor
        values += shift
        np.rint(values, out=values)
        values *= 2.0**-grid.bits
        return torch.from_numpy(values)
    factor, shift = (torch.from_numpy(constant).to(batch.device) for constant in (factor, shift))
    return batch.to(torch.float32, copy=True).mul_(factor).add_(shift).round_().mul_(2.0**-grid.bits)


def _from_bytes(batch: Tensor, values: np.ndarray) -> Tensor:
    """What the table has for each byte."""
    channels = len(values)
    if not batch.is_cpu:
        place = batch.long() + 256 * torch.arange(channels, device=batch.device)[:, None, None]
        return torch.from_numpy(values).to(batch.device).flatten()[place]
    raw, made = batch.numpy(), np.empty(batch.shape, np.float32)
    for channel in range(channels):
        made[..., channel, :, :] = values[channel][raw[..., channel, :, :]]
    return torch.from_numpy(made)


def cutout_(batch: Tensor, row: Tensor, column: Tensor, size: int) -> Tensor:
    """Sets a square of each sample to zero, in place (DeVries and Taylor, 2017).

    The center lies anywhere in the image, so the square may reach over its border and is clipped there. Apply
    it after `normalize`: zero is then the data set's mean, and the mean of a batch hardly moves.

    Args:
        batch: [B, ..., H, W], floats.
        row: [B], the center's row.
        column: [B], the center's column.
        size: side of the square, which begins at center − size // 2.

    Returns:
        `batch`.

    Example:
        >>> cutout_(torch.ones(1, 1, 3, 3), torch.tensor([0]), torch.tensor([1]), size=2).tolist()
        [[[[0.0, 0.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]]]
    """
    upper, left = row - size // 2, column - size // 2
    if batch.is_cpu:
        _erase_(batch.numpy(), upper.tolist(), left.tolist(), size)
    else:
        _mask_(batch, upper.to(batch.device), left.to(batch.device), size)
    return batch


def _erase_(batch: np.ndarray, upper: list[int], left: list[int], size: int) -> None:
    """Sets a slice of each sample to zero."""
    for sample, y, x in zip(batch, upper, left, strict=True):
        sample[..., max(y, 0) : y + size, max(x, 0) : x + size] = 0


def _mask_(batch: Tensor, upper: Tensor, left: Tensor, size: int) -> None:
    """Fills with zeros where a pixel is less than `size` below and right of its sample's corner."""
    rows = torch.arange(batch.shape[-2], device=batch.device) - upper[:, None]
    columns = torch.arange(batch.shape[-1], device=batch.device) - left[:, None]
    inside = ((rows >= 0) & (rows < size))[:, :, None] & ((columns >= 0) & (columns < size))[:, None, :]
    batch.masked_fill_(inside.view(len(batch), *[1] * (batch.ndim - 3), *batch.shape[-2:]), 0)


def mix(values: Tensor, first: np.ndarray, second: np.ndarray, share: np.ndarray) -> Tensor:
    """Mixes pairs of a batch: share · values[first] + (1 − share) · values[second] (Zhang et al., 2018).

    Args:
        values: floats, [N, ...].
        first: [B], places of the first of each pair.
        second: [B], places of the second.
        share: [B], of the first, from 0 to 1.

    Returns:
        A new batch, [B, ...].

    Example:
        >>> mix(torch.tensor([[0.0], [8.0]]), np.array([0, 1]), np.array([1, 0]), np.array([0.25, 1.0])).tolist()
        [[6.0], [8.0]]
    """
    shape = (-1, *[1] * (values.ndim - 1))
    if values.is_cpu:
        array, weight = values.numpy(), share.astype(np.float32).reshape(shape)
        return torch.from_numpy(weight * array[first] + (1 - weight) * array[second])
    weight = torch.from_numpy(share.astype(np.float32)).to(values.device).view(shape)
    one, two = (values[torch.from_numpy(places).to(values.device)] for places in (first, second))
    return weight * one + (1 - weight) * two


@dataclass(frozen=True)
class Augmentation:
    """What is done to a training batch: crop, flip, AutoAugment, normalization, Cutout and mixup, in this order.

    The defaults are the paper's for CIFAR. For DVS-CIFAR10 use `Augmentation(flip=False, cutout=0)`.

    Attributes:
        crop_padding: pixels added on each side before a window of the original size is cut out; 0: no crop.
        flip: mirror half of the samples left to right.
        cutout: side of the square that is set to the mean; 0: none.
        autoaugment: apply AutoAugment's CIFAR-10 policy (RGB bytes only).
        crop_mode: what the added pixels are, zeros or a reflection.
        alternating_flip: with `flip`, mirror each sample in every other epoch, the first side drawn for each; the
            loader, which knows the epoch, sees to it.
        mixup: α of Beta(α, α), from which the share of each sample in its mixture is drawn; 0: none. The loader, which
            has the labels, does it.

    Example:
        >>> batch = torch.randint(256, (8, 3, 32, 32), dtype=torch.uint8)
        >>> draws = torch.rand(8, NUM_DRAWS, dtype=torch.float64)
        >>> Augmentation().apply(batch, draws, mean=(0.5,) * 3, std=(0.25,) * 3, scale=255.0).dtype
        torch.float32
    """

    crop_padding: int = 4
    flip: bool = True
    cutout: int = 16
    autoaugment: bool = False
    crop_mode: CropMode = "zeros"
    alternating_flip: bool = False
    mixup: float = 0.0

    def __post_init__(self) -> None:
        if not self.mixup >= 0:
            raise UserError(f"mixup = {self.mixup}: expected α of Beta(α, α), such as 0.2; 0 switches it off")
        if self.alternating_flip and not self.flip:
            raise UserError("alternating_flip: received it without flip; expected both, since it says how to flip")
        for name, value in (("crop_padding", self.crop_padding), ("cutout", self.cutout)):
            if value < 0:
                raise UserError(f"{name} = {value}: expected a number of pixels; 0 switches it off")

    def apply(
        self,
        batch: Tensor,
        draws: Tensor,
        mean: Sequence[float],
        std: Sequence[float],
        scale: float,
        kind: Kind = "image",
    ) -> Tensor:
        """Augments and normalizes a raw batch.

        Args:
            batch: [B, C, H, W] or [B, T, C, H, W], bytes or floats; left as it is.
            draws: [B, `NUM_DRAWS`], float64 in [0, 1), on the CPU.
            mean: of each channel, of values divided by `scale`.
            std: likewise.
            scale: 255 for bytes, 1 for floats.
            kind: of the data.

        Returns:
            The float32 batch, on the device of `batch`.
        """
        height, width = batch.shape[-2:]
        if self.crop_padding or self.flip:
            top, left = (draws[:, :2] * (2 * self.crop_padding + 1)).long().unbind(1)
            flipped = (draws[:, 2] < 0.5) & self.flip
            batch = crop_and_flip(batch, top, left, flipped, self.crop_padding, self.crop_mode)
        if self.autoaugment:
            # What is uncovered gets the mean color: near zero once it is normalized, as Cutout's square.
            fill = tuple(round(scale * m) for m in mean)
            batch = autoaugment(batch, draws[:, 5:], fill)
        batch = normalize(batch, mean, std, scale, kind)
        if self.cutout:
            row, column = (draws[:, 3] * height).long(), (draws[:, 4] * width).long()
            cutout_(batch, row, column, self.cutout)
        return batch
