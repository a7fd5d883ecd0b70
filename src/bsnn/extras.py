"""Packages of the optional extras, imported when they are first needed."""

from importlib import import_module
from typing import Any

from bsnn.errors import UserError

_TRAINING = ("torch", "safetensors", "tensorboard")


def need(module: str) -> Any:
    """Imports a module that the core does without, or one of our own that builds on such, or says what to install.

    Example:
        >>> need("no_such_package")
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: the package no_such_package is missing; install it with: pip install 'bsnn[data]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        if package == "bsnn":
            raise
        extra = "train" if package in _TRAINING else "data"
        raise UserError(f"the package {package} is missing; install it with: pip install 'bsnn[{extra}]'") from error
