"""Parts of a data set, spread evenly over one that may be sorted by class."""

import dataclasses
from typing import Any

import numpy as np

from bsnn.errors import UserError


def some_samples(dataset: Any, count: int) -> Any:
    """A data set of `count` samples of another one; all of it if it has no more.

    Example:
        >>> some_samples(bsnn.data.digits(), 4).labels.tolist()
        [0, 6, 6, 5]
    """
    return dataset if count >= len(dataset) else _subset(dataset, spread(len(dataset), count))


def without_some_samples(dataset: Any, count: int) -> tuple[Any, Any]:
    """A data set without the samples that `some_samples` takes, and the set of these.

    Example:
        >>> [len(part) for part in without_some_samples(bsnn.data.digits(), 100)]
        [1338, 100]
    """
    if count >= len(dataset):
        raise UserError(f"validation_samples: received {count}; expected fewer than the {len(dataset)} for training.")
    taken = spread(len(dataset), count)
    return _subset(dataset, np.delete(np.arange(len(dataset)), taken)), _subset(dataset, taken)


def spread(length: int, count: int) -> np.ndarray:
    """The places of `count` of `length` samples, evenly spread."""
    return np.arange(count) * length // count


def _subset(dataset: Any, chosen: np.ndarray) -> Any:
    if hasattr(dataset, "samples"):
        return dataclasses.replace(dataset, labels=dataset.labels[chosen], samples=dataset.samples[chosen])
    return dataclasses.replace(dataset, labels=dataset.labels[chosen], paths=[dataset.paths[i] for i in chosen])
