"""`bsnn models`: the trained models that ship with the package, and the card of each."""

import argparse
import textwrap
from typing import Any

import bsnn
from bsnn.cli._parser import Result, add_command

_WIDTH = 100


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "models", run, text)
    parser.add_argument("name", metavar="NAME", nargs="?", help="show the card of this one")


def run(options: argparse.Namespace) -> Result:
    """List the trained models that ship with the package, or show the card of one."""
    if options.name:
        return dict(bsnn.zoo.card(options.name))
    return {"models": [bsnn.zoo.card(name) for name in bsnn.zoo.names()]}


def text(result: Result) -> str:
    """Words the result."""
    if "models" not in result:
        return _card(result)
    width = max(len(card["name"]) for card in result["models"])
    lines = [
        f"{card['name']:<{width}}  {card['bytes']:>9,} bytes  {100 * card['test_accuracy']:.2f} % of "
        f"{card['test_samples']:>6,} test samples  {card['title']}"
        for card in result["models"]
    ]
    return "\n".join([*lines, "", "The card of one: bsnn models NAME. To use one: bsnn predict NAME FILE."])


def _card(card: Result) -> str:
    """The card as two columns."""
    described = bsnn.zoo.describe(card)  # pyright: ignore[reportArgumentType]
    indent = max(map(len, described)) + 2
    lines = [f"{card['name']}: {card['title']}", ""]
    for label, value in described.items():
        lines += textwrap.wrap(
            value, _WIDTH, initial_indent=f"{label:<{indent}}", subsequent_indent=" " * indent, break_on_hyphens=False
        )
    return "\n".join(lines)
