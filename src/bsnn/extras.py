"""What is imported by its name: packages of the optional extras, and code of the user's own."""

import os
import sys
from importlib import import_module
from typing import Any

from bsnn.errors import UserError

# By import name; pyproject.toml lists the distributions.
EXTRAS = {
    "train": ("torch", "safetensors", "tensorboard"),
    "data": ("matplotlib", "PIL", "pooch", "requests", "scipy", "soundfile", "tqdm"),
}


class MissingModule(UserError):
    """There is no module of this name where Python looks for one."""

    def __init__(self, message: str, module: str) -> None:
        super().__init__(message)
        self.module = module


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


def named_object(name: str, option: str) -> Any:
    """What `module:Name` names, also in a module of the current folder, as `python -m` would find it.

    Args:
        name: Module and name, separated by a colon.
        option: Where it was given, for messages.

    Example:
        >>> named_object("math:tau", "example")
        6.283185307179586
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise UserError(f"{option}: received {name!r}; expected module:Name, such as my_module:MyClass.")
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise MissingModule(
            f"{option}: there is no module {error.name}, which {name} needs; expected one that Python finds from here. "
            "Is its folder in PYTHONPATH?",
            module_name,
        ) from error
    except Exception as error:
        raise UserError(
            f"{option}: the module {module_name} cannot be imported ({type(error).__name__}: {error}); try it with "
            f"python -c 'import {module_name}'."
        ) from error
    finally:
        sys.path.remove(folder)
    if not hasattr(module, attribute):
        raise UserError(f"{option}: the module {module_name} has no {attribute!r}; expected a name that it defines.")
    return getattr(module, attribute)


def named_instance(name: str, option: str) -> Any:
    """An object of the class that `module:Class` names, built without arguments.

    Args:
        name: Module and class, separated by a colon.
        option: Where it was given, for messages.

    Example:
        >>> named_instance("collections:Counter", "example")
        Counter()
    """
    kind = named_object(name, option)
    try:
        return kind()
    except TypeError as error:
        raise UserError(f"{option}: {name} cannot be built without arguments ({error}); give them defaults.") from error
