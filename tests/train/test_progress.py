"""What a run shows while it goes on: its bar, its warnings, TensorBoard."""

import dataclasses
import resource
import sys
from pathlib import Path

import pytest
import torch
from training_runs import TINY, Killed, kill_in, metrics

from bsnn.train import checkpoint, loop as train
from bsnn.train.measure import peak_bytes_of_process
from bsnn.train.metrics import warnings_of


def test_tensorboard_shows_every_number_once_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    kill_in(monkeypatch, checkpoint.Checkpoints, "save", call=2)  # logged, but not saved
    with pytest.raises(Killed):
        train.train(TINY, out)
    monkeypatch.undo()
    train.train(TINY, out, resume=True)
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    lines = metrics(out)
    tags = {"train_loss", "test_accuracy", "learning_rate", "flip_ratio", "flip_ratios/conv2.weight"}
    assert tags | {"firing_rates/lif3", "gamma", "one_minus_beta1"} <= set(events.Tags()["scalars"])
    for tag in ("train_loss", "test_accuracy"):
        shown = events.Scalars(tag)
        assert [event.step for event in shown] == [1, 2, 3]
        assert [event.value for event in shown] == pytest.approx([line[tag] for line in lines], rel=1e-6)


def test_the_bar_is_for_terminals_alone(finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train.train(dataclasses.replace(TINY, epochs=1), tmp_path / "run")
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "\r" not in captured.err
    assert captured.err.startswith("bsnn: epoch 1/1: test accuracy")


def test_the_bar_shows_accuracy_flips_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    train.train(dataclasses.replace(TINY, epochs=1), tmp_path / "run")
    assert "epoch 1, accuracy 0." in (shown := capfd.readouterr().err)
    assert "% flips, " in shown
    assert "GB" in shown


def line_of(epoch: int, flips: float = 0.01, rate: float = 0.2, beta: float = 1e-3, layer: float = 0.01) -> dict:
    return {
        "epoch": epoch,
        "firing_rates": {"lif1": 0.2, "lif2": rate},
        "flip_ratio": flips,
        "flip_ratios": {"conv2.weight": layer},
        "one_minus_beta1": beta,
    }


def test_warnings_that_matter() -> None:
    calm = [line_of(1, flips=0.02), line_of(2, flips=0.02)]
    assert warnings_of(line_of(3), calm) == []
    assert "layer lif2 hardly ever fires" in warnings_of(line_of(3, rate=0.0), calm)[0]
    assert "layer lif2 fires nearly always" in warnings_of(line_of(3, rate=1.0), calm)[0]
    assert warnings_of(line_of(3, layer=0.0), calm) == ["the weights of conv2.weight have stopped flipping"]
    assert warnings_of(line_of(3, layer=0.0, beta=1e-5), calm) == [], "an annealed rate is meant to stop them"
    growing = [line_of(1, flips=0.01), line_of(2, flips=0.02)]
    assert "flips grow: 4.00% of the weights per update" in warnings_of(line_of(3, flips=0.04), growing)[0]
    assert warnings_of(line_of(3, flips=0.02), growing) == []
    real = {"firing_rates": {"lif1": 0.5}, "epoch": 1}
    assert warnings_of(real, []) == []


def test_warnings_are_printed_and_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    silent = dataclasses.replace(TINY, epochs=1, threshold=1e6)
    train.train(silent, tmp_path / "run")
    assert "bsnn: warning: layer lif1 hardly ever fires (0.00%)" in capfd.readouterr().err
    assert metrics(tmp_path / "run")[0]["warnings"]


def test_the_memory_of_a_process_is_what_the_system_says() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = peak_bytes_of_process(torch.device("cpu"))
    assert 1024 * before <= found <= 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
