"""`bsnn reproduce`: a table or figure of the paper, measured again."""

import argparse
from pathlib import Path
from typing import Any

from bsnn.atomic import check_writable
from bsnn.cli._parser import Result, add_command
from bsnn.errors import UserError
from bsnn.extras import need


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "reproduce", run, text)
    parser.add_argument(
        "name", metavar="NAME", help="table1 to table5, figure3 to figure5, gradients, regret, ablation"
    )
    parser.add_argument("--scale", choices=("small", "paper", "smoke"), default="small", help="(small)")
    parser.add_argument("--data", metavar="DIR", help="where the data is (by default what was downloaded before)")
    parser.add_argument(
        "--time-steps", metavar="T,T,...", default="", help="numbers of time steps of figure5 (those of Table 2)"
    )
    parser.add_argument("--results", metavar="DIR", default="results", help="where NAME.json goes (results)")
    parser.add_argument("--runs", metavar="DIR", default="runs/reproduce", help="where runs go (runs/reproduce)")


def run(options: argparse.Namespace) -> Result:
    """Measure a table or figure of the paper, or its theory, again.

    table1 to table5, figure3 to figure5; gradients: online rules beside BPTT, by layer and time step; regret: how
    regret grows, beside the paper's claim; ablation: what drives the result. At scale `small` each takes less than an
    hour on two CPU cores.
    """
    results = Path(options.results)
    check_writable(results / f"{options.name}.json", making_folders=True)
    paper, runs = need("bsnn.paper"), Path(options.runs)
    steps = _time_steps(options.time_steps)
    return paper.reproduce(options.name, results, scale=options.scale, data=options.data, runs=runs, time_steps=steps)


def _time_steps(text: str) -> tuple[int, ...]:
    """Numbers of time steps from T,T,..."""
    numbers = [part.strip() for part in text.split(",")] if text else []
    if any(not part.isdecimal() or int(part) < 1 for part in numbers):
        raise UserError(f"--time-steps: received {text!r}; expected numbers of 1 or more, such as 1,2,8.")
    return tuple(map(int, numbers))


def text(result: Result) -> str:
    """Words the result."""
    table = need("bsnn.paper.markdown").markdown_table
    tables = [f"{part['caption']}\n\n{table(part['columns'], part['rows'])}" for part in result["tables"]]
    return "\n\n".join([result["title"], result["ran"], *tables, *result["notes"], result["path"]])
