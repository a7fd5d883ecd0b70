"""`bsnn data`: what data lies in a folder."""

import argparse
from pathlib import Path
from typing import Any

from bsnn.atomic import check_writable
from bsnn.cli._parser import Result, add_command
from bsnn.extras import need


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "data", run, text)
    parser.add_argument("root", metavar="DIR", help="a folder of data, or an archive of a known set")
    parser.add_argument(
        "--group", metavar="folder|N", default="", help="split your own data by group, as bsnn train does"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw a contact sheet (.png, .pdf or .svg)")


def run(options: argparse.Namespace) -> Result:
    """Say what data is in a folder: kind, classes, counts, shape, mean and deviation."""
    if options.plot:
        check_writable(Path(options.plot))
    return need("bsnn.data.description").describe(options.root, options.plot, options.group)


def text(result: Result) -> str:
    """Words the result."""
    return need("bsnn.data.description").describe_text(result)
