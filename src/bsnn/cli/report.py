"""`bsnn report`: one HTML page about one or more runs."""

import argparse
from pathlib import Path
from typing import Any

from bsnn.atomic import check_writable
from bsnn.cli._parser import Result, add_command
from bsnn.errors import UserError
from bsnn.extras import need
from bsnn.zoo.cards import names


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "report", run, text)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run directories")
    parser.add_argument("--out", metavar="FILE", help="the page (report.html in the run, or here for several)")
    parser.add_argument("--data", metavar="DIR", help="where the data is (by default where it was in training)")


def run(options: argparse.Namespace) -> Result:
    """Write one HTML page about one or more runs: curves, flips, firing rates, memory, confusions, commands."""
    for name in options.runs:
        if name in names() and not Path(name).exists():
            raise UserError(
                f"{name} is a shipped model, which has no record of its training; expected run directories, such as "
                f"runs/{name}. What is known of the model: bsnn models {name}."
            )
    runs = [Path(run) for run in options.runs]
    out = Path(options.out or (runs[0] / "report.html" if len(runs) == 1 else "report.html"))
    if options.out or out.parent.is_dir():
        check_writable(out)
    return need("bsnn.report").write_report(runs, out, options.data)


def text(result: Result) -> str:
    """Words the result."""
    return "\n".join([*result["notes"], f"{result['path']}, {result['bytes'] / 1000:.0f} kB"])
