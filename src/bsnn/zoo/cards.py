"""The shipped models by name: their files, their cards, and whether a word means one of them or a path."""

import json
import os
from pathlib import Path
from typing import TypedDict

from bsnn.errors import UserError

_FOLDER = Path(__file__).parent
# What makes a folder a run, or what is left of one.
_RUN_FILES = ("model.bsnn", "config.json", "checkpoints")


class Card(TypedDict):
    """What there is to know about a shipped model: one JSON file per model."""

    name: str
    title: str
    input: str
    """What to give it, for a person."""
    classes: list[str]
    bytes: int
    sha256: str
    weights: int
    time_steps: int
    additions: int
    """Per input over all time steps, as `bsnn inspect` counts them."""
    multiplications: int
    test_accuracy: float
    """Of the model file, by the engine."""
    test_samples: int
    test_split: str
    interval: list[float]
    """Of the accuracy, 95 %: Wilson's score interval, which takes the test samples as drawn at random."""
    measured: str
    trained_accuracy: float
    """Of the network in PyTorch before the conversion, on the same samples."""
    compared: str
    data: str
    data_license: str
    data_source: str
    command: str
    """Makes the run: its model.bsnn is the shipped file, its checkpoints are what to fine-tune from."""
    seed: int
    epochs: int
    commit: str
    train_seconds: float
    computed_by: str
    limits: list[str]


def names() -> tuple[str, ...]:
    """The names of the shipped models.

    Example:
        >>> "digits" in names()
        True
    """
    return tuple(sorted(file.stem for file in _FOLDER.glob("*.json")))


def path(name: str) -> Path:
    """The model file of a shipped model.

    Args:
        name: One of `names()`.

    Example:
        >>> path("digits").name
        'digits.bsnn'
    """
    if name not in names():
        raise UserError(f"{name!r}: there is no shipped model of that name; expected one of {', '.join(names())}.")
    return _FOLDER / f"{name}.bsnn"


def card(name: str) -> Card:
    """The card of a shipped model.

    Args:
        name: One of `names()`.

    Example:
        >>> card("digits")["data_license"]
        'CC BY 4.0'
    """
    return json.loads(path(name).with_suffix(".json").read_text(encoding="utf-8"))


def describe(card: Card) -> dict[str, str]:
    """A card in words, by heading: what `bsnn models NAME` prints and docs/models.md shows.

    Args:
        card: The card.

    Example:
        >>> describe(card("digits"))["classes"]
        '0, 1, 2, 3, 4, 5, 6, 7, 8, 9'
    """
    accuracy, low, high, before = (
        f"{100 * share:.2f} %" for share in (card["test_accuracy"], *card["interval"], card["trained_accuracy"])
    )
    return {
        "input": card["input"],
        "classes": ", ".join(card["classes"]),
        "size": f"{card['bytes']:,} bytes, {card['weights']:,} weights, T = {card['time_steps']}",
        "operations": f"{card['additions']:,} additions and {card['multiplications']:,} multiplications per input",
        "accuracy": f"{accuracy} of {card['test_samples']:,} test samples (95 % interval: {low} to {high}); {before} "
        "before the conversion",
        "test samples": card["test_split"],
        "measured": card["measured"],
        "compared": card["compared"],
        "data": f"{card['data']}; license: {card['data_license']}",
        "source": card["data_source"],
        "made by": card["command"],
        "training": f"seed {card['seed']}, {card['epochs']} epochs, {card['train_seconds'] / 60:.1f} minutes by the "
        f"clock, commit {card['commit']}, on {card['computed_by']}",
        "limits": " ".join(card["limits"]),
    }


def is_model(place: Path) -> bool:
    """Whether a file or a run, or what is left of one, lies at a place.

    Args:
        place: Where to look.

    Example:
        >>> is_model(Path("nowhere"))
        False
    """
    return place.is_file() or any((place / file).exists() for file in _RUN_FILES)


def find(model: str | os.PathLike[str]) -> Path:
    """The model file or run directory that a MODEL argument means.

    A `Path` is always a path, and so is text with a separator. A plain word may be the name of a shipped model. If the
    working directory holds a file or a run of that name as well, neither is chosen. Any other folder, such as one of
    data, is no model and does not count.

    Args:
        model: A path, or the name of a shipped model.

    Raises:
        UserError: If the word means two things, or nothing.

    Example:
        >>> find("digits") == path("digits"), find(Path("digits")).name
        (True, 'digits')
    """
    if not isinstance(model, str | os.PathLike) or model == "":
        raise UserError(f"model: received {model!r}; expected a path, or the name of a shipped model.")
    here = Path(model)
    if not isinstance(model, str):
        return here
    if here.name != model:
        if not here.exists():
            raise UserError(f"{model}: there is no such run or file.")
        return here
    if model in names():
        if is_model(here):
            kind = "file" if here.is_file() else "run"
            raise UserError(
                f"{model}: is the name of a shipped model, and there is a {kind} of that name here; expected one "
                f"meaning. Write ./{model} for the {kind}, or {path(model)} for the shipped model."
            )
        return path(model)
    if not here.suffix and not here.exists():
        raise UserError(
            f"{model}: there is no such run or file, and no shipped model of that name; shipped are "
            f"{', '.join(names())} (see `bsnn models`)."
        )
    return here
