"""What the commands share: a parser that reports mistakes in one line, and readers of numbers."""

import argparse
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

from bsnn.errors import UserError
from bsnn.extras import need

Result = dict[str, Any]
"""What a command found, ready for JSON."""

_MOST_BYTES = 2**32


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (try {self.prog} --help)\n")


def add_command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], Result], text: Callable[[Result], str]
) -> argparse.ArgumentParser:
    """Adds a command to a group of commands.

    Args:
        commands: What `add_subparsers` returned.
        name: The word that the user types.
        run: Computes the result. Its docstring becomes the help.
        text: Words the result for a person.
    """
    parser = commands.add_parser(name, help=(run.__doc__ or "").splitlines()[0], description=run.__doc__)
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.set_defaults(run=run, text=text, parser=parser, after_interrupt="", failure=lambda result: "")
    return parser


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """Adds the option that chooses a checkpoint of a run."""
    parser.add_argument(
        "--checkpoint",
        choices=("best", "last"),
        help="of a run: the best epoch, or the last (by default what the run's --select says, which is last)",
    )


def refuse_checkpoint(options: argparse.Namespace) -> None:
    """Refuses that option where a model file was given."""
    if options.checkpoint:
        raise UserError(
            f"--checkpoint: received {options.checkpoint} with {options.path}, a model file; expected a run directory."
        )


def add_budget(parser: Any) -> None:
    """Adds the options that say what a device has."""
    parser.add_argument(
        "--ram", type=size, metavar="SIZE", help="RAM for the network, its input and front end, as 64k or 65536"
    )
    parser.add_argument("--flash", type=size, metavar="SIZE", help="flash for its constants and code, as 256k")
    parser.add_argument(
        "--stream", action="store_true", help="--ram is for a stream, one time step per call, which keeps all membranes"
    )


def budget_of(options: argparse.Namespace) -> Any:
    """The `Budget` that was given, of as much as a network takes if none was."""
    if options.stream and options.ram is None:
        raise UserError("--stream: received without --ram, which it is about; give --ram too, or leave it out.")
    return need("bsnn.deploy.budget").Budget(options.ram, options.flash, options.stream)


def size(text: str) -> int:
    """Reads a number of bytes; `k` and `KB` are 1,024 of them, `m` and `MB` 1,024².

    Example:
        >>> size("64k"), size("65536"), size("256KB")
        (65536, 65536, 262144)
    """
    match = re.fullmatch(r"([0-9]+)(\.[0-9]*)?([a-z]*)", text, re.IGNORECASE)
    number, fraction, unit = match.groups() if match else ("", None, "")
    known = re.fullmatch(r"(?:(k|m)(?:i?b)?)?", unit, re.IGNORECASE)
    examples = "such as 65536, 64k or 64KB"
    if not match:
        wrong = f"expected a whole number of bytes, {examples}"
    elif not known:
        wrong = (
            f"there is no unit {unit!r}; expected k or KB (1,024 bytes), m or MB (1,024 of these), or none for bytes"
        )
    elif fraction is not None:
        wrong = f"expected a whole number, without a fraction, {examples}"
    elif not number.strip("0"):
        wrong = f"expected more than 0 bytes, {examples}"
    else:
        factor = {"": 1, "k": 2**10, "m": 2**20}[(known[1] or "").lower()]
        # Python refuses to read thousands of digits.
        if len(number.lstrip("0")) <= 10 and (found := int(number) * factor) <= _MOST_BYTES:
            return found
        wrong = f"expected at most {_MOST_BYTES:,} bytes (4096m), which is all that 32 bits can address"
    raise argparse.ArgumentTypeError(f"received {text!r}; {wrong}")


def count(text: str) -> int:
    """Reads a whole number, 0 or more."""
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a whole number, 0 or more")
    return int(text)


def integer(text: str) -> int:
    """Reads a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a whole number") from None


def real(text: str) -> float:
    """Reads a finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a number such as 5e-7")
    return value


def yes_or_no(text: str) -> bool:
    """Reads yes or no."""
    if text.lower() not in ("yes", "no", "true", "false"):
        raise argparse.ArgumentTypeError(f"received {text!r}; expected yes or no")
    return text.lower() in ("yes", "true")
