"""DVS-CIFAR10 and N-MNIST: event-camera recordings in folders of classes, as frames."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from bsnn.data.cache import in_memory, remember_measures
from bsnn.data.cifar import CIFAR10_CLASSES
from bsnn.data.dataset import ArrayDataset, FileDataset
from bsnn.data.downloads import download
from bsnn.data.events import EVENT_SCALE, NMNIST_SENSOR, decode_events
from bsnn.data.tree import class_files, flat, refuse_archives, seeded_split
from bsnn.errors import UserError

# There is no official split: a tenth of each class is held out by this seed.
DVS_CIFAR10_SEED = 0


def dvs_cifar10(
    root: str | Path | None = None,
    split: str = "train",
    time_steps: int = 10,
    size: int = 48,
    cache: str | Path | None = None,
) -> ArrayDataset | FileDataset:
    """Reads DVS-CIFAR10, recordings of a DVS128: 9,000 for training and 1,000 for testing.

    A raw frame says for each pixel whether there was an event (255) or not (0), interpolated to `size`; the
    mean and standard deviation are those in common use for this preprocessing. Images stand upright.

    Args:
        root: The folder with the ten class folders; None downloads.
        split: `train` or `test`; 100 of each class are the test split, drawn by seed 0.
        time_steps: T, the number of frames.
        size: Rows and columns of a frame.
        cache: Where decoded frames are kept; see `cache_folder`.

    Example:
        >>> dvs_cifar10("nowhere")
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: nowhere: there is no such folder; give the folder of dvs_cifar10.
    """
    place = download("dvs_cifar10", cache) if root is None else Path(root)
    return in_memory(dvs_cifar10_files(place, split, time_steps, size), cache)


def dvs_cifar10_files(root: Path, split: str, time_steps: int = 10, size: int = 48) -> FileDataset:
    """The same as `dvs_cifar10`, decoded whenever a sample is read."""
    _check(root, "dvs_cifar10", split)
    found = class_files(root, (".aedat",))
    if sorted(found) != sorted(CIFAR10_CLASSES):
        raise UserError(
            f"{root}: the classes are {', '.join(found)}; DVS-CIFAR10 has {', '.join(CIFAR10_CLASSES)}. "
            "For other classes, use bsnn.data.folder."
        )
    classes = {name: sorted(found[name], key=_number) for name in CIFAR10_CLASSES}
    chosen = seeded_split(root, classes, DVS_CIFAR10_SEED, 0.1)[split]
    paths, labels = flat(chosen, CIFAR10_CLASSES)
    # The camera lay on its side: turned by a quarter, images stand upright, as in other readers of this set.
    decode = partial(
        decode_events, time_steps=time_steps, sensor=(128, 128), size=(size, size), presence=True, turned=True
    )
    return FileDataset(
        "dvs_cifar10",
        "event",
        CIFAR10_CLASSES,
        labels,
        (time_steps, 2, size, size),
        (0.2728, 0.1295),
        (0.2225, 0.1290),
        255.0,
        paths,
        decode,
    )


def nmnist(
    root: str | Path | None = None,
    split: str = "train",
    time_steps: int = 10,
    size: int = 34,
    cache: str | Path | None = None,
) -> ArrayDataset | FileDataset:
    """Reads N-MNIST: 60,000 training and 10,000 test recordings of digits, 34 × 34, from the `.bin` files.

    A raw frame counts events in eighths. Mean and standard deviation are measured on training recordings.

    Args:
        root: The folder with `Train` and `Test`, each with folders `0` to `9`.
        split: `train` or `test`.
        time_steps: T, the number of frames.
        size: Rows and columns of a frame.
        cache: Where decoded frames are kept; see `cache_folder`.

    Example:
        >>> nmnist("nowhere")
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: nowhere: there is no such folder; give the folder of nmnist.
    """
    place = download("nmnist", cache) if root is None else Path(root)
    return in_memory(nmnist_files(place, split, time_steps, size, cache), cache)


def nmnist_files(
    root: Path, split: str, time_steps: int = 10, size: int = 34, cache: str | Path | None = None
) -> FileDataset:
    """The same as `nmnist`, decoded whenever a sample is read."""
    _check(root, "nmnist", split)
    train = remember_measures(_nmnist_split(root, "train", time_steps, size), cache)
    if split == "train":
        return train
    return replace(_nmnist_split(root, split, time_steps, size), mean=train.mean, std=train.std)


def _nmnist_split(root: Path, split: str, time_steps: int, size: int) -> FileDataset:
    folder = next((path for path in (root / split.title(), root / split) if path.is_dir()), None)
    if folder is None:
        refuse_archives(root)
        raise UserError(f"{root / split.title()}: missing; expected Train and Test, a folder 0 to 9 in each.")
    digits = tuple("0123456789")
    classes = class_files(folder, (".bin",))
    if not set(classes) <= set(digits):
        raise UserError(f"{folder}: the classes are {', '.join(classes)}; N-MNIST has folders 0 to 9.")
    paths, labels = flat(classes, digits)
    decode = partial(decode_events, time_steps=time_steps, sensor=NMNIST_SENSOR, size=(size, size))
    shape = (time_steps, 2, size, size)
    return FileDataset("nmnist", "event", digits, labels, shape, (0.0, 0.0), (1.0, 1.0), EVENT_SCALE, paths, decode)


def _check(root: Path, name: str, split: str) -> None:
    if not root.is_dir():
        raise UserError(f"{root}: there is no such folder; give the folder of {name}.")
    if split not in ("train", "test"):
        raise UserError(f"{name} has no split {split!r}; choose train or test.")


def _number(path: Path) -> tuple[int, str]:
    """Orders cifar10_cat_10 after cifar10_cat_9, so the split does not depend on padding."""
    digits = "".join(character for character in path.stem.rpartition("_")[2] if character.isdigit())
    return int(digits or -1), path.name
