"""Folders of classes: which files belong to which class and to which split."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bso.errors import UserError

# What people call the folders; the first word is ours.
_SPLIT_WORDS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
HELD_OUT = 0.2
# Tiny ImageNet's validation pictures lie in one folder, and this file names the class of each.
_ANNOTATIONS = "val_annotations.txt"


def split_folders(root: Path) -> dict[str, Path]:
    """Finds the folders of splits below `root`, whatever they are called: `train`, `val` and `test` if there.

    A folder without a training split among its folders has no splits: `test` can be the name of a class.
    """
    below = {path.name.lower(): path for path in root.iterdir() if path.is_dir()}
    found = {
        split: next(below[word] for word in words if word in below)
        for split, words in _SPLIT_WORDS.items()
        if any(word in below for word in words)
    }
    found = {split: path for split, path in found.items() if not _unlabeled(path)}
    return found if "train" in found and len(found) > 1 else {}


def _unlabeled(folder: Path) -> bool:
    """Tiny ImageNet's test pictures lie in one folder `images` and have no labels."""
    names = [path.name for path in folder.iterdir() if path.name[0] != "."]
    return names == ["images"]


def walk(folder: Path) -> Iterator[Path]:
    """Gives every file at any depth below a folder, except what is hidden or starts with `_`.

    Example:
        >>> sum(path.name == "tree.py" for path in walk(Path(__file__).parent))
        1
    """
    for place, folders, files in os.walk(folder):
        # In place, because this is where os.walk goes next.
        folders[:] = [name for name in folders if name[0] not in "._"]
        yield from (Path(place, name) for name in files if name[0] != ".")


def class_files(root: Path, endings: Sequence[str]) -> dict[str, list[Path]]:
    """Lists the files of each class below `root`, one folder a class, in the order of their names.

    Folders that start with `.` or `_` are no classes (Speech Commands has its `_background_noise_`), and
    files with other endings no samples. Files may lie deeper inside of their class.

    Raises:
        UserError: There are no classes, or one has no files.
    """
    if (root / _ANNOTATIONS).is_file():
        return _annotated(root, endings)
    folders = sorted(
        (path for path in root.iterdir() if path.is_dir() and path.name[0] not in "._"),
        key=lambda path: path.name,
    )
    if not folders:
        raise UserError(f"{root}: no folders of classes here; expected one folder a class with its files in it.")
    classes = {}
    for folder in folders:
        files = sorted(path for path in walk(folder) if path.suffix.lower() in endings)
        if not files:
            raise UserError(
                f"{folder}: the class is empty; expected files with {', '.join(endings)}. Add some or remove "
                "the folder."
            )
        classes[folder.name] = files
    return classes


def _annotated(root: Path, endings: Sequence[str]) -> dict[str, list[Path]]:
    paths = {path.name: path for path in walk(root) if path.suffix.lower() in endings}
    classes: dict[str, list[Path]] = {}
    for number, line in enumerate((root / _ANNOTATIONS).read_text("utf-8", "replace").splitlines(), 1):
        name, _, rest = line.partition("\t")
        if name not in paths or not rest:
            raise UserError(
                f"{root / _ANNOTATIONS}: line {number} is {line[:80]!r}; expected the name of a "
                "picture that is there, a tab and its class. Unpack the original archive again."
            )
        classes.setdefault(rest.partition("\t")[0], []).append(paths.pop(name))
    if paths or not classes:
        missing = next(iter(paths), "any picture")
        raise UserError(f"{root / _ANNOTATIONS}: does not name {missing}; unpack the original archive again.")
    return {name: sorted(classes[name]) for name in sorted(classes)}


def flat(classes: dict[str, list[Path]], names: Sequence[str]) -> tuple[list[Path], np.ndarray]:
    """Lines up the files of all classes with their labels, which are places in `names`."""
    paths = [path for files in classes.values() for path in files]
    label = {name: place for place, name in enumerate(names)}
    counts = [len(files) for files in classes.values()]
    return paths, np.repeat(np.array([label[name] for name in classes], np.int64), counts)


def seeded_split(
    root: Path, classes: dict[str, list[Path]], seed: int, held_out: float = HELD_OUT
) -> dict[str, dict[str, list[Path]]]:
    """Holds out a share of each class for testing, chosen by `seed` among the sorted files."""
    # The old generator, because NumPy promises that its numbers never change, and a split must not.
    rng = np.random.RandomState(seed)
    split: dict[str, dict[str, list[Path]]] = {"train": {}, "test": {}}
    for name, files in classes.items():
        if len(files) < 2:
            raise UserError(
                f"{root / name}: the class has one file, and a split into training and test needs two. Add "
                "files, or make folders train and val yourself."
            )
        count = min(max(round(len(files) * held_out), 1), len(files) - 1)
        chosen = set(rng.permutation(len(files))[:count].tolist())
        split["test"][name] = [path for place, path in enumerate(files) if place in chosen]
        split["train"][name] = [path for place, path in enumerate(files) if place not in chosen]
    return split
