"""`bsnn evaluate`: the test accuracy of a run or of a model file."""

import argparse
from typing import Any

from bsnn.cli._model import open_model
from bsnn.cli._parser import Result, add_checkpoint, add_command, refuse_checkpoint
from bsnn.errors import UserError
from bsnn.extras import need
from bsnn.train.config import data_of_run, group_of_run
from bsnn.zoo.cards import card, find, names


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "evaluate", run, text)
    parser.add_argument(
        "path", metavar="RUN|MODEL", help="a run directory, a model file, or the name of a shipped model"
    )
    parser.add_argument(
        "--data", metavar="DIR", help="where the data is (by default where it was in training, or what was downloaded)"
    )
    add_checkpoint(parser)


def run(options: argparse.Namespace) -> Result:
    """Measure the test accuracy of a trained run, or of a model file."""
    place = find(options.path)
    if place.is_file():
        refuse_checkpoint(options)
        data = options.data or data_of_run(place.parent)
        # A download could hold other classes than the selection that a shipped model was trained on.
        if data is None and options.path in names() and "--data" in (made := card(options.path))["command"].split():
            raise UserError(
                f"--data: received none; the test set of {options.path} does not come with bsnn. Give the folder of "
                f"its data: {made['data']}; {made['data_source']}"
            )
        return need("bsnn.deploy.files").evaluate_model(open_model(options.path), data, group_of_run(place.parent))
    return need("bsnn.train.load").evaluate_run(place, options.data, checkpoint=options.checkpoint)


def text(result: Result) -> str:
    """Words the result."""
    of_epoch = f", after epoch {result['epoch']}" if "epoch" in result else ""
    rejected = f"; {result['rejected']:.2%} of them rejected as none of these" if "rejected" in result else ""
    below = result.get("reject_below")
    threshold = (
        "" if below is None else f"; the model file rejects a largest logit less than {below:.3f} above the mean"
    )
    heard = {
        "integers": "; sounds were heard as a device hears them, from 16-bit samples",
        "floats": "; sounds were heard in floats, as in training: a device, which uses integers, can differ slightly",
    }.get(result.get("front_end", ""), "")
    accuracy = f"test accuracy {result['test_accuracy']:.4f} on {result['samples']} samples"
    return f"{accuracy}{of_epoch}{rejected}{threshold}{heard}"
