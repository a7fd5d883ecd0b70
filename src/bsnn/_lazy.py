"""Public names that load on first use, so that code that needs no torch does not import it.

A package's `__init__.pyi` is its table of contents. Type checkers and editors read it, and `attach` reads the same
imports at run time, so that no name is listed twice.
"""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bsnn.extras import need


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Makes a package's `__getattr__`, `__dir__` and `__all__` from the imports in its `__init__.pyi`.

    Args:
        package: The package's `__name__`.
        file: The package's `__file__`.

    Example:
        >>> load, names, public = attach("bsnn", bsnn.__file__)
        >>> load("step_loss").__module__
        'bsnn.online.loss'
    """
    homes: dict[str, str] = {}
    for node in ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            homes |= {alias.asname or alias.name: node.module for alias in node.names}

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = None if home == package else getattr(need(home), name, None)
        return need(f"{home}.{name}") if found is None else found  # what is not an attribute is a module

    return load, lambda: sorted(homes), sorted(homes)
