"""Which samples an epoch is measured on, which epoch is the result, and when training ends."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from training_runs import TINY, Killed, kill_in, metrics, run_command

import bsnn
from bsnn import UserError, cli
from bsnn.train import Config, evaluate_run, load_network, loop, train
from bsnn.train.metrics import EpochMetrics
from bsnn.train.selection import best_epoch, is_finished, selected_epoch
from bsnn.train.trainer import Trainer

HELD_OUT = dataclasses.replace(TINY, epochs=3, train_samples=96, validation_samples=60)


def planted(monkeypatch: pytest.MonkeyPatch, accuracies: list[float]) -> None:
    """Makes the accuracies of the epochs known; the rest of a run is as it is."""
    original = Trainer.measure_into

    def measure_into(self: Trainer, line: EpochMetrics) -> None:
        original(self, line)
        line[f"{self.split}_accuracy"] = accuracies[line["epoch"] - 1]

    monkeypatch.setattr(Trainer, "measure_into", measure_into)


def test_the_test_set_is_read_once_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    original = bsnn.data.digits
    monkeypatch.setattr(bsnn.data, "digits", lambda split: (read.append(split), original(split))[1])
    kill_in(monkeypatch, loop, "load_test_set", 1)
    with pytest.raises(Killed):
        train(HELD_OUT, tmp_path / "run")
    assert read == ["train"]
    lines = metrics(tmp_path / "run")
    assert len(lines) == 3
    for line in lines:
        assert {"validation_accuracy", "validation_loss"} <= set(line)
        assert "test_accuracy" not in line
    done = train(HELD_OUT, tmp_path / "run", resume=True)
    assert read == ["train", "train", "test"]
    assert not done["finished_before"]
    after = metrics(tmp_path / "run")
    assert "test_accuracy" in after[-1]
    assert [line["validation_accuracy"] for line in after] == [line["validation_accuracy"] for line in lines]
    assert done["test_accuracy"] == after[-1]["test_accuracy"] == evaluate_run(tmp_path / "run")["test_accuracy"]
    assert done["validation_accuracy"] == after[-1]["validation_accuracy"]
    assert train(HELD_OUT, tmp_path / "run", resume=True)["finished_before"]


def test_the_test_set_is_never_read_if_so_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_only = {"train": bsnn.data.digits("train")}
    monkeypatch.setattr(bsnn.data, "digits", lambda split: train_only[split])
    done = train(dataclasses.replace(HELD_OUT, final_test=False), tmp_path / "run")
    assert done["test_accuracy"] is None
    assert 0 <= done["validation_accuracy"] <= 1


@pytest.mark.parametrize("select", ["last", "validation"])
def test_the_best_epoch_is_chosen_by_held_out_samples(select, tmp_path: Path, monkeypatch, capfd) -> None:
    planted(monkeypatch, [0.25, 0.5, 0.5])
    config = dataclasses.replace(HELD_OUT, select=select)
    run = tmp_path / "run"
    done = train(config, run)
    by_name = {name: evaluate_run(run, checkpoint=name) for name in ("best", "last")}
    assert (by_name["best"]["epoch"], by_name["last"]["epoch"]) == (2, 3), "of equals the first"
    chosen = "last" if select == "last" else "best"
    assert done["selected_epoch"] == by_name[chosen]["epoch"]
    assert done["test_accuracy"] == by_name[chosen]["test_accuracy"]
    assert evaluate_run(run) == by_name[chosen], "by default what the run selected"
    tested = [line["epoch"] for line in metrics(run) if "test_accuracy" in line]
    assert tested == [by_name[chosen]["epoch"]]
    nets = {name: load_network(run, checkpoint=name).net.state_dict() for name in ("best", "last")}
    assert any(not torch.equal(nets["best"][key], nets["last"][key]) for key in nets["last"])
    files = {}
    for name in ("best", "last", None):
        files[name] = tmp_path / f"{name}.bsnn"
        option = ["--checkpoint", name] if name else []
        assert cli.main(["export", str(run), "--out", str(files[name]), *option]) == 0
    assert files["best"].read_bytes() != files["last"].read_bytes()
    assert files[None].read_bytes() == files[chosen].read_bytes()


def test_after_the_final_test_training_state_is_that_of_the_last_epoch(tmp_path: Path, monkeypatch) -> None:
    planted(monkeypatch, [0.5, 0.25, 0.25])
    train(dataclasses.replace(HELD_OUT, select="validation"), tmp_path / "best")
    train(HELD_OUT, tmp_path / "last")
    first, second = (load_network(tmp_path / name, checkpoint="last").net.state_dict() for name in ("best", "last"))
    assert all(torch.equal(first[key], second[key]) for key in second)


def test_there_is_no_best_epoch_without_something_to_choose_it_by(finished: Path, capfd) -> None:
    for command in ("evaluate", "export"):
        status, message = run_command(capfd, command, str(finished), "--checkpoint", "best")
        assert status == 2
        assert "has no best checkpoint, because nothing was held out to choose it by" in message
    assert not (finished / "checkpoints" / "best.ckpt").exists()


def test_the_test_set_chooses_only_if_so_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, [0.25, 0.5, 0.25])
    config = dataclasses.replace(TINY, train_samples=96, select="test")
    done = train(config, tmp_path / "run")
    assert (done["selected_epoch"], done["selected_by"], done["test_accuracy"]) == (2, "test", 0.5)
    assert evaluate_run(tmp_path / "run")["epoch"] == 2


def test_an_evaluation_interval_leaves_epochs_out_but_not_the_last(tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, train_samples=96, epochs=5, evaluation_interval=2)
    train(config, tmp_path / "some")
    train(dataclasses.replace(config, evaluation_interval=1), tmp_path / "all")
    some, whole = metrics(tmp_path / "some"), metrics(tmp_path / "all")
    assert ["test_accuracy" in line for line in some] == [False, True, False, True, True]
    for line, other in zip(some, whole, strict=True):
        assert line == {key: value for key, value in other.items() if key in line}, "training is the same"
    assert cli.main(["report", str(tmp_path / "some")]) == 0


@pytest.mark.parametrize(
    ("accuracies", "interval", "epochs"),
    [
        ([0.1, 0.3, 0.2, 0.3, 0.9, 0.9], 1, 4),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 1, 6),
        ([0.5, 0.1, 0.1, 0.1, 0.1, 0.1], 3, 6),
        ([0.1, 0.5, 0.1, 0.1, 0.1, 0.1], 2, 4),
    ],
)
def test_early_stopping(accuracies, interval: int, epochs: int, tmp_path: Path, monkeypatch, capfd) -> None:
    planted(monkeypatch, accuracies)
    config = dataclasses.replace(
        HELD_OUT, train_samples=32, epochs=6, early_stopping=2, evaluation_interval=interval, select="validation"
    )
    done = train(config, tmp_path / "run")
    assert done["epochs"] == epochs
    assert ("stopped" in done) == (epochs < 6)
    if "stopped" in done:
        assert done["stopped"] == "no better validation accuracy than that of epoch 2 for 2 epochs"
        assert train(config, tmp_path / "run", resume=True)["finished_before"]
        assert cli.main(["report", str(tmp_path / "run")]) == 0
        page = (tmp_path / "run" / "report.html").read_text()
        assert "ended after epoch 4: no better validation accuracy" in page
        assert "confusion matrix of the validation samples" in page


def test_the_command_says_what_was_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    planted(monkeypatch, [0.5, 0.25])
    options = ["--plan", "4,4", "--train-samples", "64", "--batch-size", "32", "--epochs", "2"]
    command = ["train", "digits", *options, "--validation-samples", "40", "--select", "validation"]
    assert cli.main([*command, "--out", str(tmp_path / "run")]) == 0
    captured = capsys.readouterr()
    assert "validation accuracy 0.5000 in epoch 1, the best by validation accuracy, after 2 epochs" in captured.out
    assert "epoch 1/2: validation accuracy 0.5000, train accuracy" in captured.err
    assert cli.main([*command, "--out", str(tmp_path / "run"), "--resume", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {"run", "epochs", "test_accuracy", "train_seconds", "peak_bytes"} <= set(result)
    assert cli.main(["evaluate", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["test_accuracy"], found["samples"]) == (result["test_accuracy"], 359)


def test_a_checkpoint_of_a_model_file_and_data_of_the_digits_are_refused(finished: Path, capfd) -> None:
    assert cli.main(["export", str(finished)]) == 0
    model = str(finished / "model.bsnn")
    for command in (["evaluate", model], ["export", model, "--format", "c"]):
        status, message = run_command(capfd, *command, "--checkpoint", "last")
        assert status == 2
        assert "--checkpoint: received last with" in message
    for path in (str(finished), model):
        status, message = run_command(capfd, "evaluate", path, "--data", "/nonexistent")
        assert status == 2
        assert "--data: received /nonexistent; the digits come with bsnn" in message


def test_selection_by_hand() -> None:
    lines: list[EpochMetrics] = [
        {"epoch": 1, "validation_accuracy": 0.5},
        {"epoch": 2, "validation_accuracy": 0.75},
        {"epoch": 3},
    ]  # pyright: ignore[reportAssignmentType]
    held_out = Config(validation_samples=1, epochs=3)
    best = best_epoch(held_out, lines)
    assert best is lines[1]
    assert selected_epoch(held_out, lines) is lines[2]
    assert selected_epoch(dataclasses.replace(held_out, select="validation"), lines) is lines[1]
    assert not is_finished(held_out, lines), "the test is still to come"
    assert is_finished(dataclasses.replace(held_out, final_test=False), lines)
    assert not is_finished(dataclasses.replace(held_out, final_test=False), lines[:2])
    with pytest.raises(UserError, match="early_stopping: received 1 without held-out samples"):
        Config(early_stopping=1)
