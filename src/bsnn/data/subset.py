"""A part of a data set: chosen samples, or so many of them spread evenly over a set that may be sorted by class."""

import dataclasses
from dataclasses import dataclass, field

import numpy as np

from bsnn.data.dataset import ArrayDataset, Dataset, FileDataset, Kind
from bsnn.errors import UserError


def some_samples(data: Dataset, count: int) -> Dataset:
    """A data set of `count` samples, spread evenly over `data`; all of it if it has no more.

    Example:
        >>> some_samples(bsnn.data.digits(), 4).labels.tolist()
        [0, 6, 6, 5]
    """
    return data if count >= len(data) else subset(data, spread(len(data), count))


def spread_over_classes(data: Dataset, count: int) -> Dataset:
    """A data set of `count` samples, spread evenly over the classes of `data` and within each, in whatever order it is.

    Example:
        >>> spread_over_classes(bsnn.data.digits(), 5).labels.tolist()
        [0, 1, 3, 5, 7]
    """
    by_class = np.argsort(data.labels, kind="stable")
    return data if count >= len(data) else subset(data, by_class[spread(len(data), count)])


def without_some_samples(data: Dataset, count: int) -> tuple[Dataset, Dataset]:
    """A data set without the samples that `some_samples` takes, and the set of these.

    Example:
        >>> [len(part) for part in without_some_samples(bsnn.data.digits(), 100)]
        [1338, 100]
    """
    if count >= len(data):
        raise UserError(f"validation_samples: received {count}; expected fewer than the {len(data)} for training.")
    taken = spread(len(data), count)
    return subset(data, np.delete(np.arange(len(data)), taken)), subset(data, taken)


def spread(length: int, count: int) -> np.ndarray:
    """Numbers of `count` samples, spread evenly over `length`.

    Example:
        >>> spread(10, 4).tolist()
        [0, 2, 5, 7]
    """
    return np.arange(count) * length // count


def subset(data: Dataset, chosen: np.ndarray) -> Dataset:
    """The samples of a data set whose numbers are `chosen`.

    Example:
        >>> subset(bsnn.data.digits(), [0, 2]).labels.tolist() == bsnn.data.digits().labels[[0, 2]].tolist()
        True
    """
    labels = data.labels[chosen]
    if type(data) is ArrayDataset:
        paths = data.paths and [data.paths[i] for i in chosen]
        return dataclasses.replace(data, labels=labels, samples=data.samples[chosen], paths=paths)
    if type(data) is FileDataset:
        return dataclasses.replace(data, labels=labels, paths=[data.paths[i] for i in chosen])
    return _Subset(data, np.asarray(chosen), labels)


@dataclass(eq=False)
class _Subset:
    """Chosen samples of a data set of any other class, which reads them itself."""

    whole: Dataset
    chosen: np.ndarray
    labels: np.ndarray
    name: str = field(init=False)
    kind: Kind = field(init=False)
    classes: tuple[str, ...] = field(init=False)
    shape: tuple[int, ...] = field(init=False)
    mean: tuple[float, ...] = field(init=False)
    std: tuple[float, ...] = field(init=False)
    scale: float = field(init=False)

    def __post_init__(self) -> None:
        for name in ("name", "kind", "classes", "shape", "mean", "std", "scale"):
            setattr(self, name, getattr(self.whole, name))

    def __len__(self) -> int:
        return len(self.chosen)

    def read(self, index: int, rng: np.random.Generator | None = None) -> np.ndarray:
        """Reads one raw sample."""
        return self.whole.read(int(self.chosen[index]), rng)
