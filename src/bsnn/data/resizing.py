"""A data set of still images at a smaller size, as the early stages of a run take them.

Images in memory are averaged with the weights of bilinear interpolation, whose triangles are stretched when an image
shrinks, as Pillow does it; files are decoded at the new size.
"""

import dataclasses
from functools import partial

import numpy as np

from bsnn.data.dataset import ArrayDataset, Dataset, FileDataset
from bsnn.errors import UserError

# Bounds the memory that floats take.
_BLOCK = 512


def at_size(data: Dataset, size: int) -> Dataset:
    """The images of a data set with `size` rows and columns; classes, order and normalization stay as they are.

    Args:
        data: Square images, in memory or in files.
        size: Rows and columns, at most those of the set; 0 for its own.

    Raises:
        UserError: If they are not images, are not square, or are smaller.

    Example:
        >>> at_size(bsnn.data.digits(), 6).shape
        (1, 6, 6)
    """
    *_, height, width = data.shape
    if not size or (height, width) == (size, size):
        return data
    if data.kind != "image":
        raise UserError(
            f"image_size: received {size} for {data.name}, which holds samples of kind {data.kind}; expected still "
            "images. Leave it out of the stages."
        )
    if height != width or size > height:
        raise UserError(
            f"image_size: received {size} for images of {height} × {width}; expected square images, and at most their "
            "own size."
        )
    if isinstance(data, ArrayDataset) and type(data).read is ArrayDataset.read:
        return dataclasses.replace(data, samples=shrunk(data.samples, size))
    if isinstance(data, FileDataset) and "size" in getattr(data.decode, "keywords", {}):
        decode = partial(data.decode, size=(size, size))  # pyright: ignore[reportCallIssue]
        return dataclasses.replace(data, shape=(*data.shape[:-2], size, size), decode=decode)
    raise UserError(
        f"image_size: received {size} for {data.name}, a {type(data).__name__} that reads its samples in its own way; "
        "expected images in memory, or a decoder that takes `size`."
    )


def shrunk(images: np.ndarray, size: int) -> np.ndarray:
    """Square images with fewer rows and columns; bytes are rounded to the nearest.

    Args:
        images: `[N, C, H, H]`, uint8 or float32.
        size: Rows and columns.

    Example:
        >>> shrunk(np.array([[[[0, 8, 8, 0]] * 4]], np.uint8), 2).tolist()
        [[[[5, 5], [5, 5]]]]
    """
    weights = triangles(images.shape[-1], size)
    made = np.empty((*images.shape[:-2], size, size), images.dtype)
    for start in range(0, len(images), _BLOCK):
        values = images[start : start + _BLOCK].astype(np.float32)
        for _ in range(2):  # columns, then rows, each as one large product
            values = (values @ weights.T).swapaxes(-1, -2)
        made[start : start + _BLOCK] = values.round() if images.dtype == np.uint8 else values
    return made


def triangles(length: int, size: int) -> np.ndarray:
    """`[size, length]`, the share of each pixel in each of fewer, larger ones.

    Args:
        length: Pixels in a row or column.
        size: Of those that are made.

    Example:
        >>> [round(7 * float(share)) for share in triangles(4, 2)[0]]
        [3, 3, 1, 0]
    """
    step = length / size
    centers = (np.arange(size) + 0.5) * step
    distances = np.abs(np.arange(length) + 0.5 - centers[:, None]) / step
    weights = np.maximum(1 - distances, 0)
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)
