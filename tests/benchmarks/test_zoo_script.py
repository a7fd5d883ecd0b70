"""`benchmarks/zoo.py`: a model and its card from a run, what it refuses to ship, and the page of the cards."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import TINY

import bsnn
from bsnn.cli._runs import export_run
from bsnn.train.loop import train
from bsnn.zoo.cards import Card

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import zoo


@pytest.fixture(autouse=True)
def _hardly_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    # One of 359 digits is more than 0.2 points, and this network guesses.
    monkeypatch.setattr(zoo, "MOST_POINTS_LOST", 5.0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "run"
    train(dataclasses.replace(TINY, seed=3), out)
    content = json.loads((out / "config.json").read_text())
    # A copy of the sources that is no checkout has no commit.
    (out / "config.json").write_text(json.dumps(content | {"git_commit": "0" * 40}))
    return out


def test_a_model_and_its_card_are_made_from_a_run(run: Path, tmp_path: Path) -> None:
    content, card = zoo.make(run, "tiny", None, 20)
    export_run(run, tmp_path / "model.bsnn")
    assert content == (tmp_path / "model.bsnn").read_bytes()
    assert card.keys() == Card.__annotations__.keys()
    data = bsnn.data.digits("test")
    right = bsnn.load(tmp_path / "model.bsnn").predict(data.samples) == data.labels
    assert (card["test_accuracy"], card["test_samples"]) == (right.mean(), len(data))
    assert card["command"] == (
        "bsnn train digits --out runs/tiny --train-samples 200 --plan 4,4,pool,4 --epochs 3 --batch-size 32 --seed 3"
    )
    assert card["data"].endswith("; trained on 200 of them")
    assert (card["seed"], card["epochs"], card["commit"]) == (3, 3, "0" * 40)
    folder = tmp_path / "zoo"
    folder.mkdir()
    zoo.ship(content, card, folder)
    assert (folder / "tiny.bsnn").read_bytes() == content
    assert json.loads((folder / "tiny.json").read_text()) == card
    (folder / "other.bsnn").write_bytes(bytes(4_000_001 - len(content)))
    with pytest.raises(SystemExit, match="4,000,001 bytes; at most 4,000,000"):
        zoo.ship(content, card, folder)


def test_the_time_of_a_teacher_counts(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    shutil.copytree(run, tmp_path / "run" / "teacher")
    alone, taught = (zoo.make(path, "tiny", None, 1)[1]["train_seconds"] for path in (run, tmp_path / "run"))
    assert taught == pytest.approx(2 * alone, abs=0.2)  # both are rounded


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"git_commit": None}, "names no commit"),
        ({"dataset": "folder"}, "whose terms are known"),
        ({"epochs": 4}, "has not finished"),
        ({"select": "test"}, "chosen by its test accuracy"),
        ({"loss": "<function>"}, "that a command can repeat"),
    ],
)
def test_what_a_card_could_not_say_is_not_shipped(run: Path, change: dict, message: str, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    content = json.loads(path.read_text())
    (content if "git_commit" in change else content["config"]).update(change)
    path.write_text(json.dumps(content))
    with pytest.raises(SystemExit, match=message):
        zoo.make(tmp_path / "run", "tiny", None, 1)
    with pytest.raises(SystemExit, match="expected the folder of a finished run"):
        zoo.make(tmp_path / "nowhere", "tiny", None, 1)


def test_a_conversion_that_costs_accuracy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    zoo.check_loss(0.912, 0.910, 1000)
    zoo.check_loss(0.910, 0.912, 1000)
    with pytest.raises(SystemExit, match=r"0\.30 points apart"):
        zoo.check_loss(0.913, 0.910, 1000)


def test_kernels_that_differ_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    different: dict[str, Any] = {
        "spikes_that_differ": {"numpy": 1}, "outputs_that_differ": {}, "c99_membranes_and_outputs_that_differ": 0
    }  # fmt: skip
    monkeypatch.setattr(zoo, "compared", lambda *_: different)
    with pytest.raises(SystemExit, match="the ways to run the network differ"):
        zoo.make(run, "tiny", None, 1)
    engines = bsnn.load("digits"), bsnn.load("digits", kernel="numpy")
    images = bsnn.data.digits("test").samples[:3]
    assert np.array_equal(zoo._agreeing(*engines)(images), engines[0].predict(images))
    run_as_it_was = engines[1].run
    monkeypatch.setattr(engines[1], "run", lambda *arguments: run_as_it_was(*arguments) + 1)
    with pytest.raises(SystemExit, match="differ on a test sample"):
        zoo._agreeing(*engines)(images)


def test_wilsons_interval() -> None:
    # 8 of 10: (0.8 + 0.19208 ± 1.96 √(0.016 + 0.0096)) / 1.38415, by hand.
    assert zoo.wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert zoo.wilson(10, 10)[1] == pytest.approx(1.0)


def test_the_page_shows_the_cards_as_they_are() -> None:
    text = zoo.PAGE.read_text()
    assert zoo.page(text) == text, "run python benchmarks/zoo.py"
