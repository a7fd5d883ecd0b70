"""Finds out what data lies in a folder: one of the known sets, or a user's own."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from bsnn.data.cache import in_memory
from bsnn.data.cifar import CIFAR10_CLASSES, cifar10, cifar100, is_cifar
from bsnn.data.dataset import Dataset, FileDataset
from bsnn.data.event_sets import dvs_cifar10_files, nmnist_files
from bsnn.data.folders import folder_files, folder_splits
from bsnn.data.idx import fashion_mnist, find_idx, mnist
from bsnn.data.speech import is_speech_commands, speech_commands_files
from bsnn.data.tree import folders_below, inside, split_folders
from bsnn.errors import UserError

RESIZABLE = ("imagenet", "dvs_cifar10", "nmnist", "speech_commands", "folder")
"""The sets whose samples can have another height and width than their own."""
_CIFAR = {"cifar10": cifar10, "cifar100": cifar100}


class Source(NamedTuple):
    """A data set on the disk: its name, its splits, and how to open one (files are not decoded yet)."""

    name: str
    splits: tuple[str, ...]
    open: Callable[..., Dataset]


def find(root: str | Path, cache: str | Path | None = None) -> Source:
    """Recognizes the data set in a folder by its files.

    Args:
        root: A folder in one of the layouts that `bsnn.data` reads, or one of their archives.
        cache: Where to keep what was found out about the files; see `cache_folder`.

    Example:
        >>> find("nowhere")
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: nowhere: there is no such file or folder.
    """
    place = Path(root).expanduser()
    if not place.exists():
        raise UserError(f"{place}: there is no such file or folder.")
    place = inside(place)
    sources = _known(place, cache)
    below = [] if place.is_file() or split_folders(place) else folders_below(place)
    found = {source.name: where for where in (*below, place) for source in _known(where, cache)}
    if len(found) == len(sources) == 1:
        return sources[0]
    if found:
        words = ", ".join(f"{name} in {where}" for name, where in sorted(found.items()))
        raise UserError(f"{place}: holds {words}; give the folder of one data set.")
    if place.is_file():
        raise UserError(f"{place}: a file that is no archive of a known data set; give the folder of your data.")
    return own(place, cache)


def own(place: Path, cache: str | Path | None = None) -> Source:
    """A folder as a user's own data, whatever else it may be."""
    place = inside(place)
    return Source("folder", folder_splits(place), partial(folder_files, place, cache=cache))


def _known(place: Path, cache: str | Path | None) -> list[Source]:
    """The known sets that lie at a place, by their files."""
    whole = ("train", "test")
    found = [Source(name, whole, partial(read, place)) for name, read in _CIFAR.items() if is_cifar(name, place)]
    if place.is_file():
        return found
    idx = find_idx(place)
    if idx:
        found.append(Source(idx, whole, partial({"mnist": mnist, "fashion_mnist": fashion_mnist}[idx], place)))
    if _is_nmnist(place):
        found.append(Source("nmnist", whole, partial(nmnist_files, place, cache=cache)))
    if _is_dvs_cifar10(place):
        found.append(Source("dvs_cifar10", whole, partial(dvs_cifar10_files, place)))
    if is_speech_commands(place):
        found.append(Source("speech_commands", ("train", "val", "test"), partial(speech_commands_files, place)))
    return found


def load(root: str | Path, split: str = "train", cache: str | Path | None = None) -> Dataset:
    """Loads the data set in a folder, whatever it is, with the default settings of its own function.

    Args:
        root: The folder.
        split: `train` or `test`, and `val` if there is one.
        cache: Where decoded samples are kept; see `cache_folder`.

    Example:
        >>> load("nowhere")
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: nowhere: there is no such file or folder.
    """
    data = find(root, cache).open(split)
    return in_memory(data, cache) if isinstance(data, FileDataset) else data


def named(
    name: str, split: str, root: str | Path | None, *, size: int = 0, time_steps: int = 0, group: str = ""
) -> Dataset:
    """Reads a data set by its name, for a network of a given input size and number of time steps.

    Args:
        name: Of a function of `bsnn.data`, such as `cifar10` or `folder`.
        split: `train` or `test`; for ImageNet, whose test set has no labels, `test` means `val`.
        root: Where it is; None for where downloads are kept.
        size: Rows and columns, for sets that can be resized; 0 for their own.
        time_steps: T, for events.
        group: How files of your own are grouped; see `folder`.

    Example:
        >>> len(named("digits", "test", None))
        359
    """
    if name == "folder" and root is None:
        raise UserError("your own data: say where it is with --data DIR (one folder per class).")
    settings: dict[str, Any] = {}
    if name in RESIZABLE and size:
        settings["size"] = size
    if name in ("dvs_cifar10", "nmnist", "folder") and time_steps:
        settings["time_steps"] = time_steps
    if name == "folder" and group:
        settings["group"] = group
    if name != "digits":
        settings["root"] = root
    elif root is not None:
        raise UserError(f"--data: received {root}; the digits come with bsnn. For your own data: bsnn train folder.")
    home = import_module("bsnn.data")
    if name not in home.__all__ or not callable(getattr(home, name)):
        raise UserError(f"data: there is no data set called {name!r}; see bsnn.data for those there are.")
    return getattr(home, name)(split="val" if (name, split) == ("imagenet", "test") else split, **settings)


def _is_nmnist(place: Path) -> bool:
    train, test = ([path for path in place.glob(pattern) if path.is_dir()] for pattern in ("[Tt]rain/*", "[Tt]est/*"))
    digits = {path.name for path in train + test} <= set("0123456789")
    return bool(train and test) and digits and any(any(path.glob("*.bin")) for path in train)


def _is_dvs_cifar10(place: Path) -> bool:
    folders = {path.name for path in place.iterdir() if path.is_dir() and path.name[0] not in "._"}
    return folders == set(CIFAR10_CLASSES) and next((place / "cat").rglob("*.aedat"), None) is not None
