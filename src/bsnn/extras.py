"""Packages of the optional extras, imported when they are first needed."""

from importlib import import_module
from typing import Any

from bsnn.errors import UserError

# By import name; pyproject.toml lists the distributions.
EXTRAS = {
    "train": ("torch", "safetensors", "tensorboard"),
    "data": ("matplotlib", "PIL", "pooch", "requests", "scipy", "soundfile", "tqdm"),
}


def need(module: str) -> Any:
    """Imports a third-party module that the core does without, or one of our own modules that builds on such.

    Raises:
        UserError: A package is missing; the message says what to install.

    Example:
        >>> need("no_such_package")
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: the package no_such_package is missing; install it with: pip install no_such_package
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        if package == "bsnn":
            raise
        extra = next((f"'bsnn[{extra}]'" for extra, packages in EXTRAS.items() if package in packages), package)
        raise UserError(f"the package {package} is missing; install it with: pip install {extra}") from error
