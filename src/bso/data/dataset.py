"""What a data set is to the rest of the library: samples by number, and how to normalize them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

Kind = Literal["image", "sound", "event"]


class Dataset(Protocol):
    """Labeled samples of one shape."""

    name: str
    kind: Kind
    classes: tuple[str, ...]
    labels: np.ndarray
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float

    def __len__(self) -> int: ...

    def read(self, index: int, rng: np.random.Generator | None = None) -> np.ndarray:
        """Reads one raw sample; `rng` is given in training and None in evaluation."""
        ...


@dataclass(eq=False)
class ArrayDataset:
    """Samples that fit in memory and stay there, as bytes where they are bytes."""

    name: str
    kind: Kind
    classes: tuple[str, ...]
    labels: np.ndarray
    samples: np.ndarray
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float
    shape: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.shape = tuple(self.samples.shape[1:])

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, index: int, rng: np.random.Generator | None = None) -> np.ndarray:
        """Gives the sample as it lies in memory."""
        return self.samples[index]


@dataclass(eq=False)
class FileDataset:
    """Samples that are decoded from files each time they are read."""

    name: str
    kind: Kind
    classes: tuple[str, ...]
    labels: np.ndarray
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float
    paths: list[Path]
    decode: Callable[[Path, np.random.Generator | None], np.ndarray]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int, rng: np.random.Generator | None = None) -> np.ndarray:
        """Gives the sample as its file decodes."""
        return self.decode(self.paths[index], rng)
