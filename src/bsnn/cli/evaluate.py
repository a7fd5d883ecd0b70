"""`bsnn evaluate`: the test accuracy of a run or of a model file."""

import argparse
from pathlib import Path
from typing import Any

from bsnn.cli._model import is_model, open_model
from bsnn.cli._parser import Result, add_checkpoint, add_command, refuse_checkpoint
from bsnn.extras import need
from bsnn.train.config import data_of_run


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "evaluate", run, text)
    parser.add_argument("path", metavar="RUN|MODEL", help="a run directory, or a model file")
    parser.add_argument("--data", metavar="DIR", help="where the data is (by default where it was in training)")
    add_checkpoint(parser)


def run(options: argparse.Namespace) -> Result:
    """Measure the test accuracy of a trained run, or of a model file."""
    if is_model(options.path):
        refuse_checkpoint(options)
        data = options.data or data_of_run(Path(options.path).parent)
        return need("bsnn.deploy.files").evaluate_model(open_model(options.path), data)
    return need("bsnn.train.load").evaluate_run(options.path, options.data, checkpoint=options.checkpoint)


def text(result: Result) -> str:
    """Words the result."""
    of_epoch = f", after epoch {result['epoch']}" if "epoch" in result else ""
    return f"test accuracy {result['test_accuracy']:.4f} on {result['samples']} samples{of_epoch}"
