"""Folders of classes: which files belong to which class and to which split."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from bsnn.data.archive import ENDINGS
from bsnn.errors import UserError

Split = TypeVar("Split")

# What people call the folders, with or without "set" or "data" behind it; the first word is ours.
_SPLIT_WORDS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "eval", "evaluation", "dev"),
    "test": ("test", "testing", "holdout"),
}
_SUFFIX = re.compile(r"[-_ ]?(set|data)$")
HELD_OUT = 0.2
# Tiny ImageNet's validation images lie in one folder, and this file names the class of each.
_ANNOTATIONS = "val_annotations.txt"


def inside(place: Path) -> Path:
    """Steps into a folder that holds nothing but one folder, as unpacking an archive leaves behind."""
    while place.is_dir():
        below = [path for path in place.iterdir() if path.name[0] != "." and path.name != "__MACOSX"]
        if len(below) != 1 or not below[0].is_dir():
            break
        place = below[0]
    return place


def split_folders(root: Path) -> dict[str, Path]:
    """Finds the folders of splits below `root`, whatever they are called: `train`, `val` and `test` if there.

    One such name alone can be that of a class (a train is a vehicle), so then there are no splits.

    Raises:
        UserError: Two folders are for one split, or there is none for training.
    """
    below = folders_below(root)
    found: dict[str, Path] = {}
    for path in below:
        word = _SUFFIX.sub("", path.name.lower())
        split = next((split for split, words in _SPLIT_WORDS.items() if word in words), None)
        if split in found:
            raise UserError(
                f"{root}: the folders {found[split].name} and {path.name} are both for the {split} split; expected "
                "one folder per split. Merge them or move one away."
            )
        if split is not None:
            found[split] = path
    if len(found) < 2:
        return {}
    if "train" not in found:
        raise UserError(
            f"{root}: splits {' and '.join(path.name for path in found.values())}, and none for training; expected "
            "a folder train next to them. If these are classes, rename their folders."
        )
    if len(found) == 3 and _unlabeled(found["test"]):
        del found["test"]
    return {split: found[split] for split in _SPLIT_WORDS if split in found}


def folders_below(root: Path) -> list[Path]:
    """The folders that count, by name: neither hidden ones nor Speech Commands' `_background_noise_`."""
    folders = (path for path in root.iterdir() if path.is_dir() and path.name[0] not in "._")
    return sorted(folders, key=lambda path: path.name)


def _unlabeled(folder: Path) -> bool:
    """Test images of a competition lie in one folder, or in Tiny ImageNet's `images`, without their classes."""
    return [path.name for path in folders_below(folder)] in ([], ["images"]) and not (folder / _ANNOTATIONS).exists()


def walk(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Returns every file at any depth below a folder, except what is hidden or starts with `_`.

    Args:
        folder: Where to start.
        above: The real paths of the folders that led here.

    Example:
        >>> sum(path.name == "tree.py" for path in walk(Path(__file__).parent))
        1
    """
    here = (*above, folder.resolve())
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                # A link to a folder is followed, but not one that leads back up.
                back = entry.is_symlink() and any(place.is_relative_to(Path(entry.path).resolve()) for place in here)
                if entry.name[0] not in "._" and not back:
                    yield from walk(Path(entry.path), here)
            elif entry.name[0] != ".":
                if entry.is_symlink() and not os.path.exists(entry.path):
                    raise UserError(
                        f"{entry.path}: a link to {os.readlink(entry.path)}, which is not there; restore that file "
                        "or remove the link."
                    )
                yield Path(entry.path)


def class_files(root: Path, endings: Sequence[str], *, grouped: bool = False) -> dict[str, list[Path]]:
    """Lists the files of each class below `root`, one folder per class, in the order of their names.

    Folders that start with `.` or `_` are no classes (Speech Commands has its `_background_noise_`), and
    files with other endings no samples. Files may lie deeper inside of their class; with `grouped`, all classes may
    have the same folders.

    Raises:
        UserError: There are no classes, or one has no files.
    """
    if (root / _ANNOTATIONS).is_file():
        return _annotated(root, endings)
    folders = folders_below(root)
    if not folders:
        loose = [path.name for path in root.iterdir() if path.suffix.lower() in endings]
        if not loose:
            refuse_archives(root)
        sort = "Move each file into the folder of its class."
        if any(name.startswith("ILSVRC2012_val_") for name in loose):
            sort = "Sort ImageNet's validation pictures into classes first, as its script valprep.sh does."
        raise UserError(
            f"{root}: {f'{len(loose):,} files and ' if loose else ''}no folders of classes here; expected one folder "
            f"per class with its files in it. {sort}"
        )
    inner = [{path.name for path in folders_below(folder)} for folder in folders]
    if not grouped and len(inner) > 1 and len(inner[0]) > 1 and all(names == inner[0] for names in inner):
        raise UserError(
            f"{root}: the folders {', '.join(path.name for path in folders[:4])} all hold "
            f"{', '.join(sorted(inner[0])[:4])}, so these look like splits, or splits lie inside of classes; expected "
            "train, val and test with one folder per class in each. Rename or move them; if they are groups, such as "
            "speakers, give --group folder."
        )
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


def refuse_archives(root: Path) -> None:
    """Raises if there are archives below a folder: for a better message where nothing else was found."""
    names = sorted(path.name for path in walk(root) if path.name.lower().endswith(ENDINGS))
    if names:
        more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
        raise UserError(
            f"{root}: holds archives ({', '.join(names[:3])}{more}) and no data that can be read; unpack each of them "
            "into this folder."
        )


def choose(root: Path, splits: Mapping[str, Split], split: str) -> Split:
    """Returns a split by its name; if only one of `val` and `test` exists, both names refer to it.

    Example:
        >>> choose(Path(), {"train": 1, "test": 2}, "val")
        2
    """
    for name in {"val": ("val", "test"), "test": ("test", "val")}.get(split, (split,)):
        if name in splits:
            return splits[name]
    raise UserError(f"{root}: no split {split!r} here; there are {', '.join(splits)}.")


def check_classes(root: Path, split: str, classes: Iterable[str], names: Sequence[str]) -> None:
    """Refuses a split with a class that the training split does not have."""
    unknown = sorted(set(classes) - set(names))
    if unknown:
        some = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
        raise UserError(
            f"{root}: class {unknown[0]!r} is in the {split} split and not among the training classes {some}; rename "
            "or remove it."
        )


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
    held = held_out_places([len(files) for files in classes.values()], seed, held_out)
    split: dict[str, dict[str, list[Path]]] = {"train": {}, "test": {}}
    for (name, files), chosen in zip(classes.items(), held, strict=True):
        if len(files) < 2:
            raise UserError(
                f"{root / name}: the class has one file, and a split into training and test needs two. Add "
                "files, or make folders train and val yourself."
            )
        split["test"][name] = [path for place, path in enumerate(files) if place in chosen]
        split["train"][name] = [path for place, path in enumerate(files) if place not in chosen]
    return split


def held_out_places(counts: Sequence[int], seed: int, share: float = HELD_OUT) -> list[set[int]]:
    """Draws which places of each class are held out, at least one and never all, by the classes' counts.

    Example:
        >>> held_out_places([5, 10], seed=0)
        [{2}, {5, 6}]
    """
    # The old generator, because NumPy promises that its numbers never change, and a split must not.
    rng = np.random.RandomState(seed)
    return [set(rng.permutation(count)[: min(max(round(count * share), 1), count - 1)].tolist()) for count in counts]
