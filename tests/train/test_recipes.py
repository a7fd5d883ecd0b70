import dataclasses
import itertools
import json
import re
from typing import Any

import numpy as np
import pytest
import torch

from bsnn import UserError, cli
from bsnn.data import ArrayDataset
from bsnn.paper.recipes import RECIPES, recipe
from bsnn.train.config import Config, why_unused
from bsnn.train.effects import is_own
from bsnn.train.fields import choices_of, written
from bsnn.train.trainer import Trainer


def fake_data(config: Config) -> ArrayDataset:
    """Four samples of the kind and shape that the recipe's data set has, small where it may be."""
    rng = np.random.default_rng(0)
    event = config.dataset in ("dvs_cifar10", "nmnist")
    channels = {"digits": 1, "mnist": 1, "fashion_mnist": 1, "speech_commands": 1}.get(
        config.dataset, 2 if event else 3
    )
    size = {"digits": 8, "imagenet": 64}.get(config.dataset, 16)
    if is_own(config.model) and config.dataset != "imagenet":
        size = config.image_size or 32  # networks that are made for a size
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
    if config.image_size == 128:
        config = dataclasses.replace(config, image_size=32)
    data = fake_data(config)
    width = 0.125 if config.width == 1 else config.width / 4
    if config.first_layer == "whitened":
        width *= 2  # so that every stem has an even number of filters
    if config.time_steps > 10:
        config = dataclasses.replace(config, time_steps=3)
    stages = tuple({**changes, "epochs": 1} for changes in config.stages)
    short = {"batch_size": 2, "epochs": 1 + len(stages), "stages": stages, "statistics_batches": 1}
    run = Trainer(dataclasses.replace(config, width=width, **short), data, data)
    before = {key: value.clone() for key, value in run.net.state_dict().items()}
    for _ in range(run.config.epochs):
        run.train_epoch()
        assert np.isfinite(run.finish_epoch()["train_loss"])
    assert run.batches == 2 * run.config.epochs
    after = run.net.state_dict()
    assert any(not torch.equal(before[key], after[key]) for key in before if "weight" in key)
    if config.weights == "binary":
        assert run.history[0]["flip_ratio"] > 0


@pytest.mark.parametrize("name", RECIPES)
def test_the_description_says_the_time_steps(name: str) -> None:
    description, config = RECIPES[name]
    said = re.findall(r"T = (\d+)|(five) frames", description)  # of an earlier stage too, afterwards
    assert [{"five": 5}.get(word) or int(number) for number, word in said][:1] in ([config.time_steps], [])


def test_the_recipe_that_results_were_measured_with() -> None:
    config = recipe("cifar10-small")
    assert config.plan == ("down", 128, 128, "down", 256, 256, "down", 512, 512)
    changed = {
        f.name: getattr(config, f.name) for f in dataclasses.fields(config) if getattr(config, f.name) != f.default
    }
    assert changed == {
        "model": "residual", "plan": config.plan, "first_layer": "whitened", "threshold": 2.0, "time_steps": 1,
        "gradient": "sltt", "precision": "bf16", "one_minus_beta1": 3e-3, "learning_rate": 1.0, "sgd_momentum": 0.9,
        "nesterov": True, "warmup": 0.02, "epochs": 24, "crop_padding": 4, "crop_mode": "reflect", "flip": True,
        "alternating_flip": True, "evaluation_interval": 2,
    }  # fmt: skip


# The command line.


def options_of(config: Config) -> list[str]:
    """Every field of a config that has an effect, as options."""
    return list(
        itertools.chain.from_iterable(
            (f"--{field.name}", "" if value in ("", ()) else written(value))
            for field in dataclasses.fields(Config)
            for value in [getattr(config, field.name)]
            if not why_unused(config, field.name)
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
