"""`bsnn inspect`: what a deployed network costs, and whether it fits; also that of a recipe, before it is trained."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from bsnn.cli._fields import add_fields, given_fields, refuse_for_other_data, refuse_unused
from bsnn.cli._model import MODEL_HELP, open_model
from bsnn.cli._parser import Result, add_budget, add_command, budget_of
from bsnn.errors import UserError
from bsnn.extras import need
from bsnn.paper.recipes import RECIPES, recipe
from bsnn.train.config import Config
from bsnn.train.devices import check_model
from bsnn.zoo.cards import find, is_model, names

# What the size of a network depends on.
_FIELDS = ("dataset", "time_steps", "image_size", "model", "plan", "width", "neuron", "weights", "reject")


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "inspect", run, text)
    parser.add_argument("path", metavar="RUN|MODEL|RECIPE", help=f"{MODEL_HELP}; or a recipe (`bsnn recipes`)")
    add_budget(parser.add_argument_group("a device: a network that does not fit is refused"))
    group = parser.add_argument_group("a recipe, before it is trained")
    group.add_argument("--recipe", action="store_true", help="it is a recipe, whatever else has that name")
    group.add_argument("--data", metavar="DIR", help="where the data is: the network depends on its classes and shape")
    add_fields(group, names=_FIELDS)


def run(options: argparse.Namespace) -> Result:
    """Say what a network costs on a device by layer: weights, bytes, RAM, flash, firing rate, operations, energy."""
    inspect, budget = need("bsnn.deploy.inspection").inspect, budget_of(options)
    if _means_recipe(options):
        given = given_fields(options)
        device = need("bsnn.cli._untrained").fitted(options.path, _config(options), given, budget, options.data).device
        source = f"recipe {options.path}, untrained; {budget.told(device)}"
        return {"source": source, **inspect(device.artifact), "reject_below": None}
    artifact, source = open_model(options.path).artifact, _source(options.path)
    if options.ram is not None or options.flash is not None:
        source += f"; {_fit(options.path, artifact, budget)}"
    return {"source": source, **inspect(artifact)}


def _fit(word: str, artifact: Any, budget: Any) -> str:
    """What a model takes of a budget, in words; refuses one that takes more."""
    device = need("bsnn.deploy.footprint").on_device(artifact)
    if excess := budget.excess(device):
        raise UserError(
            f"{word}: it does not fit: {'; '.join(excess)}. Train a smaller network: with --ram and --flash, bsnn "
            "train says what would fit."
        )
    return f"it fits: {' '.join(filter(None, (budget.told(device), budget.not_counted(device))))}"


def _means_recipe(options: argparse.Namespace) -> bool:
    """Whether a recipe is meant rather than a model; refuses a word that may be either."""
    word = options.path
    given = [name for name in ("recipe", "data") if getattr(options, name)]
    given += given_fields(options)
    if given and word not in RECIPES:
        raise UserError(
            f"--{given[0].replace('_', '-')}: received with {word}, which is no recipe; expected one of those that "
            "`bsnn recipes` lists. Runs and models need no such option."
        )
    if word not in RECIPES or given or word in names():
        return bool(given)
    if is_model(Path(word)):
        raise UserError(
            f"{word}: is the name of a recipe, and of a run or file here; expected one meaning. Write ./{word} for the "
            "run or file, or add --recipe."
        )
    return True


def _config(options: argparse.Namespace) -> Config:
    given = given_fields(options)
    check_model(options.path, given)
    config = dataclasses.replace(recipe(options.path), **given)
    refuse_unused([config], given)
    refuse_for_other_data(config, given, options.data)
    if options.data is None and config.dataset != "digits":
        raise UserError(
            f"--data: received none; the network of {options.path} depends on the classes and the shape of its data. "
            "Give the folder of the data."
        )
    return config


def _source(word: str) -> str:
    if word in names():
        return f"shipped model {word}" + " (for the recipe of that name: --recipe)" * (word in RECIPES)
    return f"{'run' if find(word).is_dir() else 'model file'} {word}"


def text(result: Result) -> str:
    """Words the result."""
    untrained = result["source"].startswith("recipe ")
    note = "how many neurons will fire is not known: operations and energy are given as if all did\n" * untrained
    return f"{result['source']}\n{note}{need('bsnn.deploy.inspection').inspect_text(result)}"
