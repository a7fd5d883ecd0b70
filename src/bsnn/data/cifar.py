"""CIFAR-10 and CIFAR-100, Python and binary version, from the original archives or unpacked.

Python version: a pickled dictionary a file, `data` of `[N, 3072]` bytes (red, green and blue planes of 32 ×
32) and `labels` or `fine_labels`. Binary version: records of one label byte (CIFAR-100: coarse, then fine)
and 3,072 pixels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bsnn.data.archive import is_archive, read_members
from bsnn.data.dataset import ArrayDataset, check_labels
from bsnn.data.downloads import download
from bsnn.data.pickles import read_pickle
from bsnn.errors import UserError

_PIXELS = 3 * 32 * 32
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class _Layout:
    """One version of one set: the files of each split, and where the class names stand."""

    folder: str
    archive: str
    splits: dict[str, tuple[str, ...]]
    names: str
    # The Python version's keys of labels and of class names; the binary version's label bytes, the last of
    # which counts.
    label_key: str = ""
    names_key: str = ""
    label_bytes: int = 0


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_LAYOUTS = {
    "cifar10": (
        _Layout(
            "cifar-10-batches-py",
            "cifar-10-python",
            {"train": _BATCHES, "test": ("test_batch",)},
            "batches.meta",
            label_key="labels",
            names_key="label_names",
        ),
        _Layout(
            "cifar-10-batches-bin",
            "cifar-10-binary",
            {"train": tuple(f"{name}.bin" for name in _BATCHES), "test": ("test_batch.bin",)},
            "batches.meta.txt",
            label_bytes=1,
        ),
    ),
    "cifar100": (
        _Layout(
            "cifar-100-python",
            "cifar-100-python",
            {"train": ("train",), "test": ("test",)},
            "meta",
            label_key="fine_labels",
            names_key="fine_label_names",
        ),
        _Layout(
            "cifar-100-binary",
            "cifar-100-binary",
            {"train": ("train.bin",), "test": ("test.bin",)},
            "fine_label_names.txt",
            label_bytes=2,
        ),
    ),
}
# Over the training images.
_MEAN = {"cifar10": (0.4914, 0.4822, 0.4465), "cifar100": (0.5071, 0.4865, 0.4409)}
_STD = {"cifar10": (0.2470, 0.2435, 0.2616), "cifar100": (0.2673, 0.2564, 0.2762)}


def cifar10(root: str | Path | None = None, split: str = "train") -> ArrayDataset:
    """Reads CIFAR-10: 50,000 training and 10,000 test images of 32 × 32 in 10 classes.

    Args:
        root: The unpacked folder, a folder that holds it or the archive, or the archive itself; None
            downloads.
        split: `train` or `test`.

    Example:
        >>> cifar10("nowhere")
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: nowhere: there is no such file or folder; give the folder of cifar10.
    """
    return _read("cifar10", root, split)


def cifar100(root: str | Path | None = None, split: str = "train") -> ArrayDataset:
    """Reads CIFAR-100 with its 100 fine labels: 50,000 training and 10,000 test images of 32 × 32.

    Args:
        root: The unpacked folder, a folder that holds it or the archive, or the archive itself; None
            downloads.
        split: `train` or `test`.

    Example:
        >>> cifar100("nowhere")
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: nowhere: there is no such file or folder; give the folder of cifar100.
    """
    return _read("cifar100", root, split)


def is_cifar(name: str, root: Path) -> bool:
    """Says whether the set of that name lies at `root`."""
    return any(_locate(layout, root) for layout in _LAYOUTS[name])


def _read(name: str, root: str | Path | None, split: str) -> ArrayDataset:
    place = download(name) if root is None else Path(root)
    if not place.exists():
        raise UserError(f"{place}: there is no such file or folder; give the folder of {name}.")
    if split not in ("train", "test"):
        raise UserError(f"{name} has no split {split!r}; choose train or test.")
    for layout in _LAYOUTS[name]:
        source = _locate(layout, place)
        if source is not None:
            return _load(name, layout, source, split)
    expected = " or ".join(layout.splits["train"][0] for layout in _LAYOUTS[name])
    archives = " or ".join(f"{layout.archive}.tar.gz" for layout in _LAYOUTS[name])
    raise UserError(
        f"{place}: no {name} here; expected {expected} (unpacked) or {archives}. Give the folder that holds them."
    )


def _locate(layout: _Layout, place: Path) -> Path | None:
    """Finds the unpacked folder or the archive of one version at, or directly below, a place."""
    if place.is_file():
        return place if is_archive(place) and layout.archive in place.name else None
    for folder in (place, place / layout.folder):
        files = (*layout.splits["train"], *layout.splits["test"], layout.names)
        # A stray file named `train` is no CIFAR-100.
        if sum((folder / name).is_file() for name in files) > 1:
            return folder
    return next((path for path in sorted(place.glob(f"{layout.archive}*")) if is_archive(path)), None)


def _load(name: str, layout: _Layout, source: Path, split: str) -> ArrayDataset:
    wanted = layout.splits[split]
    contents = _contents(source, (*wanted, layout.names))
    missing = [file for file in wanted if file not in contents]
    if missing:
        raise UserError(
            f"{source / missing[0]}: missing; the {split} split of {name} is {', '.join(wanted)}. Unpack the "
            "original archive again."
        )
    classes = _classes(name, layout, source, contents)
    decode: Callable[[Path, bytes, _Layout], tuple[np.ndarray, Any]] = (
        _decode_pickle if layout.label_key else _decode_binary
    )
    batches, labels = [], []
    for file in wanted:
        pixels, batch_labels = decode(source / file, contents.pop(file), layout)
        labels.append(check_labels(str(source / file), batch_labels, len(pixels), classes))
        batches.append(pixels)
    samples = np.concatenate(batches).reshape(-1, 3, 32, 32)
    return ArrayDataset(name, "image", classes, np.concatenate(labels), samples, _MEAN[name], _STD[name], 255.0)


def _contents(source: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    if source.is_file():
        return read_members(source, names)
    return {name: (source / name).read_bytes() for name in names if (source / name).is_file()}


def _classes(name: str, layout: _Layout, source: Path, contents: dict[str, bytes]) -> tuple[str, ...]:
    count = 10 if name == "cifar10" else 100
    content = contents.get(layout.names)
    if content is None:
        return CIFAR10_CLASSES if name == "cifar10" else tuple(str(label) for label in range(count))
    path = source / layout.names
    if layout.names_key:
        names = read_pickle(path, content).get(layout.names_key)
    else:
        names = content.decode("utf-8", "replace").split()
    if not isinstance(names, list) or len(names) != count or not all(isinstance(word, str) for word in names):
        raise UserError(f"{path}: expected {count} class names; unpack the original archive again.")
    return tuple(names)


def _decode_pickle(path: Path, content: bytes, layout: _Layout) -> tuple[np.ndarray, Any]:
    batch = read_pickle(path, content)
    pixels, labels = batch.get("data"), batch.get(layout.label_key)
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, (list, np.ndarray)):
        raise UserError(
            f"{path}: holds {', '.join(sorted(batch)) or 'nothing'}; expected an array 'data' and a list "
            f"{layout.label_key!r}. The file is of another data set or damaged."
        )
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise UserError(
            f"{path}: 'data' is {pixels.dtype} of shape {pixels.shape}; expected bytes of shape (N, {_PIXELS})."
        )
    if isinstance(labels, list) and not all(type(label) is int for label in labels):
        raise UserError(f"{path}: {layout.label_key!r} holds something other than whole numbers.")
    # Compared here, because huge whole numbers would not fit an array.
    if isinstance(labels, list) and any(not -(2**31) <= label < 2**31 for label in labels):
        raise UserError(f"{path}: {layout.label_key!r} holds a label out of range; the file is damaged.")
    return pixels, np.asarray(labels, np.int64)


def _decode_binary(path: Path, content: bytes, layout: _Layout) -> tuple[np.ndarray, Any]:
    record = layout.label_bytes + _PIXELS
    if not content or len(content) % record:
        raise UserError(
            f"{path}: {len(content):,} bytes are not whole records of {record} (label and pixels); the file "
            "is truncated or of another data set. Unpack the original archive again."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return records[:, layout.label_bytes :], records[:, layout.label_bytes - 1].astype(np.int64)
