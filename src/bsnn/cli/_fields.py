"""Options for the fields of a config: type, choices and help come from the config itself."""

import argparse
import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from bsnn.cli._parser import integer, real, yes_or_no
from bsnn.errors import UserError
from bsnn.extras import need
from bsnn.train.config import Config, why_unused
from bsnn.train.effects import PLAN_WORDS, SOUND_FIELDS
from bsnn.train.fields import choices_of, written
from bsnn.train.stages import CHANGEABLE, stages_of


def add_fields(parser: Any, shown: Config | None = None, names: Collection[str] = ()) -> None:
    """Adds an option for each field of a recipe.

    Args:
        parser: A parser, or with `names` a group of one.
        shown: The config whose values the help shows.
        names: The fields to add; by default all of them, in groups.
    """
    group: Any = parser
    for field in dataclasses.fields(Config):
        if names and field.name not in names:
            continue
        if field.metadata["heading"] and not names:
            group = parser.add_argument_group(field.metadata["heading"])
        read, metavar = reader(field)
        default = "" if shown is None else f" ({written(getattr(shown, field.name))})"
        group.add_argument(
            option(field.name),
            dest=f"field_{field.name}",
            type=read,
            help=f"{field.metadata['help']}{default}".replace("%", "%%"),
            default=argparse.SUPPRESS,
            choices=choices_of(field) or None,
            metavar=metavar,
        )


def given_fields(options: argparse.Namespace) -> dict[str, Any]:
    """The fields that were given as options, by name."""
    return {key.removeprefix("field_"): value for key, value in vars(options).items() if key.startswith("field_")}


def reader(field: dataclasses.Field) -> tuple[Callable[[str], Any], str | None]:
    """How to read a field from text, and what stands for its value in the help."""
    if choices_of(field):
        return str, None
    readers: dict[Any, tuple[Callable[[str], Any], str]] = {
        int: (integer, "N"),
        float: (real, "X"),
        bool: (yes_or_no, "yes|no"),
        str: (str, field.metadata["metavar"]),
    }
    if field.name == "stages":
        return _stages, field.metadata["metavar"]
    return readers.get(field.type, (_channels, "C1,C2,..."))


def _channels(text: str) -> tuple[int | str, ...]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    words = {word for words in PLAN_WORDS.values() for word in words}
    if any(part not in words and not (part.isdecimal() and part.isascii() and int(part)) for part in parts):
        raise argparse.ArgumentTypeError(
            f"received {text!r}; expected channels, with pool (of vgg), max (of residual) or down between, as "
            "32,64,pool,128 or 64,max,128"
        )
    return tuple(part if part in words else int(part) for part in parts)


def _stages(text: str) -> tuple[dict[str, Any], ...]:
    """Reads the stages of a run, as `epochs=18,time_steps=1; epochs=1,image_size=24`."""
    fields = {field.name: field for field in dataclasses.fields(Config)}
    found = []
    for part in filter(str.strip, text.split(";")):
        changes: dict[str, Any] = {}
        for item in part.split(","):
            name, _, value = (word.strip() for word in item.partition("="))
            name = name.replace("-", "_")
            if name not in CHANGEABLE or not value or name in changes:
                raise argparse.ArgumentTypeError(
                    f"received {item.strip()!r} in {part.strip()!r}; expected FIELD=VALUE, each field once, with some "
                    f"of {', '.join(CHANGEABLE)}"
                )
            choices = choices_of(fields[name])
            if choices and value not in choices:
                raise argparse.ArgumentTypeError(f"received {item.strip()!r}; expected one of {', '.join(choices)}")
            try:
                changes[name] = reader(fields[name])[0](value)
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentTypeError(f"{name} in {part.strip()!r}: {error}") from None
        found.append(changes)
    if text.strip() and not found:  # an empty text leaves the stages of a recipe out
        raise argparse.ArgumentTypeError(f"received {text!r}; expected stages, such as epochs=18,time_steps=1")
    return tuple(found)


def refuse_unused(configs: Sequence[Config], given: Collection[str]) -> None:
    """Refuses options that have no effect in any stage of the run, or of any run of a sweep."""
    stages = [stage.config for config in configs for stage in stages_of(config)[:-1]]
    for name in given:
        reasons = [why_unused(config, name) for config in (*configs, *stages)]
        if all(reasons):
            raise UserError(f"{option(name)}: {reasons[0]}, so it would do nothing here. Leave it out, or change that.")
    if "stages" in given:
        for stage in stages_of(configs[0])[:-1]:
            # The size of images is a field of some data sets, and of the stages of all.
            for name in configs[0].stages[stage.number - 1].keys() - {"image_size"}:
                if reason := why_unused(stage.config, name):
                    raise UserError(
                        f"--stages: {name} in stage {stage.number}: {reason}. Leave it out, or change that."
                    )


def refuse_for_other_data(config: Config, given: Mapping[str, Any], data: str | None) -> None:
    """Refuses options of sounds for a folder of images or events, which only its files can tell."""
    names = [name for name, value in given.items() if value and name in SOUND_FIELDS]
    if not names or config.dataset != "folder" or data is None or not os.path.isdir(data):
        return
    kind = need("bsnn.data.folders").folder_kind(Path(data))
    if kind != "sound":
        raise UserError(
            f"{option(names[0])}: it has an effect only on sounds, and {data} holds {kind} files. Leave it out."
        )


def option(name: str) -> str:
    """The option of a field."""
    return f"--{name.replace('_', '-')}"
