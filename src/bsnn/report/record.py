"""From run directories to the page: reads their files, and evaluates the last checkpoint for its confusion matrix."""

import dataclasses
import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bsnn.atomic import write_file
from bsnn.errors import UserError
from bsnn.paper.recipes import RECIPES, recipe
from bsnn.report.page import Confusion, RunRecord, page
from bsnn.train.config import Config, config_from_json, why_unused
from bsnn.train.fields import written
from bsnn.train.load import measure_run
from bsnn.train.metrics import check_metrics
from bsnn.train.stages import described

# A matrix of more classes cannot be read.
_MOST_CLASSES = 100
# Every line of a chart has a color of its own.
_MOST_NAMED = 8


def write_report(runs: Sequence[Path], out: Path, data: str | None = None) -> dict[str, Any]:
    """Writes the page of some runs.

    Args:
        runs: Run directories.
        out: The HTML file.
        data: Folder of the data; None takes the one that each run was trained from.
    """
    records = [read_run(run, data) for run in runs]
    if len({record.name for record in records}) < len(records):
        common = os.path.commonpath([run.resolve().parent for run in runs])
        names = [run.resolve().relative_to(common).as_posix() for run in runs]
        records = [record._replace(name=name) for record, name in zip(records, names, strict=True)]
    write_file(out, page(records).encode())
    notes = [f"{record.name}: {note}" for record in records for note in record.notes]
    return {"path": str(out), "bytes": os.path.getsize(out), "runs": [str(run) for run in runs], "notes": notes}


def read_run(path: Path, data: str | None = None) -> RunRecord:
    """The record of a run, from its files.

    Raises:
        UserError: If it is not a run directory, or has not finished an epoch.
    """
    _check_run_folder(path)
    try:
        saved = json.loads((path / "config.json").read_text())
        history = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        config = config_from_json(saved["config"])
        made_by, trained_from = saved["computed_by"][-1] | {"commit": saved["git_commit"]}, saved["data"]
        del made_by["modules"], made_by["from_batch"]
    except FileNotFoundError as error:
        raise UserError(
            f"{path} is not a run: {error.filename} is missing; expected a folder of `bsnn train`."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read ({error!r}); expected a run of this version of bsnn.") from error
    if not history:
        raise UserError(
            f"{path} has not finished an epoch; expected at least one to report on. Go on with it (`bsnn train ... "
            f"--out {path} --resume`), or leave it out."
        )
    for number, line in enumerate(history):
        check_metrics(line, f"{path / 'metrics.jsonl'}, line {number + 1}")
    confusion, notes = None, described(config)
    objects = [f"{name} {value}" for name, value in dataclasses.asdict(config).items() if str(value).startswith("<")]
    if objects:
        notes.append(f"trained in Python with {', '.join(objects)}: the command below needs the same object by a name")
    try:
        trained, found = measure_run(path, data, held_out=True)
        if len(trained.spec.classes) <= _MOST_CLASSES:
            split = "validation" if config.validation_samples else "test"
            confusion = Confusion(trained.spec.classes, found.confusion, split)
        else:
            notes.append(
                f"no confusion matrix of {len(trained.spec.classes)} classes; at most {_MOST_CLASSES} are drawn"
            )
    except UserError as error:
        notes.append(f"no confusion matrix: {error}")
    return RunRecord(
        name=path.name,
        config=dataclasses.asdict(config),
        history=history,
        made_by=made_by,
        commands=[train_command(config, trained_from, path), f"bsnn evaluate {shlex.quote(str(path))}"],
        confusion=confusion,
        notes=notes,
    )


def _check_run_folder(path: Path) -> None:
    """Refuses what is no run directory, and says what to report on instead."""
    if path.is_file():
        run = path.parent if (path.parent / "config.json").exists() else None
        advice = f" Report on its run with: {shlex.join(['bsnn', 'report', str(run)])}" if run else ""
        raise UserError(f"{path}: received a file; expected the folder of a run.{advice}")
    if not path.exists():
        raise UserError(f"{path}: there is no such folder; expected one of `bsnn train`.")
    if (path / "config.json").exists():
        return
    found = [file.parent for pattern in ("*", "*/*") for file in path.glob(f"{pattern}/metrics.jsonl")]
    runs = [str(run) for run in sorted(found) if (run / "metrics.jsonl").stat().st_size]
    if runs:
        command = shlex.join(["bsnn", "report", *runs[:_MOST_NAMED], "--out", str(path / "report.html")])
        which = "those in it" if len(runs) <= _MOST_NAMED else f"some of its {len(runs)}"
        raise UserError(f"{path}: received a folder of runs; expected runs. Report on {which} with: {command}")


def train_command(config: Config, data: str | None, out: Path) -> str:
    """The command that trains a config: the nearest recipe, and the fields that differ from it.

    Example:
        >>> config = dataclasses.replace(recipe("digits"), time_steps=6, plan=(8, "pool", 8), seed=1)
        >>> train_command(config, None, Path("runs/six"))
        'bsnn train digits --out runs/six --time-steps 6 --plan 8,pool,8 --seed 1'
    """
    name = min(RECIPES, key=lambda name: len(_differences(config, recipe(name))))
    place = ["--data", data] if data else []
    fields = [word for item in _differences(config, recipe(name)).items() for word in item]
    return shlex.join(["bsnn", "train", name, *place, "--out", str(out), *fields])


def _differences(config: Config, base: Config) -> dict[str, str]:
    names = [field.name for field in dataclasses.fields(Config)]
    changed = [name for name in names if getattr(config, name) != getattr(base, name)]
    # The command line refuses what has no effect.
    changed = [name for name in changed if not why_unused(config, name)]
    values = {name: getattr(config, name) for name in changed}
    return {
        f"--{name.replace('_', '-')}": written(value) if value not in ("", ()) else "" for name, value in values.items()
    }
