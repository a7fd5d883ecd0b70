import dataclasses
import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch

from bsnn import UserError, cli
from bsnn.data import ArrayDataset
from bsnn.train.recipes import RECIPES, Config, choices_of, recipe, written
from bsnn.train.trainer import Trainer

# Table 6 (BSO) and Table 7 (T-BSO): epochs, batch size, γ, 1 − β1, 1 − β2, learning rate.
TABLE_6 = {
    "cifar10": (400, 128, 5e-7, 1e-3, 0.1),
    "cifar100": (400, 128, 5e-7, 1e-3, 0.1),
    "dvs_cifar10": (400, 128, 1e-6, 1e-3, 0.1),
}
TABLE_7 = {
    "cifar10": (400, 128, 5e-7, 1e-3, 1e-5, 0.1),
    "cifar100": (400, 128, 5e-7, 1e-3, 1e-5, 0.1),
    "imagenet pre-training": (100, 64, 1e-6, 1e-3, 1e-5, 0.1),
    "imagenet fine-tuning": (30, 64, 1e-11, 1e-8, 1e-5, 0.1),
    "dvs_cifar10": (400, 128, 1e-6, 1e-3, 1e-5, 0.1),
}
# Table 2: data set, rule, network, time steps of every row of ours.
TABLE_2 = {
    "cifar10-bso-t2": ("cifar10", "bso", "vgg11", 2, 93.30),
    "cifar10-bso-t4": ("cifar10", "bso", "vgg11", 4, 93.45),
    "cifar10-bso-t6": ("cifar10", "bso", "vgg11", 6, 92.98),
    "cifar10-tbso-t2": ("cifar10", "tbso", "vgg11", 2, 94.32),
    "cifar10-tbso-t4": ("cifar10", "tbso", "vgg11", 4, 94.86),
    "cifar10-tbso-t6": ("cifar10", "tbso", "vgg11", 6, 94.70),
    "cifar100-bso-t2": ("cifar100", "bso", "vgg11", 2, 72.15),
    "cifar100-bso-t4": ("cifar100", "bso", "vgg11", 4, 72.34),
    "cifar100-bso-t6": ("cifar100", "bso", "vgg11", 6, 72.57),
    "cifar100-tbso-t2": ("cifar100", "tbso", "vgg11", 2, 73.40),
    "cifar100-tbso-t4": ("cifar100", "tbso", "vgg11", 4, 73.82),
    "cifar100-tbso-t6": ("cifar100", "tbso", "vgg11", 6, 74.27),
    "imagenet-tbso-t4": ("imagenet", "tbso", "resnet18", 4, 57.76),
    "imagenet-tbso-t6": ("imagenet", "tbso", "resnet18", 6, 58.86),
    "dvs-cifar10-bso": ("dvs_cifar10", "bso", "vgg11", 10, 80.60),
    "dvs-cifar10-tbso": ("dvs_cifar10", "tbso", "vgg11", 10, 81.00),
}
# Rows of Table 2 with real-valued weights: data set, gradient, network, time steps.
COUNTERPARTS = {
    "cifar10-real-bptt-t6": ("cifar10", "bptt", "vgg11", 6, 93.23),
    "cifar10-real-ottt-t6": ("cifar10", "ottt", "vgg11", 6, 93.73),
    "cifar10-real-ndot-t6": ("cifar10", "ndot", "vgg11", 6, 94.90),
    "cifar100-real-bptt-t6": ("cifar100", "bptt", "vgg11", 6, 71.15),
    "cifar100-real-ottt-t6": ("cifar100", "ottt", "vgg11", 6, 71.11),
    "cifar100-real-ndot-t6": ("cifar100", "ndot", "vgg11", 6, 76.61),
    "imagenet-real-bptt-t4": ("imagenet", "bptt", "resnet18", 4, 63.18),
    "dvs-cifar10-real-bptt": ("dvs_cifar10", "bptt", "vgg11", 10, 73.90),
    "dvs-cifar10-real-sltt": ("dvs_cifar10", "sltt", "vgg11", 10, 82.20),
    "dvs-cifar10-real-ndot": ("dvs_cifar10", "ndot", "vgg11", 10, 77.50),
}


