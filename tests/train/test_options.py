"""What the options of the real-valued parameters, of the loss and of the device do, against plain references."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_runs import TINY, run_command

import bsnn
from bsnn import UserError, cli
from bsnn.data.augment import Augmentation
from bsnn.train import build, distributed, loop, trainer as trainer_module
from bsnn.train.config import Config
from bsnn.train.trainer import Trainer

SMALL = dataclasses.replace(TINY, plan=(4, 4), train_samples=48, batch_size=16, epochs=2, time_steps=2)


def built(config: Config) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = build.build_network(config, 10, 1)
    return net, build.build_optimizers(config, net)[-1]


@pytest.mark.parametrize("weights", ["binary", "real"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_weights_decay_and_nothing_else(weights: Any, optimizer: Any) -> None:
    changes = {"weights": weights, "real_optimizer": optimizer, "weight_decay": 0.25, "learning_rate": 0.5}
    net, real = built(dataclasses.replace(SMALL, **changes))
    before = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    for group in real.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    real.step()
    decayed = {"conv1.weight", "classifier.weight"} | ({"conv2.weight"} if weights == "real" else set())
    for name, parameter in net.named_parameters():
        if isinstance(parameter, bsnn.BinaryParameter):
            continue
        factor = 1 - 0.5 * 0.25 if name in decayed else 1.0
        torch.testing.assert_close(parameter.detach(), factor * before[name], msg=name)


@pytest.mark.parametrize(
    ("changes", "update"),
    [
        # Two gradients of 1, learning rate 0.5: velocities 1 and 1 + μ; Nesterov looks ahead by μ times them.
        ({"sgd_momentum": 0.0}, -0.5 * (1 + 1)),
        ({"sgd_momentum": 0.75}, -0.5 * (1 + 1.75)),
        ({"sgd_momentum": 0.75, "nesterov": True}, -0.5 * (1 + 0.75 * 1 + 1 + 0.75 * 1.75)),
        # Adam's step for a constant gradient is the learning rate.
        ({"real_optimizer": "adamw"}, -0.5 * 2),
    ],
)
def test_the_optimizer_of_real_parameters_by_hand(changes: dict, update: float) -> None:
    net, real = built(dataclasses.replace(SMALL, learning_rate=0.5, **changes))
    bias = net.get_parameter("classifier.bias")
    before = bias.detach().clone()
    for _ in range(2):
        bias.grad = torch.ones_like(bias)
        real.step()
    torch.testing.assert_close(bias.detach() - before, torch.full((10,), update), rtol=1e-5, atol=1e-6)


def test_the_learning_rate_warms_up_and_the_flips_do_not() -> None:
    config = dataclasses.replace(SMALL, warmup=0.5, epochs=4, learning_rate=0.8)
    net = build.build_network(config, 10, 1)
    flip, real = build.build_optimizers(config, net)
    schedules = build.build_schedules(config, [flip, real], num_batches=3)
    assert flip is not None
    rates, betas = [], []
    for _ in range(12):
        rates.append(real.param_groups[0]["lr"])
        betas.append(flip.param_groups[0]["one_minus_beta1"])
        for schedule in schedules:
            schedule.step()
    cosine = [0.5 * (1 + math.cos(math.pi * k / 12)) for k in range(12)]
    assert rates == pytest.approx([0.8 * min((k + 1) / 7, 1) * cosine[k] for k in range(12)])
    assert betas == pytest.approx([config.one_minus_beta1 * factor for factor in cosine])


def test_fields_reach_the_loader_and_the_loss() -> None:
    changes = {"crop_padding": 2, "crop_mode": "reflect", "flip": True, "alternating_flip": True, "mixup": 0.3}
    config = dataclasses.replace(SMALL, **changes, label_smoothing=0.2, mse_share=0.1)
    trainer = Trainer(config, *build.load_data(config, None))
    assert trainer.train_loader.augment == Augmentation(
        2, True, 0, crop_mode="reflect", alternating_flip=True, mixup=0.3
    )
    logits, labels = torch.randn(4, 10), torch.tensor([1, 2, 3, 4])
    expected = bsnn.step_loss(logits, labels, time_steps=2, mse_share=0.1, label_smoothing=0.2)
    assert torch.equal(trainer._step_loss(logits, labels), expected)


def test_statistics_are_those_of_single_images() -> None:
    plain, mixed = (dataclasses.replace(SMALL, mixup=alpha) for alpha in (0.0, 1.0))
    buffers = []
    for config in (plain, mixed):
        trainer = Trainer(config, *build.load_data(config, None))
        trainer.estimate_statistics()
        buffers.append([buffer.clone() for buffer in trainer.net.buffers()])
    assert all(torch.equal(a, b) for a, b in zip(*buffers, strict=True))


@pytest.mark.parametrize(("gradient", "update"), [("ottt", "online_update"), ("bptt", "bptt_update")])
def test_the_norm_to_clip_at_reaches_the_update(gradient: Any, update: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def record(*_: Any, clip_norm: float | None = None, **__: Any) -> Any:
        given.append(clip_norm)
        raise UserError("recorded")

    monkeypatch.setattr(trainer_module, update, record)
    for norm in (0.0, 0.5):
        config = dataclasses.replace(SMALL, gradient=gradient, clip_norm=norm)
        with pytest.raises(UserError, match="recorded"):
            Trainer(config, *build.load_data(config, None)).train_epoch()
    assert given == [None, 0.5]


@pytest.mark.parametrize("gradient", ["ottt", "bptt"])
def test_clipping_changes_a_run_only_above_its_norm(gradient: Any) -> None:
    results = []
    for norm in (0.0, 1e6, 1e-3):
        config = dataclasses.replace(SMALL, gradient=gradient, weights="real", clip_norm=norm)
        trainer = Trainer(config, *build.load_data(config, None))
        trainer.train_epoch()
        results.append(trainer.net.get_parameter("classifier.weight").detach().clone())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


# Devices. There is no GPU here: torch is told that there are some.


@pytest.mark.parametrize(
    ("name", "devices", "local_rank", "expected"),
    [
        ("auto", 0, 0, "cpu"),
        ("auto", 2, 1, "cuda:1"),
        ("cpu", 2, 0, "cpu"),
        ("cuda", 2, 0, "cuda:0"),
        ("cuda:1", 2, 0, "cuda:1"),
        ("cuda", 0, 0, "torch finds 0 CUDA devices here"),
        ("cuda:2", 2, 0, "received cuda:2, and torch finds 2 CUDA devices here; expected one that is there"),
        ("auto", 2, 2, "received auto for process 2, and torch finds 2"),
        ("cpu:1", 2, 0, "received 'cpu:1'; expected cpu, cuda, cuda:N, mps or auto"),
        ("cuda:x", 2, 0, "received 'cuda:x'; expected cpu"),
        ("mps", 2, 0, "received mps, and torch finds no GPU of Apple's here; expected cpu, or auto"),
        ("mps:1", 2, 0, "received 'mps:1'; expected cpu"),
        ("", 2, 0, "received ''; expected cpu"),
    ],
)
def test_devices_are_found_or_refused_by_name(
    name: str, devices: int, local_rank: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    if expected.startswith(("cpu", "cuda")):
        assert distributed.device_named(name, local_rank) == torch.device(expected)
    else:
        with pytest.raises(UserError, match=expected):
            distributed.device_named(name, local_rank)


def test_apples_gpu_is_tried_before_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[torch.device] = []
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(distributed, "check_device", tried.append)
    assert distributed.device_named("mps") == torch.device("mps")
    assert tried == [torch.device("mps")]
    assert distributed.device_named("auto") == torch.device("cpu")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UserError, match="received mps under torchrun, which cannot connect Apple's GPUs; expected cpu"):
        distributed.device_named("mps")


def test_under_torchrun_a_device_is_not_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(UserError, match="received cuda:1 under torchrun; expected cuda"):
        distributed.device_named("cuda:1", 1)


def test_the_command_trains_where_it_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    options = ["--plan", "4,4", "--train-samples", "32", "--epochs", "1", "--out", str(tmp_path / "run")]
    status, message = run_command(capfd, "train", "digits", *options, "--device", "cuda:99")
    assert status == 2
    assert "received cuda:99" in message
    assert not (tmp_path / "run").exists()
    made: list[Any] = []
    original = loop.build_trainer

    def recorded(config: Config, data: Any, world: distributed.World, *rest: Any) -> Trainer:
        made.append(world.device)
        return original(config, data, world, *rest)

    monkeypatch.setattr(loop, "build_trainer", recorded)
    assert cli.main(["train", "digits", *options, "--device", "cpu", "--label-smoothing", "0.1", "--json"]) == 0
    assert made == [torch.device("cpu")]
    recorded_config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert recorded_config["label_smoothing"] == 0.1
    assert "device" not in recorded_config


@pytest.mark.parametrize("neuron", ["hard-lif", "alif", "lif"])
def test_a_network_without_a_deployed_form_is_told_of_before_it_is_trained(neuron: str, tmp_path: Path, capfd) -> None:
    options = ["--plan", "4,4", "--train-samples", "32", "--epochs", "1", "--out", str(tmp_path / "run")]
    assert cli.main(["train", "digits", *options, "--neuron", neuron]) == 0
    told, trained, after = capfd.readouterr().err.partition("bsnn: epoch 1/1")
    assert trained
    assert ("warning: the run will have no model.bsnn, so predict, inspect and export" in told) == (neuron != "lif")
    assert "warning" not in after, "it is said once"
    assert (tmp_path / "run" / "model.bsnn").exists() == (neuron == "lif")
    (tmp_path / "run" / "model.bsnn").unlink(missing_ok=True)
    assert cli.main(["inspect", str(tmp_path / "run")]) == 2
    message = capfd.readouterr().err
    assert ("make it with: bsnn export" in message) == (neuron == "lif")
    assert ("and none can be made: " in message) == (neuron != "lif")


def test_a_residual_network_is_trained_and_exported(tmp_path: Path, capfd) -> None:
    options = ["--model", "residual", "--plan", "4,down,8,8", "--train-samples", "64", "--epochs", "1", "--json"]
    assert cli.main(["train", "digits", *options, "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "model.bsnn").exists()
    capfd.readouterr()
    accuracies = []
    for place in (tmp_path / "run", tmp_path / "run" / "model.bsnn"):
        assert cli.main(["evaluate", str(place), "--json"]) == 0
        accuracies.append(json.loads(capfd.readouterr().out)["test_accuracy"])
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.02)
