"""Files that belong together, such as the recordings of one speaker: found by their names, and kept in one split.

What names a group is the first folder below the class (`folder`), or a part of the file name, counted from 1: the parts
of `7_jackson_32.wav` are `7`, `jackson` and `32`.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bsnn.data.dataset import Dataset
from bsnn.data.subset import subset
from bsnn.data.tree import HELD_OUT
from bsnn.errors import UserError

_SEPARATORS = re.compile(r"[-_. ]+")
# Names suggest groups if at least this share of the files has another one of its group, and as large a share of the
# groups have letters in their names: numbers alone may as well count files.
_MOST = 0.5
_MOST_PARTS = 4
_SPEECH_COMMANDS = "_nohash_"


def check_rule(rule: str) -> None:
    """Refuses what does not say how files are grouped; an empty text is no grouping."""
    if rule not in ("", "folder") and not (rule.isascii() and rule.isdecimal() and int(rule)):
        raise UserError(
            f"group: received {rule!r}; expected folder, for the folder below the class, or the number of the part of "
            "the file name that names the group: of 7_jackson_32.wav, part 2 is jackson."
        )


def group_of(path: Path, label: str, rule: str) -> str:
    """The group of a file.

    Args:
        path: The file.
        label: Its class, which is the name of a folder above it.
        rule: `folder`, or the number of a part of its name.

    Example:
        >>> group_of(Path("seven/7_jackson_32.wav"), "seven", "2"), group_of(Path("a/anna/1.wav"), "a", "folder")
        ('jackson', 'anna')
    """
    check_rule(rule)
    if rule == "folder":
        above = path.parts[:-1]
        below = above[len(above) - above[::-1].index(label) :] if label in above else ()
        if not below:
            raise UserError(
                f"group: {path} lies in no folder below its class {label!r}; expected one folder per group in each "
                "class. Move it, or group by a part of the file names."
            )
        return below[0]
    parts = _SEPARATORS.split(path.stem)
    if int(rule) > len(parts):
        raise UserError(
            f"group: the name of {path} has {len(parts)} part{'s' * (len(parts) > 1)}; expected at least {rule}, of "
            "which that one names the group. Rename it, or choose another part."
        )
    return parts[int(rule) - 1]


def grouped_split(
    root: Path, classes: Mapping[str, Sequence[Path]], rule: str, seed: int
) -> dict[str, dict[str, list[Path]]]:
    """Holds out whole groups for testing, about a fifth of each class, chosen by `seed`."""
    groups = {name: [group_of(path, name, rule) for path in files] for name, files in classes.items()}
    held = held_out_groups(groups, HELD_OUT, seed, f"{root}: ")
    parts: dict[str, dict[str, list[Path]]] = {"train": {}, "test": {}}
    for name, files in classes.items():
        pairs = list(zip(files, groups[name], strict=True))
        parts["test"][name] = [path for path, group in pairs if group in held]
        parts["train"][name] = [path for path, group in pairs if group not in held]
    return parts


def held_out_groups(groups: Mapping[str, Sequence[str]], share: float, seed: int = 0, where: str = "") -> set[str]:
    """Draws groups that make up about a share of each class, rather more than less, and leave some files of each.

    Args:
        groups: The group of each file, by class.
        share: To hold out.
        seed: Of the draw.
        where: What a refusal begins with.

    Example:
        >>> sorted(held_out_groups({"left": list("aabbccdd"), "right": list("abcd")}, 0.2))
        ['c']
    """
    counts = {name: Counter(members) for name, members in groups.items()}
    names = sorted({group for members in counts.values() for group in members})
    # The old generator, because NumPy promises that its numbers never change, and a split must not.
    order = [names[place] for place in np.random.RandomState(seed).permutation(len(names))]
    left = {name: len(members) for name, members in counts.items()}
    held: set[str] = set()
    for name, members in counts.items():
        wanted, taken = max(round(share * members.total()), 1), sum(members[group] for group in held)
        for group in (group for group in order if group in members and group not in held):
            touched = [other for other, counted in counts.items() if group in counted]
            if taken < wanted and all(left[other] > 1 for other in touched):
                held.add(group)
                left.update({other: left[other] - 1 for other in touched})
                taken += members[group]
        if not taken:
            raise UserError(
                f"{where}the class {name!r} cannot be split by group: it has {len(members)} of {len(names)}, and "
                "some are needed on either side. Add files of other groups, or choose another --group."
            )
    return held


def without_some_groups(data: Dataset, count: int, rule: str) -> tuple[Dataset, Dataset]:
    """A data set without some whole groups of about `count` samples in all, and the set of these."""
    if count >= len(data):
        raise UserError(f"validation_samples: received {count}; expected fewer than the {len(data)} for training.")
    labels = _labels(data)
    groups = [group_of(path, label, rule) for path, label in zip(_paths(data), labels, strict=True)]
    by_class: dict[str, list[str]] = {}
    for label, group in zip(labels, groups, strict=True):
        by_class.setdefault(label, []).append(group)
    held = held_out_groups(by_class, count / len(data), where="validation_samples: ")
    taken = np.array([group in held for group in groups])
    return subset(data, np.flatnonzero(~taken)), subset(data, np.flatnonzero(taken))


def check_apart(splits: Mapping[str, Mapping[str, Sequence[Path]]], rule: str) -> None:
    """Refuses splits that share a group."""
    found: dict[str, str] = {}
    for split, classes in splits.items():
        for group in {group_of(path, name, rule) for name, files in classes.items() for path in files}:
            if found.setdefault(group, split) != split:
                raise UserError(
                    f"group: {group!r} is in {found[group]} and in {split}; expected each group in one of the folders. "
                    "Move its files, or leave the split to bsnn: one folder per class, without train and test."
                )


def suggested_rule(classes: Mapping[str, Sequence[Path]]) -> str:
    """How names suggest that files are grouped, such as by speaker; empty if they do not.

    Args:
        classes: The files of each class.

    Example:
        >>> suggested_rule({digit: [Path(f"{digit}/{digit}_{name}_0.wav") for name in ("ann", "bo")] for digit in "01"})
        '2'
    """
    for rule in ("folder", *map(str, range(1, _MOST_PARTS + 1))):
        try:
            groups = {name: [group_of(path, name, rule) for path in files] for name, files in classes.items()}
        except UserError:
            continue  # not every file has such a part
        if _is_grouping(groups) or (rule == "1" and _is_speech(classes)):
            return rule
    return ""


def _is_speech(classes: Mapping[str, Sequence[Path]]) -> bool:
    return all(_SPEECH_COMMANDS in path.name for files in classes.values() for path in files)


def _is_grouping(groups: Mapping[str, Sequence[str]]) -> bool:
    counts = Counter(group for members in groups.values() for group in members)
    lettered = sum(any(letter.isalpha() for letter in group) for group in counts)
    # A part of which every class has one only is a prefix, or the class itself.
    if lettered < _MOST * len(counts) or all(len(set(members)) == 1 for members in groups.values()):
        return False
    within = sum(count for members in groups.values() for count in Counter(members).values() if count > 1)
    across = sum(count for count in counts.values() if count > 1)
    # Names that differ in their digits alone, such as img1 and img2, count the files of each class.
    without_digits = {re.sub(r"\d+", "", group) for group in counts}
    recurring = across if len(without_digits) >= _MOST * len(counts) else within
    return recurring >= _MOST * counts.total()


def mixed_groups(train: Dataset, other: Dataset) -> str:
    """What to tell a user whose random split has a group on both sides, by what names suggest; empty if it has none."""
    sides = [list(zip(_labels(data), _paths(data), strict=True)) for data in (train, other)]
    files: dict[str, list[Path]] = {}
    for label, path in (*sides[0], *sides[1]):
        files.setdefault(label, []).append(path)
    rule = suggested_rule(files)
    if not rule:
        return ""
    first, second = ({group_of(path, label, rule) for label, path in side} for side in sides)
    if not first & second:
        return ""
    named = "the folder below the class" if rule == "folder" else f"part {rule} of the file name"
    return (
        f"{len(first & second):,} of {len(first | second):,} groups are on both sides of the random split, such as "
        f"{min(first & second)}, if {named} says which files belong together. If they are speakers or recordings, test "
        f"accuracy flatters; keep each on one side with --group {rule}"
    )


def _labels(data: Dataset) -> list[str]:
    return [data.classes[label] for label in data.labels]


def _paths(data: Dataset) -> list[Path]:
    paths = getattr(data, "paths", None)
    if paths is None:
        raise UserError(f"group: {data.name} was not read from files, so nothing says which samples belong together.")
    return paths
