"""MNIST and Fashion-MNIST from IDX files, compressed or not, in both ways of writing their names.

IDX: two zero bytes, a type code, the number of dimensions, each dimension as a big-endian 32-bit number, the
values.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from bsnn.data.dataset import ArrayDataset, check_labels
from bsnn.data.downloads import download
from bsnn.errors import UserError

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PREFIX = {"train": "train", "test": "t10k"}
_CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion_mnist": (
        "t-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
}
# Over the training images.
_MEAN = {"mnist": (0.1307,), "fashion_mnist": (0.2860,)}
_STD = {"mnist": (0.3081,), "fashion_mnist": (0.3530,)}
# A gzip file can grow a thousandfold; no set of this format comes near.
_MAX_BYTES = 2 * 2**30


def mnist(root: str | Path | None = None, split: str = "train") -> ArrayDataset:
    """Reads MNIST: 60,000 training and 10,000 test digits, 28 × 28, gray.

    Args:
        root: The folder of the IDX files (or a folder with `raw` or `MNIST/raw` in it); None downloads.
        split: `train` or `test`.

    Example:
        >>> mnist("nowhere")
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: nowhere: there is no such folder; give the folder of mnist.
    """
    return _read("mnist", root, split)


def fashion_mnist(root: str | Path | None = None, split: str = "train") -> ArrayDataset:
    """Reads Fashion-MNIST: 60,000 training and 10,000 test images of clothes, 28 × 28, gray.

    Args:
        root: The folder of the IDX files (or a folder with `raw` or `FashionMNIST/raw` in it); None
            downloads.
        split: `train` or `test`.

    Example:
        >>> fashion_mnist("nowhere")
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: nowhere: there is no such folder; give the folder of fashion_mnist.
    """
    return _read("fashion_mnist", root, split)


def find_idx(root: Path) -> str | None:
    """Says which of the two sets lies at `root`, if any: the one whose mean the pixels are nearer to."""
    found = _locate(root, "train", "images", 3) or _locate(root, "test", "images", 3)
    if found is None:
        return None
    mean = read_idx(found).mean() / 255
    return min(_MEAN, key=lambda name: abs(_MEAN[name][0] - mean))


def read_idx(path: Path) -> np.ndarray:
    """Reads one IDX file, `.gz` or not, as an array of its own type.

    Args:
        path: The file.
    """
    content = _bytes(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES or not content[3]:
        raise UserError(
            f"{path}: starts with {content[:4].hex(' ') or 'nothing'}; expected the head of an IDX file (00 "
            "00, type, dimensions). It is another kind of file or damaged."
        )
    num_dimensions = content[3]
    start = 4 + 4 * num_dimensions
    shape = tuple(int(side) for side in np.frombuffer(content[4:start], ">u4", len(content[4:start]) // 4))
    dtype = np.dtype(_TYPES[content[2]])
    if len(shape) != num_dimensions or len(content) != start + math.prod(shape) * dtype.itemsize:
        sides = " × ".join(str(side) for side in shape[:4]) + (" × ..." if num_dimensions > 4 else "")
        raise UserError(
            f"{path}: {len(content) - start:,} bytes of values, and its head says {sides} values of "
            f"{dtype.itemsize}; the file is truncated or damaged. Download it again."
        )
    return np.frombuffer(content, dtype, offset=start).reshape(shape).astype(dtype.newbyteorder("="))


def _read(name: str, root: str | Path | None, split: str) -> ArrayDataset:
    place = download(name) if root is None else Path(root)
    if not place.exists():
        raise UserError(f"{place}: there is no such folder; give the folder of {name}.")
    if split not in _PREFIX:
        raise UserError(f"{name} has no split {split!r}; choose train or test.")
    paths = [_locate(place, split, what, sides) for what, sides in (("images", 3), ("labels", 1))]
    if paths[0] is None or paths[1] is None:
        what = "images-idx3" if paths[0] is None else "labels-idx1"
        raise UserError(
            f"{place / f'{_PREFIX[split]}-{what}-ubyte'}: missing (also with .gz); put the four IDX files of "
            f"{name} into one folder and give that."
        )
    images, labels = read_idx(paths[0]), read_idx(paths[1])
    if images.ndim != 3 or images.dtype != np.uint8 or 0 in images.shape:
        raise UserError(
            f"{paths[0]}: holds {images.dtype} of shape {images.shape}; expected bytes of shape (N, 28, 28)."
        )
    if labels.ndim != 1 or labels.dtype != np.uint8:
        raise UserError(f"{paths[1]}: holds {labels.dtype} of shape {labels.shape}; expected N bytes.")
    if len(labels) != len(images):
        raise UserError(
            f"{paths[1]}: {len(labels):,} labels for the {len(images):,} images of {paths[0].name}; the "
            "files are of different sets."
        )
    labels = check_labels(str(paths[1]), labels, len(images), _CLASSES[name])
    return ArrayDataset(name, "image", _CLASSES[name], labels, images[:, None], _MEAN[name], _STD[name], 255.0)


def _locate(root: Path, split: str, what: str, sides: int) -> Path | None:
    stem = f"{_PREFIX[split]}-{what}"
    below = ("", "raw", "MNIST/raw", "FashionMNIST/raw", "MNIST", "FashionMNIST")
    for folder in dict.fromkeys(root / part for part in below):
        for dash in "-.":
            for ending in ("", ".gz"):
                path = folder / f"{stem}{dash}idx{sides}-ubyte{ending}"
                if path.is_file():
                    return path
    return None


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    if not zipped:
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            content = file.read(_MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: not a whole gzip file ({error}); download it again.") from error
    if len(content) > _MAX_BYTES:
        raise UserError(f"{path}: unpacks to more than {_MAX_BYTES:,} bytes; refused as a bomb.")
    return content
