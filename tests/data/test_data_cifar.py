import io
import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_files import own_cache, pickled, pickled_array, pickled_list, put, short_string  # noqa: F401

from bsnn import UserError
from bsnn.data import cifar10, cifar100, pickles
from bsnn.data.pickles import read_pickle

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def pixels(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)


def batch(seed: int, core: str = "numpy.core") -> bytes:
    labels = pickled_list([(seed + place) % 10 for place in range(3)])
    return pickled({"data": pickled_array(pixels(3, seed), core), "labels": labels})


def batch_names() -> list[str]:
    return [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]


def write_python(folder: Path, core: str = "numpy.core") -> Path:
    for seed, name in enumerate(batch_names()):
        put(folder / name, batch(seed, core))
    put(folder / "batches.meta", pickled({"label_names": pickled_list(NAMES)}))
    return folder


def write_binary(folder: Path) -> Path:
    for seed, name in enumerate(batch_names()):
        records = [bytes([(seed + place) % 10]) + row.tobytes() for place, row in enumerate(pixels(3, seed))]
        put(folder / f"{name}.bin", b"".join(records))
    put(folder / "batches.meta.txt", "\n".join([*NAMES, "", ""]).encode())
    return folder


def tar_of(folder: Path, path: Path) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    return path


def test_both_layouts_give_the_same(tmp_path):
    python = write_python(tmp_path / "a" / "cifar-10-batches-py")
    binary = write_binary(tmp_path / "b" / "cifar-10-batches-bin")
    for split, count in (("train", 15), ("test", 3)):
        one, other = cifar10(python, split), cifar10(binary.parent, split)
        assert len(one) == count
        assert one.classes == other.classes == tuple(NAMES)
        assert np.array_equal(one.samples, other.samples)
        assert np.array_equal(one.labels, other.labels)
    first = cifar10(python)
    assert np.array_equal(first.read(0), pixels(3, 0)[0].reshape(3, 32, 32))
    assert first.labels.tolist()[:4] == [0, 1, 2, 1]
    assert first.samples.flags.writeable
    assert (first.kind, first.shape, first.scale) == ("image", (3, 32, 32), 255.0)


def test_archives_need_no_unpacking(tmp_path):
    unpacked = write_python(tmp_path / "cifar-10-batches-py")
    expected = cifar10(unpacked).samples
    archive = tar_of(unpacked, tmp_path / "elsewhere-cifar-10-python.tar.gz")
    assert np.array_equal(cifar10(archive).samples, expected)
    folder = tmp_path / "downloads"
    folder.mkdir()
    archive.rename(folder / "cifar-10-python.tar.gz")
    assert np.array_equal(cifar10(folder).samples, expected)
    assert sorted(path.name for path in folder.iterdir()) == ["cifar-10-python.tar.gz"]


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_every_protocol(protocol):
    content = {b"labels": [1, 2], "data": pixels(2), "ours": np.arange(3, dtype=">i4"), "one": np.int64(7)}
    read = read_pickle(Path("batch"), pickle.dumps(content, protocol))
    assert read["labels"] == [1, 2]
    assert np.array_equal(read["data"], pixels(2))
    assert read["ours"].tolist() == [0, 1, 2]
    assert read["one"] == 7


def test_numpy_2_names_of_modules(tmp_path):
    new = cifar10(write_python(tmp_path / "new", "numpy._core"))
    assert np.array_equal(new.samples, cifar10(write_python(tmp_path / "old")).samples)


def test_cifar100_fine_labels_in_both_layouts(tmp_path):
    names = [f"fine{label}" for label in range(100)]
    for split, seed in (("train", 1), ("test", 2)):
        rows = pixels(2, seed)
        entries = {
            "data": pickled_array(rows),
            "coarse_labels": pickled_list([3, 4]),
            "fine_labels": pickled_list([99, 7]),
        }
        put(tmp_path / "p" / "cifar-100-python" / split, pickled(entries))
        records = bytes([3, 99]) + rows[0].tobytes() + bytes([4, 7]) + rows[1].tobytes()
        put(tmp_path / "b" / f"{split}.bin", records)
    put(tmp_path / "p" / "cifar-100-python" / "meta", pickled({"fine_label_names": pickled_list(names)}))
    put(tmp_path / "b" / "fine_label_names.txt", "\n".join(names).encode())
    for split in ("train", "test"):
        one, other = cifar100(tmp_path / "p", split), cifar100(tmp_path / "b", split)
        assert one.labels.tolist() == other.labels.tolist() == [99, 7]
        assert one.classes == other.classes == tuple(names)
        assert np.array_equal(one.samples, other.samples)


