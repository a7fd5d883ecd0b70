"""Methods of training as part of a run, and the options that they need."""

import dataclasses
from typing import Any

import pytest
import torch

import bsnn
from bsnn.optim import TBSO
from bsnn.train import Config, Method, Trainer
from bsnn.train.build import build_network, build_optimizers, build_schedules, load_data

BASE = Config(dataset="digits", model="vgg", plan=(4, 4), time_steps=2, train_samples=64, batch_size=32, epochs=2)
BY_BPTT = dataclasses.replace(BASE, weights="latent", gradient="bptt")


class Recorder(Method):
    """Records what is called, and in which order."""

    def __init__(self, net, config) -> None:
        super().__init__(net, config)
        self.calls: list[Any] = []

    def start(self, trainer: Trainer) -> None:
        self.calls.append("start")

    def before_update(self, trainer: Trainer) -> None:
        self.calls.append(("before", trainer.epoch, trainer.batches))

    def after_update(self, trainer: Trainer, loss: float) -> None:
        self.calls.append(("after", trainer.batches))

    def after_epoch(self, trainer: Trainer, metrics: Any) -> None:
        self.calls.append(("epoch", metrics["epoch"]))

    def state_dict(self) -> dict[str, Any]:
        return {"calls": len(self.calls)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = ["before"] * state["calls"]


class Penalized(Method):
    """Adds 100 to the loss."""

    def penalty(self, state: Any) -> torch.Tensor:
        return 100 + 0 * state[-1].membrane.sum()

    def after_update(self, trainer: Trainer, loss: float) -> None:
        self.loss = loss


def trainer(config: Config) -> Trainer:
    return Trainer(config, *load_data(config, None))


def test_it_is_told_of_everything_and_goes_on_where_it_was() -> None:
    config = dataclasses.replace(BASE, method="test_method:Recorder")
    run = trainer(config)
    run.train_epoch()
    run.finish_epoch()
    assert isinstance(run.method, Recorder)
    assert run.method.calls == [
        "start", ("before", 0, 0), ("after", 1), ("before", 0, 1), ("after", 2), ("epoch", 1)
    ]  # fmt: skip
    again = trainer(config)
    again.load_state(run.state())
    again.train_epoch()
    assert again.method.calls[6:] == [("before", 1, 2), ("after", 3), ("before", 1, 3), ("after", 4)]


def test_a_penalty_is_part_of_the_loss() -> None:
    run = trainer(dataclasses.replace(BY_BPTT, method="test_method:Penalized"))
    run.train_epoch()
    assert 100 < run.finish_epoch()["train_loss"] < 110
    assert 100 < run.method.loss < 110


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: dataclasses.replace(BASE, method="Penalized"), "method: received 'Penalized'; expected module:Class"),
        (
            lambda: trainer(dataclasses.replace(BASE, method="test_method:Penalized")),
            "adds a penalty to the loss of a sequence, and gradient=ottt",
        ),
        (
            lambda: trainer(dataclasses.replace(BASE, method="test_method:BASE")),
            "expected a subclass of bsnn.train.Met",
        ),
        (
            lambda: trainer(
                dataclasses.replace(BASE, method="test_method:Recorder", stages=({"epochs": 1, "time_steps": 1},))
            ),
            "stages: received 1 with method=test_method:Recorder",
        ),
        (lambda: trainer(dataclasses.replace(BASE, batchnorm="sequence")), "batchnorm: received sequence with gradi"),
        (lambda: trainer(dataclasses.replace(BASE, loss_of="mean")), "loss_of: received mean with gradient=ottt"),
    ],
)
def test_what_would_do_nothing_is_refused(config, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        config()


def test_one_minus_beta2_has_a_schedule() -> None:
    config = dataclasses.replace(BASE, beta2_schedule="inverse_sqrt", one_minus_beta2=0.5)
    optimizers = build_optimizers(config, build_network(config, 10, 1))
    assert isinstance(optimizers[0], TBSO)
    schedules = build_schedules(config, optimizers, 2)
    for _ in range(3):
        schedules[0].step()
    assert optimizers[0].param_groups[0]["one_minus_beta2"] == pytest.approx(0.25)
    # BSO has none, and does not miss it.
    config = dataclasses.replace(BASE, optimizer="bso")
    build_schedules(config, build_optimizers(config, build_network(config, 10, 1)), 2)
