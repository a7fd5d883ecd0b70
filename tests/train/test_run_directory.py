"""What a run leaves behind: its files, its place, and the accuracy it recorded."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from training_runs import TINY, Killed, last_state, metrics, stop_after

import bsnn
from bsnn import UserError
from bsnn.train import load, loop as train
from bsnn.train.build import load_data
from bsnn.train.run import RunDirectory, default_out


def test_held_out_samples_are_not_trained_on_and_the_test_set_is_not_read(monkeypatch):
    whole = bsnn.data.digits("train")
    monkeypatch.setattr(bsnn.data, "digits", lambda split: {"train": whole}[split])
    train, held_out = load_data(dataclasses.replace(TINY, train_samples=0, validation_samples=138), None)
    assert (len(train), len(held_out)) == (1300, 138)
    both = np.concatenate([train.samples, held_out.samples])
    order = np.lexsort(both.reshape(len(both), -1).T)
    assert np.array_equal(both[order], whole.samples[np.lexsort(whole.samples.reshape(len(both), -1).T)])
    assert set(held_out.labels) == set(range(10))
    assert len(load_data(dataclasses.replace(TINY, validation_samples=138), None)[0]) == TINY.train_samples
    with pytest.raises(UserError, match="validation_samples: received 1438; expected fewer"):
        load_data(dataclasses.replace(TINY, validation_samples=1438), None)


def test_a_run_directory_holds_what_it_says(finished: Path) -> None:
    assert {p.name for p in finished.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "checkpoints",
        "tensorboard",
    }
    config = json.loads((finished / "config.json").read_text())
    assert config["config"] == json.loads(json.dumps(dataclasses.asdict(TINY)))
    (computed_by,) = config["computed_by"]
    assert computed_by["bsnn"] == bsnn.__version__
    assert computed_by["threads"] == 1
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert set(line) == {
            *("epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "learning_rate", "gamma"),
            *("one_minus_beta1", "flip_ratio", "flip_ratios", "firing_rates", "seconds", "peak_bytes", "warnings"),
            *("training_bytes", "processor_seconds"),
        }
        assert list(line["flip_ratios"]) == ["conv2.weight", "conv3.weight"]
        assert list(line["firing_rates"]) == ["lif1", "lif2", "lif3"]
        assert 0 < line["flip_ratio"] < 1
        assert line["seconds"] > 0
        assert line["processor_seconds"] > 0
    assert lines[-1]["learning_rate"] == lines[-1]["one_minus_beta1"] == 0, "annealed to the end"
    names = sorted(p.name for p in (finished / "checkpoints").iterdir())
    assert names == ["batch-000000007.ckpt", "batch-000000014.ckpt", "batch-000000021.ckpt"]


def test_weights_are_saved_as_bits(finished: Path) -> None:
    bits = [v for v in last_state(finished)["net"].values() if v.dtype == torch.uint8]
    assert [b.numel() for b in bits] == [4 * 4 * 9 // 8] * 2


def test_evaluation_gives_the_recorded_accuracy_exactly(finished: Path) -> None:
    result, line = load.evaluate_run(finished), metrics(finished)[-1]
    assert result["samples"] == 359
    for key in ("test_accuracy", "test_loss", "firing_rates"):
        assert result[key] == line[key]


def test_what_is_measured_is_the_end_of_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 9)
    with pytest.raises(Killed):
        train.train(TINY, tmp_path / "run", checkpoint_minutes=0)
    monkeypatch.undo()
    found = load.evaluate_run(tmp_path / "run")
    assert found["epoch"] == 1
    assert found["test_accuracy"] == metrics(tmp_path / "run")[0]["test_accuracy"]
    assert load.load_network(tmp_path / "run").metrics["epoch"] == 1


def test_two_processes_cannot_train_in_one_directory(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    with run.owned(), pytest.raises(UserError, match="another process is training in it"), run.owned(patience=0):
        pass
    with run.owned(patience=0):
        pass


def test_runs_without_a_place_get_the_next_free_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_out("digits") == default_out("digits", resume=True) == Path("runs/digits")
    for name in ("digits", "digits-2"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").touch()
    assert default_out("digits") == Path("runs/digits-3")
    assert default_out("digits", resume=True) == Path("runs/digits-2")
