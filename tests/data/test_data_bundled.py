import hashlib

import numpy as np
import pytest

from bsnn import UserError
from bsnn.data import digits, measure


def test_the_bundled_digits() -> None:
    train, test = digits(), digits("test")
    assert (len(train), len(test), train.scale) == (1438, 359, 16.0)
    mean, deviation = measure(train)
    assert mean == pytest.approx(train.mean, abs=5e-4)
    assert deviation == pytest.approx(train.std, abs=5e-4)
    assert np.all(np.abs(np.bincount(test.labels) - 36) <= 2)
    with pytest.raises(UserError, match="no split 'val'"):
        digits("val")


def test_the_split_never_moves() -> None:
    """Every reported accuracy depends on it."""
    content = b"".join(data.samples.tobytes() + data.labels.tobytes() for data in (digits(), digits("test")))
    assert hashlib.sha256(content).hexdigest() == "71a9f741ef7de929915f6467a3519217698554fab76495d62d43d967894a3097"


def test_they_are_those_of_scikit_learn() -> None:
    original = pytest.importorskip("sklearn.datasets").load_digits()
    for data in (digits(), digits("test")):
        # The split keeps the order, so each sample is the next one that matches.
        rows = iter(zip(original["images"], original["target"], strict=True))
        for image, label in zip(data.samples, data.labels, strict=True):
            assert any(np.array_equal(image[0], other) and label == expected for other, expected in rows)
