"""`bsnn predict`: what a deployed network sees in files."""

import argparse
from pathlib import Path
from typing import Any

from bsnn.cli._model import MODEL_HELP, open_model
from bsnn.cli._parser import Result, add_command
from bsnn.errors import UserError
from bsnn.extras import need

_LISTENING = ("hop", "smoothing", "threshold")


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
    parser.add_argument(
        "--window",
        type=float,
        metavar="S",
        help="listen to all of each sound, in windows of S seconds: those the network takes",
    )
    parser.add_argument("--hop", type=float, metavar="S", help="seconds from one window to the next (0.1)")
    parser.add_argument("--smoothing", type=int, metavar="N", help="windows over which scores are averaged (7)")
    parser.add_argument("--threshold", type=float, metavar="P", help="score from which a word counts as heard (0.7)")


def run(options: argparse.Namespace) -> Result:
    """Say what a deployed network sees in pictures, sounds, event recordings or arrays."""
    paths = [Path(text) for text in options.inputs]
    given = {key: value for key in _LISTENING if (value := getattr(options, key)) is not None}
    if given and options.window is None:
        raise UserError(
            f"--{next(iter(given))}: has no effect without --window; add --window 1 to listen to whole sounds."
        )
    engine = open_model(options.path)
    if options.window is None:
        return need("bsnn.deploy.files").predict_files(engine, paths, normalized=options.normalized)
    if engine.artifact.input.kind != "sound":
        raise UserError(f"--window: received a network for {engine.artifact.input.kind}s; only one for sounds listens.")
    front_end = need("bsnn.deploy.sound").sound_of(engine.artifact.input).front_end
    try:
        settings = need("bsnn.deploy.listening").listening(front_end, window=options.window, **given)
    except UserError as error:
        raise UserError(f"--{error}") from error
    found = need("bsnn.deploy.files").predict_files(engine, paths, settings)
    return found | {
        "window": options.window,
        "hop": settings.step * front_end.hop / need("bsnn.data.audio").SAMPLE_RATE,
    }


def failure(result: Result) -> str:
    """What to say if some files could not be read."""
    if not result["unreadable"]:
        return ""
    number, first = len(result["unreadable"]), result["unreadable"][0]
    return f"{number} of {result['files']} files were not read, such as {first['input']}: {first['reason']}"


def text(result: Result) -> str:
    """Words the result."""
    width = max((len(line["input"]) for line in (*result["predictions"], *result["unreadable"])), default=0)
    lines = [f"{line['input']:<{width}}  {_said(line)}" for line in result["predictions"]]
    if "hop" in result:
        heard = f"{len(lines)} word{'' if len(lines) == 1 else 's'}" if lines else "nothing"
        lines.append(f"heard {heard}, in windows of {result['window']:g} s every {result['hop']:g} s")
    return "\n".join(lines + [f"{line['input']:<{width}}  not read: {line['reason']}" for line in result["unreadable"]])


def _said(line: Result) -> str:
    """The words for one prediction."""
    if "start" in line:
        return f"{line['start']:8.2f} to {line['end']:.2f} s  {line['label']}  {line['score']:.0%}"
    text = f"{line['label']}  {line['share']:.0%}"
    if "nearest" in line:
        text = f"{line['label']} (nearest: {line['nearest']}, {line['share']:.0%})"
    if "frames" in line:
        return f"{text}  (of all {line['frames']} frames together: the array has time first)"
    if "part" not in line:
        return text
    begin, end = line["part"]
    return (
        f"{text}  (of {line['seconds']:.2f} s only {begin:.2f} to {end:.2f}; to hear all of it, add "
        f"--window {end - begin:g})"
    )
