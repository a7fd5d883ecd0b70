"""The command `bso`: parse, call, print.

Results go to standard output (with `--json` as one JSON object on one line), everything else to standard
error. Exit status: 0 done, 2 the user's mistake (one line, no traceback), 1 our fault.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import bso
from bso.errors import UserError
from bso.extras import need


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (try {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="bso", description="Train binary spiking networks in constant memory.")
    parser.add_argument("--version", action="version", version=f"bso {bso.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    demo = _command(commands, "demo", _demo, _describe_demo)
    demo.add_argument("--seed", type=_seed, default=0, metavar="N", help="seed of weights and batches (0)")

    data = _command(commands, "data", _data, _data_text)
    data.add_argument("root", metavar="DIR", help="a folder of data, or an archive of a known set")
    data.add_argument("--plot", metavar="FILE", help="draw a contact sheet (.png, .pdf or .svg)")
    return parser


def _demo(options: argparse.Namespace) -> dict[str, Any]:
    """Train T-BSO on the bundled digits, in half a minute."""
    return need("bso.demo").run_demo(options.seed)


def _describe_demo(result: dict[str, Any]) -> str:
    return need("bso.demo").describe_demo(result)


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a whole number, 0 or more")
    return int(text)


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], dict[str, Any]], text: Callable[[dict], str]
) -> argparse.ArgumentParser:
    """Adds a command: `run` computes a JSON-ready result, `text` words it for a person."""
    parser = commands.add_parser(name, help=(run.__doc__ or "").splitlines()[0], description=run.__doc__)
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.set_defaults(run=run, text=text)
    return parser


def _data(options: argparse.Namespace) -> dict[str, Any]:
    """Says what data is in a folder: kind, classes, counts, shape, mean and deviation."""
    return need("bso.data.description").describe(options.root, options.plot)


def _data_text(result: dict[str, Any]) -> str:
    return need("bso.data.description").describe_text(result)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        result = options.run(options)
    except (UserError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        print(f"bso: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bso: interrupted", file=sys.stderr)
        return 130
    print(json.dumps(result) if options.json else options.text(result))
    return 0