def table_7(config: Config) -> tuple[float, ...]:
    names = ("epochs", "batch_size", "gamma", "one_minus_beta1", "one_minus_beta2", "learning_rate")
    return tuple(getattr(config, name) for name in names)


@pytest.mark.parametrize("name", TABLE_2)
def test_numbers_are_those_of_the_tables(name: str) -> None:
    dataset, optimizer, model, time_steps, accuracy = TABLE_2[name]
    config = recipe(name)
    assert (config.dataset, config.optimizer, config.model, config.time_steps) == (
        dataset,
        optimizer,
        model,
        time_steps,
    )
    if optimizer == "bso":
        epochs, batch_size, gamma, rate, learning_rate = TABLE_6[dataset]
        assert table_7(config) == (epochs, batch_size, gamma, rate, config.one_minus_beta2, learning_rate)
    else:
        assert table_7(config) == TABLE_7["imagenet fine-tuning" if dataset == "imagenet" else dataset]
    assert (config.weights, config.width, config.updates) == ("binary", 1.0, "real-time")
    # Section 5.1: λ, V_th and the schedule of the learning rate.
    assert (config.leak, config.threshold, config.learning_rate_schedule) == (0.5, 1.0, "cosine")
    assert f"{accuracy:.2f} %" in (RECIPES[name].__doc__ or "")


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_counterparts_are_the_rows_of_table_2(name: str) -> None:
    config = recipe(name)
    row = (config.dataset, config.gradient, config.model, config.time_steps)
    assert row == COUNTERPARTS[name][:4]
    assert config.weights == "real"
    assert f"{COUNTERPARTS[name][4]:.2f} %" in (RECIPES[name].__doc__ or "")


def test_imagenet_is_trained_at_one_step_and_then_fine_tuned() -> None:
    first = recipe("imagenet-tbso-t1")
    assert table_7(first) == TABLE_7["imagenet pre-training"]
    assert (first.time_steps, first.model, first.init_from) == (1, "resnet18", "")
    second = recipe("imagenet-tbso-t4")
    assert second.init_from == "runs/imagenet-tbso-t1"
    assert second.initial_momentum > 0, "with 0, the first update would flip half of the weights"


def test_speech_commands_has_the_numbers_of_the_appendix() -> None:
    config = recipe("speech-commands-tbso")
    assert (config.model, config.time_steps) == ("vgg11", 4)
    assert (config.gamma, config.one_minus_beta1, config.one_minus_beta2) == (5e-7, 1e-3, 1e-5)


def test_the_released_variant_departs_where_the_code_does() -> None:
    paper, released = (dataclasses.asdict(recipe(name)) for name in ("cifar10-tbso-t4", "cifar10-tbso-released"))
    assert {key: value for key, value in released.items() if value != paper[key]} == {
        "gradient": "ndot",
        "gamma_schedule": "step",
        "beta_schedule": "step",
        "learning_rate_schedule": "constant",
        "autoaugment": True,
    }
    assert released["decay_epochs"] == 50


def test_every_data_set_has_a_small_version() -> None:
    small = {recipe(name).dataset for name in RECIPES if name.endswith("-small") or name in ("digits", "folder")}
    assert small >= {recipe(name).dataset for name in RECIPES}


