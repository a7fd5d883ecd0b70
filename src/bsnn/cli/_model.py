"""How a MODEL argument is read: a model file, a run directory that holds one, or the name of the shipped model."""

from pathlib import Path
from typing import Any

import bsnn
from bsnn.errors import UserError

_SHIPPED = "digits"


def is_model(path: str) -> bool:
    """Whether this is a file or the shipped model, as opposed to a run directory."""
    return _is_shipped(path) or Path(path).is_file()


def open_model(path: str) -> Any:
    """Loads the engine of a model."""
    if _is_shipped(path):
        return bsnn.load(bsnn.digits_model())
    if Path(path).is_dir() and not (Path(path) / "model.bsnn").exists():
        if not (Path(path) / "config.json").exists():
            raise UserError(f"{path!r} is a folder, but not a run; expected a model file, or a run directory.")
        raise UserError(f"{path} holds no model.bsnn; make it with: bsnn export {path}")
    return bsnn.load(path)


def _is_shipped(path: str) -> bool:
    return path == _SHIPPED and not Path(path).exists()
