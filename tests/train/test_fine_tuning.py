"""A run that starts from the weights and the momentum of another."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from training_runs import TINY

from bsnn.errors import UserError
from bsnn.train import load, loop as train
from bsnn.train.build import load_data
from bsnn.train.config import Config
from bsnn.train.trainer import Trainer


def first_flips(config: Config, source: dict[str, Any] | None) -> float:
    run = Trainer(config, *load_data(config, None), source=source)
    inputs, labels = next(iter(run.train_loader.epoch(0)))
    ratios = []
    assert run.flip is not None
    run.flip.register_step_post_hook(lambda flip, *_: ratios.append(flip.flip_ratio))
    run.net.train()
    run._train_batch(inputs, labels)
    return ratios[0]


@pytest.mark.parametrize("source", ["{run}", "{run}/checkpoints/batch-000000021.ckpt"])
def test_fine_tuning_does_not_flip_half_of_the_weights(source: str, finished: Path) -> None:
    state = load._source_state(Path(source.format(run=finished)))
    other = dataclasses.replace(TINY, time_steps=2, gradient="ndot")
    assert first_flips(other, state) < 0.2
    assert first_flips(dataclasses.replace(other, initial_momentum=1.0), state) == 0
    for entry in state["optimizers"][0]["state"].values():
        entry["momentum"].zero_()
    assert first_flips(other, state) > 0.3, "what would happen without the momentum"


def test_init_from_is_needed_for_the_start_alone(finished: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "run"
    shutil.copytree(finished, source)
    config = dataclasses.replace(TINY, epochs=1, init_from=str(source), initial_momentum=1.0)
    result = train.train(config, out)
    shutil.rmtree(source)
    assert load.evaluate_run(out)["test_accuracy"] == result["test_accuracy"]


def test_a_network_that_computes_something_else_is_named(finished: Path, tmp_path: Path, capfd) -> None:
    config = dataclasses.replace(TINY, epochs=1, init_from=str(finished), initial_momentum=1.0)
    train.train(config, tmp_path / "same")
    assert "was trained with" not in capfd.readouterr().err
    others = dataclasses.replace(config, plan=(TINY.plan[0], "pool", *TINY.plan[1:]), threshold=2.0)
    train.train(others, tmp_path / "other")
    told = "was trained with --plan 4,4,pool,4 (now 4,pool,4,pool,4), --threshold 1.0 (now 2.0); its weights fit"
    assert told in capfd.readouterr().err
    # Half as many channels of twice the width are the same network.
    wide = dataclasses.replace(config, plan=(2, 2, "pool", 2), width=2.0)
    train.train(wide, tmp_path / "wide")
    # These neurons have learned what the config begins with.
    learned = dataclasses.replace(config, neuron="plif", init_from="")
    train.train(learned, tmp_path / "learned")
    train.train(dataclasses.replace(learned, init_from=str(tmp_path / "learned"), leak=0.25), tmp_path / "on")
    assert "was trained with" not in capfd.readouterr().err


def test_momentum_that_is_not_there_is_asked_for(finished: Path) -> None:
    state = load._source_state(finished)
    del state["optimizers"][0]["state"][0]["momentum"]
    with pytest.raises(UserError, match="init_from: it holds no momentum for the flip optimizer of this run"):
        first_flips(TINY, state)
