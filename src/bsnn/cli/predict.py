"""`bsnn predict`: what a deployed network sees in files."""

import argparse
from pathlib import Path
from typing import Any

from bsnn.cli._model import MODEL_HELP, open_model
from bsnn.cli._parser import Result, add_command
from bsnn.extras import need


def add(commands: Any) -> None:
    """Adds the command."""
    parser = add_command(commands, "predict", run, text)
    parser.set_defaults(failure=failure)
    parser.add_argument("path", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        "inputs", metavar="INPUT", nargs="+", help="pictures, sounds, recordings, .npy, or a folder of these"
    )
    parser.add_argument(
        "--normalized",
        action="store_true",
        help="arrays hold floats that are normalized as in training (by default the raw numbers of the data)",
    )


def run(options: argparse.Namespace) -> Result:
    """Say what a deployed network sees in pictures, sounds, event recordings or arrays."""
    paths = [Path(text) for text in options.inputs]
    return need("bsnn.deploy.files").predict_files(open_model(options.path), paths, normalized=options.normalized)


def failure(result: Result) -> str:
    """What to say if some files could not be read."""
    bad, good = len(result["unreadable"]), len({line["input"].partition("[")[0] for line in result["predictions"]})
    if not bad:
        return ""
    first = result["unreadable"][0]
    return f"{bad} of {bad + good} files were not read, such as {first['input']}: {first['reason']}"


def text(result: Result) -> str:
    """Words the result."""
    width = max(len(line["input"]) for line in (*result["predictions"], *result["unreadable"]))
    lines = [f"{line['input']:<{width}}  {_answer(line)}" for line in result["predictions"]]
    return "\n".join(lines + [f"{line['input']:<{width}}  not read: {line['reason']}" for line in result["unreadable"]])


def _answer(line: dict[str, Any]) -> str:
    if "nearest" in line:
        return f"{line['label']} (nearest: {line['nearest']}, {line['share']:.0%})"
    return f"{line['label']}  {line['share']:.0%}"
