"""Splits that keep groups, such as speakers, apart; and the warning if a random split does not."""

import itertools
import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from data_files import own_cache, png, put, wav, write_tones  # noqa: F401

from bsnn import UserError
from bsnn.data import describe, folder, speech_commands
from bsnn.data.description import describe_text
from bsnn.data.groups import group_of, held_out_groups, suggested_rule, without_some_groups

SPEAKERS = [f"speaker{letter}" for letter in "abcdefghij"]


def write_words(root: Path, pattern: str, repeats: int = 3) -> Path:
    """Sounds of two words, each several times by each of ten speakers."""
    sound = wav(np.sin(np.arange(2000) / 5) / 2)
    for word, speaker, number in itertools.product(("no", "yes"), SPEAKERS, range(repeats)):
        put(root / word / f"{pattern.format(word=word, speaker=speaker, number=number)}.wav", sound)
    return root


@pytest.mark.parametrize(
    ("pattern", "rule"),
    [
        ("{speaker}_{number}", "1"),
        ("{word}_{speaker}_{number}", "2"),
        ("{word}-{speaker}.take {number}", "2"),
        ("{number}-{speaker}", "2"),
        ("{speaker}/{number}", "folder"),
        ("{speaker}/day1/{number}", "folder"),
    ],
)
def test_no_group_is_in_two_splits(pattern: str, rule: str, tmp_path: Path) -> None:
    root = write_words(tmp_path, pattern)
    parts: list[Any] = [folder(root, split, group=rule) for split in ("train", "test")]
    groups = [{group_of(path, path.relative_to(root).parts[0], rule) for path in part.paths} for part in parts]
    assert [len(found) for found in groups] == [8, 2]
    assert not groups[0] & groups[1]
    assert sum(map(len, parts)) == 60
    assert np.bincount(parts[1].labels).tolist() == [6, 6]
    again = folder(root, "test", group=rule)
    assert again.paths == parts[1].paths
    other = folder(root, "test", group=rule, seed=1)
    assert other.paths != parts[1].paths


def test_held_out_groups_leave_both_sides_of_every_class() -> None:
    draw = random.Random(0)
    for seed in range(200):
        names = [f"g{number}" for number in range(draw.randint(4, 12))]
        classes = {
            f"c{number}": [name for name in draw.sample(names, draw.randint(2, len(names))) for _ in range(3)]
            for number in range(draw.randint(2, 5))
        }
        try:
            held = held_out_groups(classes, 0.2, seed)
        except UserError as error:
            assert "cannot be split by group" in str(error)  # noqa: PT017, most draws can be split
            continue
        for members in classes.values():
            assert set(members) & held
            assert set(members) - held


def test_a_class_of_one_group_is_refused(tmp_path: Path) -> None:
    put(write_words(tmp_path, "{speaker}_{number}") / "maybe" / "speakera_0.wav", wav([0.1] * 100))
    put(tmp_path / "maybe" / "speakera_1.wav", wav([0.1] * 100))
    with pytest.raises(UserError, match="the class 'maybe' cannot be split by group: it has 1 of 10, and some are"):
        folder(tmp_path, group="1")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("speaker", "group: received 'speaker'; expected folder, for the folder below the class, or the number of the"),
        ("0", "group: received '0'; expected folder"),
        ("3", r"group: the name of .*speakera_0\.wav has 2 parts; expected at least 3, of which that one names the"),
        ("folder", r"group: .*speakera_0\.wav lies in no folder below its class 'no'; expected one folder per group"),
    ],
)
def test_a_rule_that_does_not_fit_is_refused(rule: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        folder(write_words(tmp_path, "{speaker}_{number}"), group=rule)


def test_an_own_split_is_checked(tmp_path: Path) -> None:
    write_words(tmp_path / "train", "{speaker}_{number}")
    sound = wav([0.1] * 100)
    for word in ("no", "yes"):
        put(tmp_path / "test" / word / "speakerz_0.wav", sound)
    assert len(folder(tmp_path, "test", group="1")) == 2
    put(tmp_path / "test" / "no" / "speakera_9.wav", sound)
    with pytest.raises(UserError, match="group: 'speakera' is in train and in test; expected each group in one of"):
        folder(tmp_path, "test", group="1")


def test_validation_samples_are_whole_groups(tmp_path: Path) -> None:
    data = folder(write_words(tmp_path, "{speaker}_{number}"), group="1")
    train, held_out = parts = without_some_groups(data, 12, "1")
    speakers = [{path.name.split("_")[0] for path in part.paths} for part in cast("Any", parts)]
    assert (len(train), len(held_out)) == (36, 12)
    assert not speakers[0] & speakers[1]
    with pytest.raises(UserError, match="validation_samples: received 48; expected fewer than the 48 for training"):
        without_some_groups(data, 48, "1")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["{c}_{s}_{n}"], "2"),
        (["{s}-{n}"], "1"),
        (["{s}/{n}"], "folder"),
        (["0a7c2a8{n}_nohash_0", "b2c3{n}_nohash_1"], "1"),
        (["{c}_{n}"], ""),
        (["IMG_{n}"], ""),
        (["{n}"], ""),
        (["{n}_{n}"], ""),
        (["x{n}y"], ""),
        (["ann{n}"], ""),
        (["b{n}_0", "b{n}_1"], "1"),
    ],
)
def test_what_names_suggest(names: list[str], expected: str) -> None:
    classes = {
        c: [
            Path(c) / f"{name.format(c=c, s=s, n=7 * k + m)}.wav"
            for name in names
            for k, s in enumerate(("ann", "bo"))
            for m in range(3)
        ]
        for c in ("left", "right")
    }
    assert suggested_rule(classes) == expected


def test_a_random_split_that_mixes_groups_is_told(tmp_path: Path) -> None:
    found = describe(write_words(tmp_path / "words", "{word}_{speaker}_{number}"))
    assert found["warnings"][0].startswith("9 of 10 groups are on both sides of the random split, such as speakera, if")
    assert found["warnings"][0].endswith("keep each on one side with --group 2")
    assert "\nwarning    9 of 10 groups" in describe_text(found)
    by_group = describe(tmp_path / "words", group="2")
    assert (by_group["counts"], by_group["warnings"]) == ({"train": 48, "test": 12}, [])
    assert describe(write_tones(tmp_path / "tones"))["warnings"] == []
    for part in ("train", "test"):
        write_tones(tmp_path / "own" / part, 5, names=f"speaker{part[0]}_{{number}}")
    assert describe(tmp_path / "own")["warnings"] == []


def test_validation_samples_of_speech_commands_are_of_other_speakers(tmp_path: Path) -> None:
    sound = wav(np.sin(np.arange(2000) / 5) / 2)
    for word, speaker, number in itertools.product(("left", "right"), range(40), range(2)):
        put(tmp_path / word / f"{speaker:08x}_nohash_{number}.wav", sound)
    parts = without_some_groups(speech_commands(tmp_path, "train"), 20, "1")
    names = [{path.name.partition("_")[0] for path in part.paths} for part in cast("Any", parts)]
    assert not names[0] & names[1]
    assert len(parts[1]) >= 20
