"""The same mathematics as `bsnn.nn`, faster, and the registry of what computes; README.md explains every trick.

Takes plain tensors, numbers and names. `libraries` and this file load without torch. May import: errors.
"""

import importlib
import os
from contextlib import AbstractContextManager
from functools import cache
from types import ModuleType
from typing import NamedTuple, overload

from bsnn.errors import UserError
from bsnn.kernels.switch import Switch


class _Backend(NamedTuple):
    fuses: bool
    """Whether BatchNorm, neurons and pooling are one step (`step`)."""
    module: str | None
    """What defines the operations of `operations`, each returning None if it does not support the tensors."""


_BACKENDS = {  # from the slowest to the fastest
    "reference": _Backend(fuses=False, module=None),
    "fused": _Backend(fuses=True, module=None),
    "cpu": _Backend(fuses=True, module="bsnn.kernels.cpu"),
    "triton": _Backend(fuses=True, module="bsnn.kernels.triton"),
}

_name: str | None = None


@overload
def backend() -> str: ...


@overload
def backend(name: str) -> AbstractContextManager[None]: ...


def backend(name: str | None = None) -> str | AbstractContextManager[None]:
    """Says or sets what computes a network.

    From the slowest to the fastest: `"reference"` (plain torch modules), `"fused"` (one step for BatchNorm, neurons and
    pooling, on any device), `"cpu"` (that step and synapses in C), `"triton"` (that step, weights and flips on a GPU).
    Each hands tensors that it does not support to the next slower one, so `"triton"` leaves those on a CPU to C. The
    default is the fastest that was found, or what the environment variable `BSNN_BACKEND` says. A choice holds for all
    threads of the process, from the call on or, as a context manager, within it; a backward pass belongs in the same
    block as its forward pass.

    Args:
        name: What to set; None only asks.

    Returns:
        The name in use or, if one was given, a context manager that restores the previous one.

    Raises:
        UserError: If there is no such backend, or it was not built.

    Example:
        >>> with backend("reference"):
        ...     backend()
        'reference'
    """
    return _current() if name is None else Switch(_set, name, _current())


def fuses() -> bool:
    """Whether BatchNorm, neurons and pooling may be computed as one step."""
    return _BACKENDS[_current()].fuses


def is_interpreted() -> bool:
    """Whether Triton is told to run kernels on a CPU, slowly, as a test of them."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def modules() -> list[ModuleType]:
    """Those that may compute an operation, the fastest first."""
    return _modules_up_to(_current())


@cache
def _modules_up_to(name: str) -> list[ModuleType]:
    names = list(_BACKENDS)
    allowed = [_BACKENDS[other].module for other in reversed(names[: names.index(name) + 1])]
    return [importlib.import_module(module) for module in allowed if module is not None]


def _current() -> str:
    if _name is None:
        _set(os.environ.get("BSNN_BACKEND") or [name for name in _BACKENDS if is_available(name)][-1])
    assert _name is not None
    return _name


def _set(name: str) -> None:
    global _name
    if not isinstance(name, str) or name not in _BACKENDS:
        raise UserError(f"backend: received {name!r}; expected one of {', '.join(_BACKENDS)}.")
    if not is_available(name):
        how = "install triton, and use a GPU" if name == "triton" else "install bsnn again where there is a C compiler"
        raise UserError(
            f"backend: {name!r} was not {'found' if name == 'triton' else 'built'}; {how}, or choose "
            f"{', '.join(other for other in _BACKENDS if is_available(other))}."
        )
    _name = name


def is_available(name: str) -> bool:
    """Whether a backend was built, or found, on this machine."""
    module = _BACKENDS[name].module
    return module is None or importlib.import_module(module).available()
