"""Parts of data sets: the samples stay what they were, whatever class the whole is of."""

from pathlib import Path

import numpy as np
import pytest

from bsnn.data.dataset import ArrayDataset, Dataset, FileDataset
from bsnn.data.subset import some_samples, spread, spread_over_classes, subset

LABELS = np.arange(10) // 5
ABOUT = ("own", "image", ("a", "b"))
SAMPLES = np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1)


def decode(path: Path, rng: np.random.Generator | None) -> np.ndarray:
    return np.full((1, 1, 1), int(path.stem), np.uint8)


class Doubled(ArrayDataset):
    """A class of the user's, which means its own `read`."""

    def read(self, index: int, rng: np.random.Generator | None = None) -> np.ndarray:
        return 2 * super().read(index, rng)


PATHS = [Path(f"{number}.png") for number in range(10)]
SETS = {
    "array": (ArrayDataset(*ABOUT, LABELS, SAMPLES, (0.5,), (0.2,), 255.0), 1),
    "files": (FileDataset(*ABOUT, LABELS, (1, 1, 1), (0.5,), (0.2,), 255.0, PATHS, decode), 1),
    "own": (Doubled(*ABOUT, LABELS, SAMPLES, (0.5,), (0.2,), 255.0), 2),
}


@pytest.mark.parametrize("name", SETS)
def test_a_part_reads_what_the_whole_reads(name: str) -> None:
    data, factor = SETS[name]
    part = subset(data, np.array([7, 2]))
    assert isinstance(part, Dataset)
    assert len(part) == 2
    assert part.labels.tolist() == [1, 0]
    assert [part.read(i).item() for i in range(2)] == [7 * factor, 2 * factor]
    assert (part.name, part.kind, part.classes, part.shape) == (*ABOUT, (1, 1, 1))
    assert (part.mean, part.std, part.scale) == ((0.5,), (0.2,), 255.0)


def test_samples_are_spread_over_a_set_that_is_sorted_by_class() -> None:
    data, _ = SETS["array"]
    assert some_samples(data, 4).labels.tolist() == [0, 0, 1, 1]
    assert some_samples(data, 10) is data
    assert some_samples(data, 99) is data
    assert spread(10, 10).tolist() == list(range(10))


@pytest.mark.parametrize("labels", [[0, 1] * 8, [0] * 8 + [1] * 8, [1] * 8 + [0] * 8])
def test_samples_of_all_classes_in_any_order(labels: list[int]) -> None:
    """With two classes in turn, every second sample is of the same one."""
    samples = np.arange(16, dtype=np.uint8).reshape(16, 1, 1, 1)
    data = ArrayDataset("own", "image", ("a", "b"), np.array(labels), samples, (0.5,), (0.5,), 255.0)
    assert spread_over_classes(data, 4).labels.tolist() == [0, 0, 1, 1]
    assert len(np.unique(spread_over_classes(data, 4).samples)) == 4  # pyright: ignore
    assert spread_over_classes(data, 16) is data
