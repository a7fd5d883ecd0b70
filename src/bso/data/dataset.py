"""What a data set is to the rest of the library: samples by number, with all that is needed to normalize them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

Kind = Literal["image", "sound", "event"]


class Dataset(ABC):
    """Samples that are read one by one; a subclass sets the attributes and writes `read`."""

    name: str
    kind: Kind
    classes: tuple[str, ...]
    labels: np.ndarray
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def read(self, index: int, rng: np.random.Generator | None) -> np.ndarray:
        """One raw sample; `rng` is given in training and None in evaluation."""


class ArrayDataset(Dataset):
    """Samples that fit in memory and stay there, as bytes where they are bytes."""

    def __init__(
        self,
        samples: np.ndarray,
        labels: np.ndarray,
        classes: Sequence[str],
        *,
        name: str = "array",
        kind: Kind = "image",
        mean: Sequence[float],
        std: Sequence[float],
    ) -> None:
        self.samples = samples
        self.labels = np.asarray(labels, dtype=np.int64)
        self.classes = tuple(classes)
        self.name = name
        self.kind = kind
        self.shape = samples.shape[1:]
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.scale = 255.0 if samples.dtype == np.uint8 else 1.0

    def read(self, index: int, rng: np.random.Generator | None) -> np.ndarray:
        """The sample as it lies in memory."""
        return self.samples[index]


class FileDataset(Dataset):
    """Samples that are decoded from files each time they are read."""

    def __init__(
        self,
        paths: Sequence[Path],
        labels: np.ndarray,
        classes: Sequence[str],
        decode: Callable[[Path, np.random.Generator | None], np.ndarray],
        *,
        name: str = "files",
        kind: Kind = "image",
        shape: tuple[int, ...],
        mean: Sequence[float],
        std: Sequence[float],
        scale: float = 255.0,
    ) -> None:
        self.paths = list(paths)
        self.labels = np.asarray(labels, dtype=np.int64)
        self.classes = tuple(classes)
        self.decode = decode
        self.name = name
        self.kind = kind
        self.shape = shape
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.scale = scale

    def read(self, index: int, rng: np.random.Generator | None) -> np.ndarray:
        """The sample as its file decodes."""
        return self.decode(self.paths[index], rng)
