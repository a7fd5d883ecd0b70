"""Callbacks see epochs and updates, can end a run, and cannot break one."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from training_runs import TINY, assert_same_run, metrics

from bsnn import UserError
from bsnn.train import train
from bsnn.train.callbacks import Callbacks

SHORT = dataclasses.replace(TINY, epochs=2, train_samples=96)


class Recorder:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_start(self, trainer: Any) -> None:
        self.seen.append(("start", trainer.epoch))

    def on_update(self, trainer: Any) -> None:
        self.seen.append(("update", trainer.batches))

    def on_epoch(self, trainer: Any, metrics: Any) -> None:
        self.seen.append(("epoch", metrics["epoch"], metrics["test_accuracy"]))

    def on_end(self, trainer: Any) -> None:
        self.seen.append(("end", trainer.epoch))


def test_what_a_callback_is_told(tmp_path: Path) -> None:
    recorder = Recorder()
    train(SHORT, tmp_path / "run", callbacks=[recorder])
    first, second = (line["test_accuracy"] for line in metrics(tmp_path / "run"))
    assert recorder.seen == [
        ("start", 0),
        *(("update", number) for number in (1, 2, 3)),
        ("epoch", 1, first),
        *(("update", number) for number in (4, 5, 6)),
        ("epoch", 2, second),
        ("end", 2),
    ]


@pytest.mark.parametrize("where", ["on_start", "on_update", "on_epoch"])
def test_an_error_in_a_callback_leaves_the_run_resumable(where: str, tmp_path: Path) -> None:
    train(SHORT, tmp_path / "whole")
    recorder, calls = Recorder(), iter(range(100))

    class Faulty:
        pass

    def fail(*_: Any) -> None:
        if next(calls) == {"on_update": 4}.get(where, 0):
            raise RuntimeError("the network is down")

    setattr(Faulty, where, fail)
    with pytest.raises(RuntimeError, match="the network is down") as caught:
        train(SHORT, tmp_path / "run", callbacks=[recorder, Faulty()])
    assert f"in {where} of the callback" in caught.value.__notes__[0]
    assert recorder.seen[-1][0] == "end", "the others are told"
    if where == "on_epoch":
        assert len(metrics(tmp_path / "run")) == 1, "the epoch is not lost"
        assert any((tmp_path / "run" / "checkpoints").iterdir())
    train(SHORT, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_callback_can_end_the_run(tmp_path: Path, capfd) -> None:
    class Enough:
        def on_update(self, trainer: Any) -> None:
            if trainer.batches == 2:
                trainer.stop("it was enough")

    config = dataclasses.replace(SHORT, epochs=5, evaluation_interval=5)
    done = train(config, tmp_path / "run", callbacks=[Enough()])
    assert (done["epochs"], done["stopped"]) == (1, "it was enough")
    assert done["test_accuracy"] == metrics(tmp_path / "run")[0]["test_accuracy"], "the last epoch is always measured"
    again = train(config, tmp_path / "run", resume=True)
    assert again["finished_before"]
    assert again["stopped"] == "it was enough"


def test_callbacks_are_called_on_the_first_process_unless_they_say_so(finished: Path) -> None:
    everywhere, first = Recorder(), Recorder()
    everywhere.every_process = True  # pyright: ignore
    trainer: Any = type("Stand-in", (), {"epoch": 0})()
    Callbacks([everywhere, first], is_first=False).on_start(trainer)
    assert (len(everywhere.seen), len(first.seen)) == (1, 0)


class Misspelled:
    def on_epoch_end(self, trainer: Any) -> None:
        """Never called."""


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (Misspelled(), "with on_epoch_end; expected"),
        (object(), "with no method that is called"),
        (Recorder, "Recorder"),
    ],
)
def test_what_would_never_be_called_is_refused(callback: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^callbacks: received .*{words}"):
        train(SHORT, tmp_path / "run", callbacks=[callback])
    assert not (tmp_path / "run" / "config.json").exists()


def test_what_a_callback_changes_is_in_the_checkpoint(tmp_path: Path) -> None:
    class Slower:
        every_process = True

        def on_epoch(self, trainer: Any, metrics: Any) -> None:
            trainer.history[-1]["warnings"].append("looked at")

    train(dataclasses.replace(SHORT, epochs=1), tmp_path / "run", callbacks=[Slower()])
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert line["warnings"][-1] == "looked at"
