"""The command `bso`: parse, call, print.

Results go to standard output (with `--json` as one JSON object on one line), everything else to standard
error. Exit status: 0 done, 2 the user's mistake (one line, no traceback), 1 our fault.
"""

import argparse
import dataclasses
import io
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

import bso
from bso.errors import UserError
from bso.extras import need
from bso.recipes import RECIPES, Config, recipe

_OPTION = re.compile(r"--\w+")


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (try {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="bso", description="Train binary spiking networks in constant memory.")
    parser.add_argument("--version", action="version", version=f"bso {bso.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    demo = _command(commands, "demo", _demo, _describe_demo)
    demo.add_argument("--seed", type=_whole, default=0, metavar="N", help="seed of weights and batches (0)")

    data = _command(commands, "data", _data, _data_text)
    data.add_argument("root", metavar="DIR", help="a folder of data, or an archive of a known set")
    data.add_argument("--plot", metavar="FILE", help="draw a contact sheet (.png, .pdf or .svg)")

    _command(commands, "recipes", _recipes, _recipes_text)

    train = _command(commands, "train", _train, _train_text)
    train.add_argument("recipe", metavar="RECIPE", help="one of those that `bso recipes` lists")
    train.add_argument("--data", metavar="DIR", help="where the data is (by default what was downloaded before)")
    train.add_argument("--out", metavar="RUN", help="run directory (runs/RECIPE, or the next free one)")
    train.add_argument("--resume", action="store_true", help="go on from the last checkpoint in RUN")
    train.add_argument("--workers", type=_whole, default=0, metavar="N", help="processes that read files (0)")
    fields = train.add_argument_group("the recipe's own numbers, any of which you can set")
    for name, (kind, choices, help) in _fields().items():
        fields.add_argument(
            f"--{name.replace('_', '-')}",
            dest=f"field_{name}",
            type=kind,
            choices=choices,
            help=help.replace("%", "%%"),
            default=argparse.SUPPRESS,
            metavar=None if choices else name.upper(),
        )

    evaluate = _command(commands, "evaluate", _evaluate, _evaluate_text)
    evaluate.add_argument("run_path", metavar="RUN", help="a run directory")
    evaluate.add_argument("--data", metavar="DIR", help="where the data is (by default where it was in training)")
    return parser


def _data(options: argparse.Namespace) -> dict[str, Any]:
    """Says what data is in a folder: kind, classes, counts, shape, mean and deviation."""
    return need("bso.data.description").describe(options.root, options.plot)


def _data_text(result: dict[str, Any]) -> str:
    return need("bso.data.description").describe_text(result)


def _fields() -> dict[str, tuple[Callable[[str], Any], Sequence[str] | None, str]]:
    """For each field of a recipe: how to read it, what it may be, and what it means."""
    readers: dict[Any, Callable[[str], Any]] = {int: _integer, float: _real, bool: _yes_or_no}
    result = {}
    for field in dataclasses.fields(Config):
        choices = get_args(field.type) if get_origin(field.type) is Literal else None
        reader = str if choices or field.type is str else readers.get(field.type, _plan)
        result[field.name] = (reader, choices, field.metadata["help"])
    return result


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a whole number") from None


def _real(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a number such as 5e-7") from None


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("yes", "no", "true", "false"):
        raise argparse.ArgumentTypeError(f"received {text!r}; expected yes or no")
    return text.lower() in ("yes", "true")


def _plan(text: str) -> tuple[int | str, ...]:
    return tuple(int(part) if part.isdigit() else part for part in text.split(",") if part)


def _recipes(options: argparse.Namespace) -> dict[str, Any]:
    """What can be trained: the paper's runs and their small versions."""
    return {
        "recipes": [
            {"name": name, "help": (make.__doc__ or "").splitlines()[0], **dataclasses.asdict(make())}
            for name, make in RECIPES.items()
        ]
    }


def _recipes_text(result: dict[str, Any]) -> str:
    width = max(len(entry["name"]) for entry in result["recipes"])
    lines = [f"{entry['name']:{width}}  {entry['help']}" for entry in result["recipes"]]
    return "\n".join([*lines, "", "Train one with: bso train NAME --data DIR"])


def _train(options: argparse.Namespace) -> dict[str, Any]:
    """Train a recipe; every number of it can be set."""
    given = {key.removeprefix("field_"): value for key, value in vars(options).items() if key.startswith("field_")}
    config = dataclasses.replace(recipe(options.recipe), **given)
    training = need("bso.train")
    out = Path(options.out) if options.out else training.default_out(options.recipe)
    return training.train(config, out, data=options.data, resume=options.resume, workers=options.workers)


def _train_text(result: dict[str, Any]) -> str:
    if result["finished_before"]:
        return f"{result['run']} was finished already: test accuracy {result['test_accuracy']:.4f}"
    return (
        f"test accuracy {result['test_accuracy']:.4f} after {result['epochs']} epochs and "
        f"{result['train_seconds'] / 60:.1f} minutes, {result['peak_bytes'] / 1e9:.2f} GB at most; in {result['run']}"
    )


def _evaluate(options: argparse.Namespace) -> dict[str, Any]:
    """Test accuracy of a trained run."""
    return need("bso.train").evaluate_run(Path(options.run_path), options.data)


def _evaluate_text(result: dict[str, Any]) -> str:
    return f"test accuracy {result['test_accuracy']:.4f} on {result['samples']} samples"


def _demo(options: argparse.Namespace) -> dict[str, Any]:
    """Train T-BSO on the bundled digits, in half a minute."""
    return need("bso.demo").run_demo(options.seed)


def _describe_demo(result: dict[str, Any]) -> str:
    return need("bso.demo").describe_demo(result)


def _whole(text: str) -> int:
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    # Names of files need not be text; what standard output cannot write is escaped there, as on standard error.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    given = sys.argv[1:] if arguments is None else list(arguments)
    # A field may be written as in the config, --time_steps, or as is usual for options, --time-steps.
    options = _parser().parse_args([a.replace("_", "-") if _OPTION.fullmatch(a) else a for a in given])
    try:
        result = options.run(options)
    except (UserError, OSError) as error:
        print(f"bso: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bso: interrupted", file=sys.stderr)
        return 130
    print(json.dumps(result) if options.json else options.text(result))
    return 0
