"""No option without effect: a change of any field changes the run, or is refused by name."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from training_runs import VARIABLE, uncounted

from bsnn import UserError, cli
from bsnn.data.subset import some_samples
from bsnn.nn.bits import BinaryParameter
from bsnn.nn.neurons import neuron_named
from bsnn.train import trainer as trainer_module
from bsnn.train.build import load_data
from bsnn.train.config import Config, why_unused
from bsnn.train.fields import choices_of
from bsnn.train.sweep import grid_points
from bsnn.train.trainer import Trainer

BASE = Config(
    dataset="digits", model="vgg", plan=(4, 4), time_steps=2, train_samples=40, batch_size=16, epochs=2, gamma=0.1
)
# Another value for each field; the first other choice, the opposite, or more, if nothing is said.
OTHER: dict[str, Any] = {
    "model": "residual",
    "plan": (4, 8),
    "width": 2.0,
    "neuron": "if",
    "surrogate": "triangle",
    "gradient": "sltt",
    "precision": "bf16",
    "optimizer": "bso",
    "initial_momentum": 1e-3,
    "one_minus_beta1": 0.5,
    "one_minus_beta2": 0.5,
    "momentum_bits": 8,
    "gamma_schedule": "cosine",
    "beta_schedule": "constant",
    "decay_epochs": 1,
    "leak": 0.25,
    "mse_share": 0.5,
    "train_samples": 32,
    "batch_size": 8,
    "statistics_batches": 1,
    "image_size": 8,
    "stages": ({"epochs": 1, "time_steps": 1},),
}
# Where a field that has no effect in BASE has one.
ENABLED: dict[str, dict[str, Any]] = {
    "image_size": {"dataset": "folder"},
    "decay_epochs": {"beta_schedule": "step"},
    "batchnorm": {"gradient": "bptt"},
    "loss_of": {"gradient": "bptt"},
    "nesterov": {"sgd_momentum": 0.5},
    "crop_mode": {"crop_padding": 2},
    "alternating_flip": {"flip": True, "epochs": 3},
    "schedule_span": {"stages": ({"epochs": 1, "time_steps": 1},)},
}
# Fields that need more than a small run: where they are tested.
ELSEWHERE = {
    "dataset": "tests/data",
    "init_from": "test_fine_tuning.py",
    "sync_batchnorm": "test_distributed.py",
    "teacher": "test_teacher.py",
    "teacher_share": "test_teacher.py",
    "teacher_answers": "test_teacher.py",
    "clip_norm": "test_options.py",
    "loss": "test_own_parts.py",
    "method": "test_method.py",
    "beta2_schedule": "test_method.py",
    "select": "test_selection.py",
    "early_stopping": "test_selection.py",
    "final_test": "test_selection.py",
    "autoaugment": "tests/data/test_data_augment.py",
    "group": "tests/data/test_data_groups.py",
    **dict.fromkeys(("time_shift", "speed_change", "gain_change", "noise", "noise_folder", "reject"), "test_sounds.py"),
}
NAMES = [field.name for field in dataclasses.fields(Config) if field.name not in ELSEWHERE]


def changed(config: Config, name: str) -> Config:
    """The config with another value of a field."""
    value = getattr(config, name)
    if name in OTHER:
        return dataclasses.replace(config, **{name: OTHER[name]})
    field = next(field for field in dataclasses.fields(Config) if field.name == name)
    choices = [choice for choice in choices_of(field) if choice != value]
    steps = {bool: lambda: not value, int: lambda: value + 1, float: lambda: value + 0.25}
    return dataclasses.replace(config, **{name: choices[0] if choices else steps[type(value)]()})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A function that trains a config and digests all that comes of it."""
    torch.set_num_threads(1)
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(60):
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (12, 12), dtype=np.uint8)).save(path)

    @functools.cache
    def digest(config: Config) -> str:
        train, test = load_data(config, str(folder) if config.dataset == "folder" else None)
        trainer = Trainer(config, train, some_samples(test, min(len(test), 20)))
        for _ in range(config.epochs):
            trainer.train_epoch()
            trainer.finish_epoch()
        sha = hashlib.sha256()
        for parameter in trainer.net.parameters():
            values = parameter.bits if isinstance(parameter, BinaryParameter) else parameter.detach()
            sha.update(values.numpy().tobytes())
        lines = [{key: value for key, value in line.items() if key not in VARIABLE} for line in trainer.history]
        sha.update(json.dumps(lines, sort_keys=True).encode())
        return sha.hexdigest()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "peak_bytes", uncounted)
        yield digest


