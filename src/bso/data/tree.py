"""Folders of classes: which files belong to which class and to which split."""

from collections.abc import Sequence
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
    return found if "train" in found and len(found) > 1 else {}


def class_files(root: Path, endings: Sequence[str]) -> dict[str, list[Path]]:
    """Lists the files of each class below `root`, one folder a class, in the order of their names.

    Folders that start with `.` or `_` are no classes (Speech Commands has its `_background_noise_`), and
    files with other endings no samples. Files may lie deeper inside of their class.

    Raises:
        UserError: There are no classes, or one has no files.
    """
    folders = sorted(
        (path for path in root.iterdir() if path.is_dir() and path.name[0] not in "._"),
        key=lambda path: path.name,
    )
    if not folders:
        raise UserError(
            f"{root}: no folders of classes here; expected one folder a class with its files in it."
        )
    classes = {}
    for folder in folders:
        files = sorted(
            path
            for path in folder.rglob("*")
            if path.suffix.lower() in endings and not path.name.startswith(".") and path.is_file()
        )
        if not files:
            raise UserError(
                f"{folder}: the class is empty; expected files with {', '.join(endings)}. Add some or remove "
                "the folder."
            )
        classes[folder.name] = files
    return classes


def flat(classes: dict[str, list[Path]], names: Sequence[str]) -> tuple[list[Path], np.ndarray]:
    """Lines up the files of all classes with their labels, which are places in `names`."""
    paths = [path for files in classes.values() for path in files]
    labels = [names.index(name) for name, files in classes.items() for _ in files]
    return paths, np.array(labels, np.int64)


def seeded_split(
    root: Path, classes: dict[str, list[Path]], seed: int, held_out: float = HELD_OUT
) -> dict[str, dict[str, list[Path]]]:
    """Holds out a share of each class for testing, chosen by `seed` among the sorted files."""
    rng = np.random.default_rng(seed)
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
