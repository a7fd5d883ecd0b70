"""`bsnn recipes`: what can be trained."""

import argparse
import dataclasses
from typing import Any

from bsnn.cli._parser import Result, add_command
from bsnn.paper.recipes import PAPER, RECIPES
from bsnn.train.devices import DEVICES

_SMALL, _DEVICES = "For two CPU cores:", "For two CPU cores and a device, whose --ram and --flash pick the network:"


def add(commands: Any) -> None:
    """Adds the command."""
    add_command(commands, "recipes", run, text)


def run(options: argparse.Namespace) -> Result:
    """List what can be trained: the paper's runs and their small versions."""
    return {
        "recipes": [
            {"name": name, "help": entry.description, **dataclasses.asdict(entry.config)}
            for name, entry in RECIPES.items()
        ]
    }


def text(result: Result) -> str:
    """Words the result."""
    width = max(len(entry["name"]) for entry in result["recipes"])
    groups: dict[str, list[str]] = {_SMALL: [], _DEVICES: []}
    for entry in result["recipes"]:
        small = _DEVICES if entry["name"] in DEVICES else _SMALL
        heading = f"The paper's, on {entry['dataset']}:" if entry["name"] in PAPER else small
        groups.setdefault(heading, []).append(f"  {entry['name']:{width}}  {entry['help']}")
    advice = "Train one with: bsnn train NAME --data DIR. Its numbers: bsnn train NAME --help"
    return "\n".join(f"{heading}\n" + "\n".join(lines) + "\n" for heading, lines in groups.items()) + f"\n{advice}"
