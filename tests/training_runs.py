"""What the tests of training share: a run that takes a second, its commands, and how to end and compare runs."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bsnn import cli
from bsnn.paper.recipes import recipe
from bsnn.train.run import RunDirectory
from bsnn.train.trainer import Trainer

TINY = dataclasses.replace(recipe("digits"), plan=(4, 4, "pool", 4), train_samples=200, batch_size=32, epochs=3)
TINY_OPTIONS = ["--plan", "4,4,pool,4", "--train-samples", "200", "--batch-size", "32", "--epochs", "3"]
VARIABLE = ("seconds", "processor_seconds", "peak_bytes", "training_bytes")


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics, without the times and the memory, which differ between equal runs."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in VARIABLE} for line in lines]


def last_state(run: Path) -> dict[str, Any]:
    """The newest checkpoint of a run, which must be undamaged."""
    state, notes = RunDirectory(run).checkpoints.load_newest()
    assert not notes
    return state


def assert_same_run(a: Path, b: Path) -> None:
    """Bits, real parameters, optimizers, place and metrics; times and memory aside."""
    assert metrics(a) == metrics(b)
    first, second = last_state(a), last_state(b)
    for state in (first, second):
        state["tally"] = state["history"] = None
    assert_equal(first, second)


def assert_equal(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_equal(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_equal(x, y)
    else:
        assert a == b


class Killed(BaseException):
    """Ends a run as a kill would: nothing in the library catches it."""


def kill_in(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> None:
    """Ends the run just before the given call of a function."""
    original, calls = getattr(owner, name), iter(range(1, 1000))

    def killed(*arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            raise Killed
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, killed)


def stop_after(monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    """Ends the run after so many batches."""
    kill_in(monkeypatch, Trainer, "_train_batch", batches + 1)


def uncounted(update: Any) -> int:
    """Runs an update without counting its memory, which takes as long as all the rest of a small run."""
    update()
    return 0


def train_command(out: Path, *options: str) -> list[str]:
    """A command line that trains TINY in a process of its own."""
    return [sys.executable, "-m", "bsnn", "train", "digits", *TINY_OPTIONS, "--out", str(out), *options]


def run_command(capfd: Any, *arguments: str) -> tuple[int, str]:
    """The exit status and the last line of standard error of a command that fails."""
    try:
        status = cli.main(arguments)
    except SystemExit as leaving:
        status = int(str(leaving.code))
    errors = capfd.readouterr().err.splitlines()
    assert not any("Traceback" in line for line in errors)
    return status, errors[-1] if errors else ""
