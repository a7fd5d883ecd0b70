"""One field of a config: what it may be, and how a person writes it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from bsnn.train.stages import stages_text


def choices_of(setting: dataclasses.Field) -> tuple[str, ...]:
    """What a field may be, if it is one of a few words."""
    return get_args(setting.type) if get_origin(setting.type) is Literal else ()


def written(value: Any) -> str:
    """A field as one would write it on the command line.

    Example:
        >>> written((32, "pool")), written(True), written(""), written(({"epochs": 2, "time_steps": 1},))
        ('32,pool', 'yes', 'none', 'epochs=2,time_steps=1')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple) and value and isinstance(value[0], Mapping):
        return stages_text(value)
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text or "none"
