"""A run that ends early and goes on ends with the same bits as one that never stopped."""

import dataclasses
import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import processes
import pytest
import torch
from training_runs import TINY, TINY_OPTIONS, Killed, assert_same_run, kill_in, stop_after, train_command

from bsnn import UserError, cli
from bsnn.train import checkpoint, load, loop as train
from bsnn.train.build import load_data
from bsnn.train.run import RunDirectory
from bsnn.train.trainer import Trainer


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (Trainer, "_train_batch", 1),
        (Trainer, "_train_batch", 11),
        (Trainer, "finish_epoch", 1),
        (RunDirectory, "write_history", 3),
        (checkpoint.Checkpoints, "save", 12),
        (os, "fsync", 31),
        (os, "replace", 20),
    ],
)
def test_a_killed_run_ends_with_the_same_bits(
    owner: Any, name: str, call: int, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    kill_in(monkeypatch, owner, name, call)
    with pytest.raises(Killed):
        train.train(TINY, out, checkpoint_minutes=0)  # a checkpoint after every batch
    monkeypatch.undo()
    torch.manual_seed(99)
    assert not train.train(TINY, out, resume=True)["finished_before"]
    assert_same_run(finished, out)


def test_a_run_goes_on_with_its_own_config(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    """No option has to be said again; one that contradicts the run is refused."""
    out = tmp_path / "run"
    stop_after(monkeypatch, 8)
    with pytest.raises(Killed):
        cli.main(["train", "digits", *TINY_OPTIONS, "--out", str(out)])
    monkeypatch.undo()
    capfd.readouterr()
    assert cli.main(["train", "digits", "--out", str(out), "--resume", "--epochs", "4"]) == 2
    assert "the run there was started with --epochs 3 (now 4); leave that out" in capfd.readouterr().err
    assert cli.main(["train", "digits", "--out", str(out), "--resume", "--batch-size", "32"]) == 0
    said = "going on with what .* has beyond the recipe digits: --train-samples 200, --plan 4,4,pool,4, --epochs 3\n"
    assert re.search(said, capfd.readouterr().err)
    assert_same_run(finished, out)
    assert (out / "model.bsnn").exists()


AUGMENTED = {
    "crop_padding": 1,
    "crop_mode": "reflect",
    "flip": True,
    "alternating_flip": True,
    "cutout": 2,
    "mixup": 0.5,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "bso", "gamma": 1e-4, "gamma_schedule": "inverse_sqrt"},
        {"updates": "accumulated", "gradient": "ndot", "warmup": 0.7, "real_optimizer": "adamw", "weight_decay": 0.1},
        {"weights": "real", "sgd_momentum": 0.9, "gradient": "bptt"},
        {"weights": "latent", "sgd_momentum": 0.9, "nesterov": True} | AUGMENTED,
        {"gradient": "bptt", "beta_schedule": "step", "decay_epochs": 1},
    ],
)
def test_every_kind_of_run_resumes(changes: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(TINY, epochs=2, train_samples=100, **changes)
    train.train(config, tmp_path / "whole")
    stop_after(monkeypatch, 5)
    with pytest.raises(Killed):
        train.train(config, tmp_path / "killed", checkpoint_minutes=0)
    monkeypatch.undo()
    train.train(config, tmp_path / "killed", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "killed")


def test_a_damaged_checkpoint_costs_an_epoch_not_the_run(finished: Path, tmp_path: Path, capfd) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    newest = out / "checkpoints" / "batch-000000021.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1])
    assert not train.train(TINY, out, resume=True)["finished_before"]
    assert f"bsnn: warning: {newest}: received" in capfd.readouterr().err
    assert_same_run(finished, out)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_broken_files_beside_the_checkpoints_are_written_again(name: str, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "checkpoints" / "batch-000000021.ckpt").unlink()
    whole = json.loads((finished / "config.json").read_text())
    (out / name).write_bytes(b'{"epoch": 1,\n\xff')
    train.train(TINY, out, resume=True)
    assert_same_run(finished, out)
    assert json.loads((out / "config.json").read_text()) == whole


def test_resuming_a_finished_run_restores_its_files(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "config.json").write_text("{")
    (out / "metrics.jsonl").unlink()
    assert train.train(TINY, out, resume=True)["finished_before"]
    assert (out / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()
    restored = json.loads((out / "config.json").read_text())["config"]
    assert restored == json.loads(json.dumps(dataclasses.asdict(TINY)))


def test_kill_9_and_resume_end_with_the_same_bits(tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, epochs=12)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train.train(config, whole)
    rng = random.Random(0)
    for epoch in (3, 7, None):
        command = train_command(killed, "--epochs", "12", "--checkpoint-minutes", "0.001", "--resume")
        with processes.running(command) as process:
            if epoch is not None:
                history = killed / "metrics.jsonl"
                processes.wait_for(lambda h=history, e=epoch: h.exists() and h.read_text().count("\n") >= e, process)
                time.sleep(rng.random() * 0.1)
                process.kill()
            _, errors = processes.finish(process)
        assert process.returncode == (0 if epoch is None else -signal.SIGKILL), errors
    assert_same_run(whole, killed)


def test_resuming_what_is_finished_says_so(finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    resume = ["train", "digits", *TINY_OPTIONS, "--out", str(finished), "--resume"]
    assert cli.main(resume) == 0
    assert (finished / "model.bsnn").exists(), "a run that has no model file yet gets one"
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    assert cli.main(resume) == 0
    assert f"{finished} was finished already: test accuracy" in capfd.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


def test_resuming_without_a_checkpoint_starts_afresh(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    train.train(TINY, tmp_path / "empty", resume=True)
    assert_same_run(finished, tmp_path / "empty")


def test_other_data_than_before_is_refused(finished: Path, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "checkpoints" / "batch-000000021.ckpt").unlink()
    less = load_data(dataclasses.replace(TINY, train_samples=199), None)
    monkeypatch.setattr(load, "load_data", lambda *_: less)
    with pytest.raises(UserError, match="received 199 samples of 10 classes; expected the 200"):
        train.train(TINY, out, resume=True)


def test_a_checkpoint_without_the_shapes_of_its_weights_is_refused_by_name() -> None:
    trainer = Trainer(TINY, *load_data(TINY, None))
    state = trainer.state()
    state["net"] = {name: value for name, value in state["net"].items() if not name.endswith("_shape")}
    with pytest.raises(
        UserError, match=r"resume: expected the same network; the run holds another \(.*without .*weight_shape"
    ):
        trainer.load_state(state)
