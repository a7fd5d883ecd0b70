"""What a data set is: labeled samples of one shape, read one at a time, NumPy only.

A set that fits in memory is an `ArrayDataset` and stays there as bytes; any other is a `FileDataset`, whose
files are decoded when they are read. Nothing here knows of a network or of torch: batches, augmentation and
repetition over time belong to the loader.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from bsnn.errors import UserError
from bsnn.extras import need

Kind = Literal["image", "sound", "event"]
Decode = Callable[[Path, np.random.Generator | None], np.ndarray]


@runtime_checkable
class Dataset(Protocol):
    """Labeled samples of one shape.

    Attributes:
        name: What the set is called, such as `cifar10`.
        kind: What a sample is; events have a time axis of their own.
        classes: A name for each label.
        labels: The label of each sample, `[N]`, int64.
        shape: One sample: `(C, H, W)`, or `(T, C, H, W)` for events.
        mean: Per channel, after division by `scale`.
        std: Standard deviation per channel, likewise.
        scale: What a raw value is divided by: 255 for bytes of an image, 1 for floats.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    labels: np.ndarray
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        """The number of samples."""
        ...

    def read(self, index: int, rng: np.random.Generator | None = None) -> np.ndarray:
        """Reads one raw sample of `shape`, uint8 or float32.

        Args:
            index: Which sample.
            rng: Given in training, where a streamed set draws its random crop from it; None in evaluation.
        """
        ...


@dataclass(eq=False)
class ArrayDataset:
    """A data set in memory.

    Args:
        name: What the set is called.
        kind: `"image"`, `"sound"` or `"event"`.
        classes: A name for each label.
        labels: The label of each sample, `[N]`.
        samples: `[N, C, H, W]`, or `[N, T, C, H, W]` for events; uint8 or float32.
        mean: Per channel, after division by `scale`.
        std: Standard deviation per channel, likewise.
        scale: What a raw value is divided by: 255 for bytes of an image, 1 for floats.
        decode: The function that read the samples from files, if one did.
        paths: These files, one per sample.

    Example:
        >>> ones = np.ones((2, 1, 4, 4), np.uint8)
        >>> data = ArrayDataset("own", "image", ("cat", "dog"), np.array([0, 1]), ones, (0.5,), (0.2,), 255.0)
        >>> len(data), data.shape, data.read(1).dtype
        (2, (1, 4, 4), dtype('uint8'))
    """

    name: str
    kind: Kind
    classes: tuple[str, ...]
    labels: np.ndarray
    samples: np.ndarray
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float
    shape: tuple[int, ...] = field(init=False)
    decode: Decode | None = None
    paths: list[Path] | None = None

    def __post_init__(self) -> None:
        if self.samples.dtype not in (np.uint8, np.float32):
            raise UserError(f"{self.name}: samples are {self.samples.dtype}; give uint8 or float32.")
        # Arrays over a file's bytes are read-only, which torch.from_numpy warns about.
        self.samples = np.require(self.samples, requirements=["C", "W"])
        self.shape = tuple(self.samples.shape[1:])
        self.labels = check_labels(self.name, self.labels, len(self.samples), self.classes)
        check_channels(self)

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int, rng: np.random.Generator | None = None) -> np.ndarray:
        """Returns one raw sample; nothing is random here, so `rng` is not used."""
        return self.samples[index]


