import gzip
from pathlib import Path

import numpy as np
import pytest
from data_files import idx, put

from bsnn import UserError
from bsnn.data import fashion_mnist, find, idx as idx_module, mnist
from bsnn.data.idx import read_idx

IMAGES = np.arange(2 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(2, 28, 28)
LABELS = np.array([9, 0], np.uint8)


def write(folder: Path, dash: str = "-", compress: bool = False, pixels: np.ndarray = IMAGES) -> Path:
    for prefix, images in (("train", pixels), ("t10k", pixels[::-1])):
        for what, array in (("images", images), ("labels", LABELS)):
            content = idx(np.ascontiguousarray(array))
            name = f"{prefix}-{what}{dash}idx{array.ndim}-ubyte{'.gz' if compress else ''}"
            put(folder / name, gzip.compress(content) if compress else content)
    return folder


@pytest.mark.parametrize("dash", "-.")
@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("below", ["", "raw", "MNIST/raw"])
def test_names_and_places(tmp_path, dash, compress, below):
    write(tmp_path / below, dash, compress)
    train, test = mnist(tmp_path), mnist(tmp_path, "test")
    assert np.array_equal(train.samples, IMAGES[:, None])
    assert np.array_equal(test.samples, IMAGES[::-1, None])
    assert train.labels.tolist() == [9, 0]
    assert (train.shape, train.classes[9]) == ((1, 28, 28), "9")


def test_fashion_has_names(tmp_path):
    assert fashion_mnist(write(tmp_path)).classes[9] == "ankle boot"


def test_the_pixels_tell_the_two_sets_apart(tmp_path):
    # Their means are 0.1307 and 0.2860; names of folders mean nothing.
    write(tmp_path / "fashion" / "data", pixels=np.full_like(IMAGES, 33))
    write(tmp_path / "mnist" / "data", pixels=np.full_like(IMAGES, 73))
    assert find(tmp_path / "fashion" / "data").name == "mnist"
    assert find(tmp_path / "mnist" / "data").name == "fashion_mnist"


def test_a_gzip_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(idx_module, "_MAX_BYTES", 1000)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte.gz: unpacks to more than 1,000 bytes"):
        mnist(write(tmp_path, compress=True))


@pytest.mark.parametrize(("code", "kind"), [(9, ">i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")])
def test_every_type_of_number(tmp_path, code, kind):
    values = np.array([[1, -2, 3]], kind)
    assert np.array_equal(read_idx(put(tmp_path / "a", idx(values, code))), values)


WHOLE = idx(IMAGES)
BROKEN = {
    "empty": (b"", "starts with nothing"),
    "text": (b"<html>", "expected the head of an IDX file"),
    "unknown type": (b"\0\0\x0a" + WHOLE[3:], "expected the head"),
    "no dimensions": (b"\0\0\x08\0", "expected the head"),
    "head cut": (WHOLE[:9], "truncated"),
    "pixels cut": (WHOLE[:-1], "truncated or damaged"),
    "too long": (WHOLE + b"\0", "its head says"),
    "gigantic": (
        b"\0\0\x08\xff" + b"\xff" * 1020 + bytes(10),
        r"10 bytes of values, and its head says 4294967295 × 4294967295 × 4294967295 × 4294967295 × \.\.\. values of 1",
    ),
    "gzip cut": (gzip.compress(WHOLE)[:-20], "not a whole gzip file"),
    "gzip damaged": (gzip.compress(WHOLE)[:20] + b"\xff" * 30, "not a whole gzip file"),
    "labels for images": (idx(LABELS), r"shape \(2,\); expected bytes of shape"),
    "not bytes": (idx(IMAGES.astype(">i4"), 12), "holds int32"),
}


@pytest.mark.parametrize(("content", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_images_are_refused_by_name(tmp_path, content, message):
    put(write(tmp_path) / "train-images-idx3-ubyte", content)
    with pytest.raises(UserError, match=message) as caught:
        mnist(tmp_path)
    assert "train-images-idx3-ubyte" in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "message"),
    [([1, 2, 3], "3 labels for the 2 images"), ([1, 10], "sample 1 has label 10")],
    ids=["count", "range"],
)
def test_broken_labels_are_refused_by_name(tmp_path, labels, message):
    put(write(tmp_path) / "train-labels-idx1-ubyte", idx(np.array(labels, np.uint8)))
    with pytest.raises(UserError, match=message) as caught:
        mnist(tmp_path)
    assert "train-labels-idx1-ubyte" in str(caught.value)


def test_missing_files_are_named(tmp_path):
    (write(tmp_path) / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte: missing"):
        mnist(tmp_path, "test")
