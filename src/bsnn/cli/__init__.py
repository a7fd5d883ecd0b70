"""The command `bsnn`: one module per command, each of which parses, calls the library and prints.

Results go to standard output (with `--json` as one JSON object on one line), everything else to standard error. Exit
status: 0 done, 2 the user's mistake (one line, no traceback), 1 our fault. Nothing imports this package.
"""

import argparse
import io
import json
import os
import re
import signal
import sys
from collections.abc import Sequence

import bsnn
from bsnn.cli import bench, data, demo, evaluate, export, inspect, models, predict, recipes, report, reproduce, train
from bsnn.cli._parser import Parser
from bsnn.errors import UserError

__all__ = ["main", "parser"]

# In the order of the help.
_COMMANDS = (demo, data, recipes, train, evaluate, models, export, predict, inspect, bench, report, reproduce)
_OPTION = re.compile(r"^--\w+")
# What arguments that name files and folders are called.
_PATHS = ("path", "inputs", "root", "runs", "data", "out", "results")


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Builds the parser of all commands.

    Args:
        words: The command line; if it names a recipe, the help of `train` shows the numbers of that recipe.
    """
    top = Parser(prog="bsnn", description="Train binary spiking networks in constant memory.")
    top.add_argument("--version", action="version", version=f"bsnn {bsnn.__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for command in _COMMANDS:
        if command is train:
            train.add(commands, words)
        else:
            command.add(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    # torch, which is not loaded yet, asks for huge pages then: fewer of them, where freed memory is given back.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # Names of files need not be text; what standard output cannot write is escaped there, as on standard error.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    given = sys.argv[1:] if arguments is None else list(arguments)
    # A field may be written as in the config, --time_steps, or as is usual for options, --time-steps.
    given = [_OPTION.sub(lambda match: match[0].replace("_", "-"), argument, count=1) for argument in given]
    options, unknown = parser(given).parse_known_args(given)
    if unknown:
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    _refuse_empty(options)
    try:
        result = options.run(options)
    except UserError as error:
        print(f"bsnn: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        named = isinstance(error.filename, str | bytes) and error.strerror
        print(f"bsnn: {os.fsdecode(error.filename)}: {error.strerror}" if named else f"bsnn: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        what, number = ("terminated", signal.SIGTERM) if stop.args else ("interrupted", signal.SIGINT)
        print(f"bsnn: {what}{options.after_interrupt}", file=sys.stderr)
        return 128 + number
    # Under torchrun, the first process speaks for all.
    if os.environ.get("RANK", "0") == "0":
        try:
            print(json.dumps(result) if options.json else options.text(result), flush=True)
        except BrokenPipeError:  # as in `bsnn recipes | head`
            _discard_output()
        except OSError as error:
            print(f"bsnn: the result cannot be written ({error.strerror or error})", file=sys.stderr)
            _discard_output()
            return 2
    if failure := options.failure(result):
        print(f"bsnn: {failure}", file=sys.stderr)
        return 2
    return 0


def _refuse_empty(options: argparse.Namespace) -> None:
    """Refuses an empty path, which would mean the working directory, or that nothing was given."""
    for name in _PATHS:
        value = getattr(options, name, None)
        if value == "" or (isinstance(value, list) and "" in value):
            options.parser.error(
                f"{name}: received an empty name, perhaps from a shell variable that is not set; expected a path"
            )


def _discard_output() -> None:
    """Keeps the interpreter from failing once more when it flushes standard output on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
