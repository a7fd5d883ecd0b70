"""How a MODEL argument is read: a model file, a run directory that holds one, or the name of a shipped model."""

from typing import Any

import bsnn
from bsnn.errors import UserError
from bsnn.extras import need
from bsnn.zoo.cards import find

MODEL_HELP = "a model file, a run directory that holds one, or the name of a shipped model (`bsnn models`)"


def open_model(model: str) -> Any:
    """Loads the engine of a model."""
    place = find(model)
    if place.is_dir() and not (place / "model.bsnn").exists():
        if not (place / "config.json").exists():
            raise UserError(
                f"{model!r} is a folder, but not a run; expected a model file, a run directory, or a shipped model."
            )
        try:
            need("bsnn.cli._runs").check_exportable(place)
        except UserError as error:
            raise UserError(f"{model} holds no model.bsnn, and none can be made: {error}") from error
        raise UserError(f"{model} holds no model.bsnn; make it with: bsnn export {model}")
    return bsnn.load(place)