@dataclass(eq=False)
class FileDataset:
    """A data set of files that are decoded when they are read.

    Args:
        name: What the set is called.
        kind: `"image"`, `"sound"` or `"event"`.
        classes: A name for each label.
        labels: The label of each sample, `[N]`.
        shape: Shape of one sample: `(C, H, W)`, or `(T, C, H, W)` for events.
        mean: Per channel, after division by `scale`.
        std: Standard deviation per channel, likewise.
        scale: What a raw value is divided by: 255 for bytes of an image, 1 for floats.
        paths: One file per sample.
        decode: Called as `decode(path, rng)`; returns one raw sample. Worker processes receive it, so it must pickle.

    Example:
        >>> def decode(path, rng):
        ...     return np.zeros((1, 2, 2), np.uint8)
        >>> paths = [Path("a.png"), Path("b.png")]
        >>> data = FileDataset(
        ...     "own", "image", ("a", "b"), np.array([0, 1]), (1, 2, 2), (0.5,), (0.2,), 255.0, paths, decode
        ... )
        >>> data.read(1).shape
        (1, 2, 2)
    """

    name: str
    kind: Kind
    classes: tuple[str, ...]
    labels: np.ndarray
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float
    paths: list[Path]
    decode: Decode

    def __post_init__(self) -> None:
        self.labels = check_labels(self.name, self.labels, len(self.paths), self.classes)
        check_channels(self)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int, rng: np.random.Generator | None = None) -> np.ndarray:
        """Decodes one file; a decoder that crops at random draws from `rng`."""
        sample = self.decode(self.paths[index], rng)
        if sample.shape != self.shape:
            raise UserError(
                f"{self.paths[index]}: decoded to shape {sample.shape}, and the set's samples are {self.shape}."
            )
        return sample


def check_labels(name: str, labels: Sequence[int] | np.ndarray, count: int, classes: Sequence[str]) -> np.ndarray:
    """Returns the labels as int64, after checking that there is one per sample and that each names a class."""
    values = np.asarray(labels)
    if values.shape != (count,) or not np.issubdtype(values.dtype, np.integer):
        raise UserError(
            f"{name}: labels are {values.dtype} of shape {values.shape}; expected one whole number for each "
            f"of the {count} samples."
        )
    if count == 0:
        raise UserError(f"{name}: there are no samples; add some or choose another folder.")
    wrong = np.flatnonzero((values < 0) | (values >= len(classes)))
    if wrong.size:
        raise UserError(
            f"{name}: sample {wrong[0]} has label {values[wrong[0]]}, and there are {len(classes)} classes "
            f"(0 to {len(classes) - 1}); the file is damaged or of another data set."
        )
    return values.astype(np.int64)


def check_channels(data: Dataset) -> None:
    """Refuses a mean and a standard deviation that are not one per channel, or that cannot be divided by."""
    channels = data.shape[-3] if len(data.shape) >= 3 else 0
    if not channels == len(data.mean) == len(data.std) or any(deviation <= 0 for deviation in data.std):
        raise UserError(
            f"{data.name}: mean {data.mean} and deviation {data.std} do not fit samples of shape "
            f"{data.shape}; give one of each per channel, deviations above 0."
        )


def measure(data: Dataset, limit: int = 4000, seed: int = 0) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measures mean and standard deviation per channel, of all samples in memory or of at most `limit` files.

    Args:
        data: The data set.
        limit: How many files are decoded at most.
        seed: Seed for the choice of files.

    Example:
        >>> samples = np.array([[[[0, 255]]]], np.uint8)
        >>> measure(ArrayDataset("own", "image", ("a",), np.array([0]), samples, (0.0,), (1.0,), 255.0))
        ((0.5,), (0.5,))
    """
    if isinstance(data, ArrayDataset):
        # Blocks bound the memory that floats take.
        blocks = (data.samples[start : start + 512] for start in range(0, len(data), 512))
    else:
        count = len(data)
        rng = np.random.default_rng(seed)
        chosen = np.arange(count) if count <= limit else np.sort(rng.choice(count, limit, replace=False))
        # With `disable=None`, tqdm draws only on a terminal.
        shown = need("tqdm").tqdm(chosen, f"measuring {data.name}", unit=" files", disable=None, leave=False)
        blocks = (data.read(int(index))[None] for index in shown)
    channel = len(data.shape) - 2
    total = squares = np.zeros(data.shape[-3])
    number = 0
    for block in blocks:
        values = np.moveaxis(block, channel, 0).reshape(data.shape[-3], -1) / data.scale
        total, squares = total + values.sum(1), squares + (values**2).sum(1)
        number += values.shape[1]
    mean = total / number
    deviation = np.sqrt(np.maximum(squares / number - mean**2, 0))
    return tuple(mean.tolist()), tuple(deviation.tolist())


def measured(data: Dataset, limit: int = 1000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Measures what to normalize with: a channel that never varies gets a standard deviation of 1, not 0."""
    mean, deviation = measure(data, limit)
    return mean, tuple(value if value > 1e-6 else 1.0 for value in deviation)