def fake_data(config: Config) -> ArrayDataset:
    """Four samples of the kind and shape that the recipe's data set has, small where it may be."""
    rng = np.random.default_rng(0)
    event = config.dataset in ("dvs_cifar10", "nmnist")
    channels = {"digits": 1, "mnist": 1, "fashion_mnist": 1, "speech_commands": 1}.get(
        config.dataset, 2 if event else 3
    )
    size = {"digits": 8, "imagenet": 64}.get(config.dataset, 16)
    shape = (4, *([config.time_steps] if event else []), channels, size, size)
    samples = rng.integers(0, 256, shape, dtype=np.uint8)
    kind: Any = "event" if event else "sound" if config.dataset == "speech_commands" else "image"
    scale = 8.0 if event else 255.0
    return ArrayDataset(
        "fake", kind, ("a", "b"), np.array([0, 1, 0, 1]), samples, (0.5,) * channels, (0.2,) * channels, scale
    )


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_builds_and_runs_two_updates(name: str) -> None:
    config = recipe(name)
    data = fake_data(config)
    width = 0.125 if config.width == 1 else config.width / 4
    run = Trainer(dataclasses.replace(config, width=width, batch_size=2, epochs=1, statistics_batches=1), data, data)
    before = {key: value.clone() for key, value in run.net.state_dict().items()}
    run.train_epoch()
    line = run.finish_epoch()
    assert run.update == 2
    assert np.isfinite(line["train_loss"])
    after = run.net.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before if "weight" in key)
    if config.weights == "binary" and not config.initial_momentum:
        assert line["flip_ratio"] > 0


# The command line.


def options_of(config: Config) -> list[str]:
    """Every field of a config as options."""
    return list(
        itertools.chain.from_iterable(
            (f"--{field.name}", "" if value in ("", ()) else written(value))
            for field in dataclasses.fields(Config)
            for value in [getattr(config, field.name)]
        )
    )


@pytest.mark.parametrize("name", ["cifar10-tbso-released", "nmnist-small", "imagenet-tbso-t6"])
@pytest.mark.parametrize("style", ["--{}_{}", "--{}-{}", "--{}-{}="])
def test_every_field_can_be_set(name: str, style: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    given: list[Config] = []

    def record(config: Config, *_: Any, **__: Any) -> dict[str, Any]:
        given.append(config)
        raise UserError("recorded")

    monkeypatch.setattr("bsnn.train.loop.train", record)
    options = options_of(recipe(name))
    if style != "--{}_{}":
        options[::2] = [option.replace("_", "-") for option in options[::2]]
    if style.endswith("="):
        options = [f"{key}={value}" for key, value in zip(options[::2], options[1::2], strict=True)]
    assert cli.main(["train", "digits", *options]) == 2
    assert given == [recipe(name)]
    assert capsys.readouterr().err == "bsnn: recorded\n"


def test_the_help_is_that_of_the_config(capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "nmnist-small", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith("usage: bsnn train RECIPE [--data DIR] [--out RUN] [--resume] [--FIELD VALUE ...]")
    config = recipe("nmnist-small")
    for field in dataclasses.fields(Config):
        assert f"--{field.name.replace('_', '-')} " in shown
        assert f"{field.metadata['help']} ({written(getattr(config, field.name))})" in shown
        assert all(choice in shown for choice in choices_of(field))
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    assert "`bsnn train RECIPE --help` shows the numbers" in " ".join(capsys.readouterr().out.split())


def test_recipes_are_listed_for_people_and_scripts(capsys) -> None:
    assert cli.main(["recipes"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("For two CPU cores:\n  digits ")
    assert max(map(len, text.splitlines())) <= 130
    assert cli.main(["recipes", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["recipes"]
    assert [entry["name"] for entry in listed] == list(RECIPES)
    assert all(f"  {name} " in text for name in RECIPES)
    assert listed[0]["gamma"] == 5e-7
    assert all(entry["help"].endswith(".") for entry in listed)


def test_a_wrong_word_is_refused_in_python_too() -> None:
    with pytest.raises(UserError, match="gradient: received 'bp'; expected one of ottt, ndot, sltt, bptt"):
        Config(gradient="bp")  # pyright: ignore
    with pytest.raises(UserError, match="mse_share: received nan"):
        Config(mse_share=float("nan"))
