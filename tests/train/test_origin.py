"""What computed a run is recorded, and a run that goes on with something else says so."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from training_runs import TINY, Killed, last_state, stop_after

import bsnn
from bsnn.train import train
from bsnn.train.distributed import World
from bsnn.train.origin import changes, origin

SHORT = dataclasses.replace(TINY, epochs=2, train_samples=64)


def test_a_checkpoint_and_the_config_file_say_what_computed(finished: Path) -> None:
    (recorded,) = last_state(finished)["origins"]
    assert json.loads((finished / "config.json").read_text())["computed_by"] == [recorded]
    assert recorded["from_batch"] == 0
    assert recorded["torch"] == torch.__version__
    assert recorded["bsnn"] == bsnn.__version__
    assert recorded["threads"] == torch.get_num_threads() == 1
    assert recorded["backend"] == bsnn.backend()
    assert recorded["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert recorded["processor"]
    assert (recorded["device"], recorded["processes"], recorded["modules"]) == ("cpu", 1, {})


def test_a_resume_with_something_else_is_told_in_one_line(tmp_path: Path, monkeypatch, capfd) -> None:
    stop_after(monkeypatch, 3)
    with pytest.raises(Killed):
        train(SHORT, tmp_path / "run")
    monkeypatch.undo()
    capfd.readouterr()
    with bsnn.backend("reference"):
        torch.set_num_threads(2)
        train(SHORT, tmp_path / "run", resume=True)
    torch.set_num_threads(1)
    warnings = [line for line in capfd.readouterr().err.splitlines() if "last bits" in line]
    assert warnings == [
        f"bsnn: warning: the run was computed with 1 thread(s), backend {bsnn.backend()} and goes on with "
        "2 thread(s), backend reference; results may differ in the last bits, and then in flips, from those of a run "
        "without the change"
    ]
    first, second = last_state(tmp_path / "run")["origins"]
    assert (first["threads"], second["threads"], first["from_batch"], second["from_batch"]) == (1, 2, 0, 2)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["computed_by"] == [first, second]


def test_a_resume_with_the_same_says_nothing(tmp_path: Path, monkeypatch, capfd) -> None:
    stop_after(monkeypatch, 3)
    with pytest.raises(Killed):
        train(SHORT, tmp_path / "run")
    monkeypatch.undo()
    train(SHORT, tmp_path / "run", resume=True)
    assert "warning: the run was computed" not in capfd.readouterr().err
    assert len(last_state(tmp_path / "run")["origins"]) == 1


@pytest.mark.parametrize(
    "key", ["bsnn", "torch", "processor", "instructions", "device", "threads", "processes", "backend"]
)
def test_whatever_results_depend_on_is_told(key: str) -> None:
    now = origin(SHORT, World())
    before = {**now, key: "another"}
    (note,) = changes(before, now)
    assert "another" in note
    assert str(now[key]) in note
    assert changes(now, now) == []