class Harm:
    """A pickle of this runs a command where pickles are loaded without care."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


GLOBALS = {
    "system": b"cos\nsystem\nU\x04true\x85R.",
    "eval": b"c__builtin__\neval\nU\x0314 \x85R.",
    "builtins": b"cbuiltins\ngetattr\n.",
    "numpy load": b"cnumpy\nload\nU\x01x\x85R.",
    "numpy fromfile": b"cnumpy.core.multiarray\nfromfile\n.",
    "torch": b"ctorch._utils\n_rebuild_tensor_v2\n.",
    "dotted": b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.",
    "persistent": b"\x80\x02U\x01aQ.",
    "extension": b"\x80\x02\x82\x01.",
}


@pytest.mark.parametrize("content", GLOBALS.values(), ids=GLOBALS.keys())
def test_foreign_pickles_are_refused(tmp_path, content):
    folder = write_python(tmp_path / "py")
    put(folder / "data_batch_3", content)
    with pytest.raises(UserError, match=r"data_batch_3: refused as a CIFAR batch"):
        cifar10(folder)


def test_a_malicious_pickle_does_not_run(tmp_path):
    folder, marker = write_python(tmp_path / "py"), tmp_path / "harmed"
    put(folder / "test_batch", pickle.dumps({"data": Harm(marker), "labels": [1]}))
    with pytest.raises(UserError, match=r"asks for \w+\.system"):
        cifar10(folder, "test")
    assert not marker.exists()


def numbers(count: int) -> bytes:
    return pickled_list(range(count))


BATCHES = {
    "truncated": (batch(0)[:500], "refused"),
    "empty": (b"", "refused"),
    "text": (b"<html>not found</html>", "refused"),
    "no dictionary": (b"\x80\x02].", "expected a dictionary"),
    "no labels": (pickled({"data": pickled_array(pixels(1))}), "expected an array 'data' and a list"),
    "wrong shape": (
        pickled({"data": pickled_array(pixels(1)[:, :3000]), "labels": numbers(1)}),
        r"shape \(1, 3000\)",
    ),
    "content missing": (
        pickled({"data": pickled_array(pixels(1)).replace(b"J\x00\x0c", b"J\x01\x0c"), "labels": numbers(1)}),
        "bytes for an array",
    ),
    "objects": (
        pickled({"data": pickled_array(np.zeros(1, "i8"), code="O8"), "labels": numbers(1)}),
        "type 'O8'",
    ),
    "not bytes": (
        pickled({"data": pickled_array(np.zeros((1, 3072), "<i2"), code="i2"), "labels": numbers(1)}),
        "int16",
    ),
    "label too high": (
        pickled({"data": pickled_array(pixels(2)), "labels": pickled_list([1, 10])}),
        "sample 1 has label 10",
    ),
    "negative label": (
        pickled({"data": pickled_array(pixels(1)), "labels": pickled_list([-1])}),
        "has label -1",
    ),
    "labels missing": (
        pickled({"data": pickled_array(pixels(2)), "labels": numbers(1)}),
        "for each of the 2 samples",
    ),
    "labels are words": (
        pickled({"data": pickled_array(pixels(1)), "labels": pickled_list(["cat"])}),
        "other than whole numbers",
    ),
    "huge label": (
        pickled({"data": pickled_array(pixels(1)), "labels": b"](\x8a\x0a" + b"\x7f" * 10 + b"e"}),
        "out of range",
    ),
    "no samples": (
        pickled({"data": pickled_array(np.zeros((0, 3072), "u1")), "labels": numbers(0)}),
        "no samples",
    ),
    "class names where pixels belong": (
        pickled({"data": short_string("pixels"), "labels": numbers(1)}),
        "expected an array 'data'",
    ),
}


@pytest.mark.parametrize(("content", "message"), BATCHES.values(), ids=BATCHES.keys())
def test_broken_batches_are_refused_by_name(tmp_path, content, message):
    folder = write_python(tmp_path / "py")
    put(folder / "data_batch_2", content)
    with pytest.raises(UserError, match=message) as caught:
        cifar10(folder)
    assert "data_batch_2" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x01" + bytes(3000), "not whole records of 3073"),
        (b"", "not whole records"),
        (b"\x0b" + bytes(3072), "has label 11"),
    ],
    ids=["truncated", "empty", "label"],
)
def test_broken_binary_batches_are_refused_by_name(tmp_path, content, message):
    folder = write_binary(tmp_path / "bin")
    put(folder / "data_batch_4.bin", content)
    with pytest.raises(UserError, match=message) as caught:
        cifar10(folder)
    assert "data_batch_4.bin" in str(caught.value)


def test_missing_files_and_wrong_places_say_what_is_expected(tmp_path):
    folder = write_python(tmp_path / "py")
    (folder / "data_batch_5").unlink()
    with pytest.raises(UserError, match=r"data_batch_5: missing"):
        cifar10(folder)
    put(folder / "batches.meta", pickled({"label_names": pickled_list(["cat"])}))
    with pytest.raises(UserError, match=r"batches.meta: expected 10 class names"):
        cifar10(folder, "test")
    with pytest.raises(UserError, match=r"no cifar10 here; expected data_batch_1 or data_batch_1.bin"):
        cifar10(tmp_path)
    with pytest.raises(UserError, match=r"no split 'val'"):
        cifar10(folder, "val")


def test_broken_archives_are_refused_by_name(tmp_path):
    whole = tar_of(write_python(tmp_path / "cifar-10-batches-py"), tmp_path / "cifar-10-python.tar.gz")
    content = whole.read_bytes()
    for name, damaged in (("cut", content[: len(content) // 2]), ("text", b"not an archive"), ("empty", b"")):
        path = put(tmp_path / name / "cifar-10-python.tar.gz", damaged)
        with pytest.raises(UserError, match=r"cifar-10-python.tar.gz: not a whole archive"):
            cifar10(path)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("readme.txt", "nothing here")
    path = put(tmp_path / "zip" / "cifar-10-python.zip", buffer.getvalue())
    with pytest.raises(UserError, match=r"data_batch_1: missing"):
        cifar10(path)


@pytest.mark.parametrize("name", sorted(pickles._ADMITTED))
def test_a_pickle_cannot_change_the_stand_ins(tmp_path, name):
    stand_in = pickles._ADMITTED[name]
    before = dict(vars(stand_in))
    module, function = (part.encode() for part in name)
    evil = b"\x80\x02c" + module + b"\n" + function + b"\nN}X\x08\0\0\0__init__K\x01s\x86b."
    with pytest.raises(UserError, match="evil: refused as a CIFAR batch"):
        pickles.read_pickle(tmp_path / "evil", evil)
    assert dict(vars(stand_in)) == before
