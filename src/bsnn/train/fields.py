"""One field of a config: what it may be, and how a person writes it."""

import dataclasses
import os
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin

from bsnn.errors import UserError
from bsnn.train.stages import stages_text


def choices_of(setting: dataclasses.Field) -> tuple[str, ...]:
    """What a field may be, if it is one of a few words."""
    return get_args(setting.type) if get_origin(setting.type) is Literal else ()


def typed(setting: dataclasses.Field, value: Any) -> Any:
    """A value in the type of its field: a path becomes a text, a list a tuple, an integer of NumPy one of Python.

    Raises:
        UserError: If that cannot be done without a guess: the text `no` is no False, and 2.5 no number of epochs.
    """
    kind = str if choices_of(setting) else get_origin(setting.type) or setting.type
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, Integral) and not isinstance(value, bool):
        return int(value)
    if kind is float and isinstance(value, Real) and not isinstance(value, bool):
        return float(value)
    if kind is str and isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if kind is tuple and isinstance(value, list | tuple):
        return tuple(value)
    expected = {bool: "True or False", int: "a whole number", float: "a number", str: "a text", tuple: "a tuple"}
    raise UserError(f"{setting.name}: received {value!r}; expected {expected[kind]}.")


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
