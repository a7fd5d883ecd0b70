"""Packages of the extra `data`, imported when they are first needed."""

from importlib import import_module
from typing import Any

from bso.errors import UserError


def need(module: str) -> Any:
    """Imports a module of a package that the core does without, or says how to install it.

    Example:
        >>> need("no_such_package")
        Traceback (most recent call last):
        ...
        bso.errors.UserError: the package no_such_package is missing; install it with: pip install 'bso[data]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        raise UserError(
            f"the package {package} is missing; install it with: pip install 'bso[data]'"
        ) from error