@pytest.mark.parametrize("name", NAMES)
def test_a_change_has_an_effect_or_is_refused(name: str, run: Any) -> None:
    other = changed(BASE, name) if name not in ENABLED else None
    if other is not None:
        assert not why_unused(other, name)
        assert run(other) != run(BASE)
        return
    enabled = dataclasses.replace(BASE, **ENABLED[name])
    assert not why_unused(changed(enabled, name), name)
    assert run(changed(enabled, name)) != run(enabled)
    try:
        without_effect = changed(BASE, name)
    except UserError:
        return
    assert why_unused(without_effect, name)
    if name not in ("alternating_flip", "batchnorm", "loss_of"):  # refused when it is built
        assert run(without_effect) == run(BASE)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"optimizer": "bso"}, {"one_minus_beta2", "eps", "bias_correction"}),
        ({"gradient": "bptt"}, {"updates"}),
        ({"real_optimizer": "adamw"}, {"sgd_momentum"}),
        ({"neuron": "if"}, {"leak"}),
        (
            {"weights": "real"},
            {"optimizer", "gamma", "one_minus_beta1", "one_minus_beta2", "eps", "bias_correction", "initial_momentum"}
            | {"momentum_bits", "gamma_schedule", "beta_schedule"},
        ),
        ({"model": "vgg11", "width": 0.0625}, {"plan"}),
    ],
)
def test_what_is_said_to_have_no_effect_has_none(settings: dict, expected: set[str], run: Any) -> None:
    base = dataclasses.replace(BASE, **settings)
    usual = ENABLED.keys() | settings.keys()
    refused = {name for name in NAMES if name not in usual and why_unused(changed(base, name), name)}
    assert refused == expected
    if base.model == "vgg":  # VGG-11 takes larger images
        assert {run(changed(base, name)) for name in refused} == {run(base)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "vgg11", "--plan", "4,4"], "--plan: it has an effect only with --model vgg or residual"),
        (["--image-size", "3"], "--image-size: it has an effect only with --dataset imagenet, dvs_cifar10"),
        (["--weights", "real", "--gamma", "1"], "--gamma: it has an effect only with --weights binary"),
        (["--weights", "latent", "--optimizer", "bso"], "--optimizer: it has an effect only with --weights binary"),
        (["--weights", "real", "--gamma-schedule", "step"], "--gamma-schedule: it has an effect only with --weights"),
        (["--optimizer", "bso", "--eps", "1e-3"], "--eps: the flip rule bso does not take it, only gamma, one_minus"),
        (["--gradient", "bptt", "--updates", "real-time"], "--updates: it has an effect only with an online --grad"),
        (["--decay-epochs", "3"], "--decay-epochs: it has an effect only with --weights binary and --gamma-schedule"),
        (["--real-optimizer", "adamw", "--sgd-momentum", "0.9"], "--sgd-momentum: it has an effect only with --real-o"),
        (["--nesterov", "yes"], "nesterov: received yes without a momentum; expected sgd_momentum above 0"),
        (["--crop-mode", "reflect"], "--crop-mode: it has an effect only with --crop-padding, so it would do nothing"),
        (["--alternating-flip", "yes"], "--alternating-flip: it has an effect only with --flip yes"),
        (["--sync-batchnorm", "yes"], "--sync-batchnorm: it has an effect only with several processes, which torchrun"),
        (["--sweep", "gamma=1,2", "--gamma", "3"], "--gamma: --sweep gamma gives its values; expected one of the two"),
        (["--sweep", "optimizer=bso,tbso", "--sweep", "eps=1e-3"], "--sweep eps: at optimizer=bso,eps=0.001 the flip"),
        (["--weights", "real", "--sweep", "gamma=1,2"], "--sweep gamma: at gamma=1.0 it has an effect only with"),
        (["--sweep", "weights=latent,real", "--eps", "1"], "--eps: it has an effect only with --weights binary"),
        (["--plan", "4,,4"], "argument --plan: received '4,,4'; expected channels, with pool (of vgg), max (of"),
        (["--plan", "4,4,down"], "plan: received 4,4,down; expected channels behind each 'down', as 32,down,64"),
        (["--model", "residual", "--plan", "4,pool,4"], "the model residual expects channels and 'max' or 'down', as"),
        (["--model", "residual"], "the model residual expects channels and 'max' or 'down', as 32,max,64"),
        (["--model", "residual", "--plan", "4,down,6"], "6 is no multiple of 4"),
        (
            ["--device", "mps"],
            "device: received mps, and torch finds no GPU of Apple's here; expected cpu, or auto",
        ),
        (["--device", "gpu"], "device: received 'gpu'; expected cpu, cuda, cuda:N, mps or auto"),
    ],
)
def test_options_without_effect_are_refused(options: list[str], message: str, tmp_path: Path, capsys) -> None:
    try:
        status = cli.main(["train", "digits", *options, "--out", str(tmp_path / "run")])
    except SystemExit as leaving:
        status = leaving.code
    assert status == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_switching_off_what_is_off_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Config] = []

    def record(config: Config, *_: Any, **__: Any) -> Any:
        given.append(config)
        raise UserError("recorded")

    monkeypatch.setattr("bsnn.train.loop.train", record)
    options = ["--nesterov", "no", "--alternating-flip", "no", "--sync-batchnorm", "no", "--image-size", "0"]
    assert cli.main(["train", "digits", *options]) == 2
    assert len(given) == 1


def test_an_option_may_have_an_effect_at_some_points_of_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    grids: list[Any] = []

    def record(config: Config, grid: Any, *_: Any, **__: Any) -> Any:
        grids.append(grid_points(config, grid))
        raise UserError("recorded")

    monkeypatch.setattr("bsnn.train.sweep.sweep", record)
    assert cli.main(["train", "digits", "--sweep", "optimizer=bso,tbso", "--eps", "1e-3"]) == 2
    assert [config.eps for _, config in grids[0]] == [1e-3, 1e-3]
    # The recipe's own plan has no place in a residual network; those of the sweep do.
    assert cli.main(["train", "digits", "--model", "residual", "--sweep", "plan=4,4;4,down,8"]) == 2
    assert [config.plan for _, config in grids[1]] == [(4, 4), (4, "down", 8)]


def test_the_names_of_neurons_are_those_of_the_registry() -> None:
    with pytest.raises(UserError) as from_config:
        Config(neuron="no-such")
    with pytest.raises(UserError) as from_registry:
        neuron_named("no-such")
    names = "neuron: received 'no-such'; expected one of lif, if, plif, hard-lif, alif, or module:"
    assert str(from_config.value).startswith(names)
    assert str(from_registry.value).startswith(names)
