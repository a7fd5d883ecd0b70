"""`bsnn inspect`: what a deployed network costs, layer by layer."""

import argparse
from typing import Any

from bsnn.cli._model import MODEL_HELP, open_model
from bsnn.cli._parser import Result, add_command
from bsnn.extras import need


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "inspect", run, text)
    parser.add_argument("path", metavar="RUN|MODEL", help=MODEL_HELP)


def run(options: argparse.Namespace) -> Result:
    """Say what a deployed network costs by layer: weights, bytes, firing rate, operations, energy."""
    return need("bsnn.deploy.inspection").inspect(open_model(options.path).artifact)


def text(result: Result) -> str:
    """Words the result."""
    return need("bsnn.deploy.inspection").inspect_text(result)
