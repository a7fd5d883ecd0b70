"""The config's defaults and ranges. A run that names few options rests on the others."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bsnn.errors import UserError
from bsnn.train.config import Config, config_from_json

DEFAULTS = {
    "dataset": "cifar10", "time_steps": 4, "image_size": 0, "train_samples": 0, "validation_samples": 0,
    "group": "",
    "model": "vgg11", "plan": (), "width": 1.0, "first_layer": "learned", "neuron": "lif", "leak": 0.5,
    "threshold": 1.0, "surrogate": "sigmoid", "weights": "binary",
    "gradient": "ottt", "updates": "real-time", "precision": "fp32", "batchnorm": "step", "method": "",
    "optimizer": "tbso",
    "gamma": 5e-7, "one_minus_beta1": 1e-3, "one_minus_beta2": 1e-5, "eps": 1e-20, "bias_correction": False,
    "initial_momentum": 0.0, "momentum_bits": 32, "gamma_schedule": "constant", "beta_schedule": "cosine",
    "beta2_schedule": "constant", "decay_epochs": 50,
    "learning_rate": 0.1, "learning_rate_schedule": "cosine", "warmup": 0.0, "real_optimizer": "sgd",
    "sgd_momentum": 0.0, "nesterov": False, "weight_decay": 0.0,
    "loss": "mixed", "loss_of": "steps", "mse_share": 0.05, "label_smoothing": 0.0, "clip_norm": 0.0,
    "epochs": 400, "batch_size": 128, "stages": (), "schedule_span": "run",
    "crop_padding": 0, "crop_mode": "zeros", "flip": False, "alternating_flip": False, "cutout": 0,
    "autoaugment": False, "mixup": 0.0,
    "time_shift": 0.0, "speed_change": 0.0, "gain_change": 0.0, "noise": 0.0, "noise_folder": "", "reject": 0.0,
    "teacher": "", "teacher_share": 0.9, "teacher_answers": "batch",
    "init_from": "", "statistics_batches": 50, "sync_batchnorm": False, "seed": 0,
    "evaluation_interval": 1, "select": "last", "early_stopping": 0, "final_test": True,
}  # fmt: skip

AT_LEAST_1 = ("time_steps", "epochs", "batch_size", "statistics_batches", "decay_epochs", "evaluation_interval")
AT_LEAST_0 = (
    "image_size", "train_samples", "validation_samples", "crop_padding", "cutout", "gamma", "eps", "initial_momentum",
    "learning_rate", "sgd_momentum", "weight_decay", "clip_norm", "mixup", "noise",
)  # fmt: skip
SHARES = ("leak", "one_minus_beta1", "one_minus_beta2", "mse_share", "warmup", "label_smoothing", "time_shift")


def test_defaults() -> None:
    assert dataclasses.asdict(Config()) == DEFAULTS


@pytest.mark.parametrize(
    ("name", "low", "below"),
    [
        *((name, 1, 0) for name in AT_LEAST_1),
        *((name, 0, -1) for name in AT_LEAST_0),
        *((name, 0, -0.01) for name in (*SHARES, "speed_change", "reject", "gain_change")),
        ("width", 1e-3, 9e-4),
        ("threshold", 1e-3, 9e-4),
        ("seed", 0, -1),
    ],
)
def test_least_value(name: str, low: float, below: float) -> None:
    assert getattr(Config(**{name: low}), name) == low
    received = type(getattr(Config(), name))(below)
    with pytest.raises(UserError, match=f"{name}: received {received}; expected a number, "):
        Config(**{name: below})


@pytest.mark.parametrize(
    ("name", "high"),
    [*((name, 1) for name in SHARES), ("speed_change", 0.5), ("reject", 0.5), ("gain_change", 96), ("seed", 2**63 - 1)],
)
def test_greatest_value(name: str, high: float) -> None:
    assert getattr(Config(**{name: high}), name) == high
    with pytest.raises(UserError, match=f"{name}: received .*; expected a number, 0 to {high}"):
        Config(**{name: high + 1})


def test_as_many_time_steps_as_a_model_file_may_have() -> None:
    assert Config(time_steps=65536).time_steps == 65536
    with pytest.raises(
        UserError, match="time_steps: received 99999999; expected a number, 1 to 65536, as a model file"
    ):
        Config(time_steps=99999999)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_not_a_number(value: float) -> None:
    with pytest.raises(UserError, match=r"learning_rate: received (inf|nan); expected a number, at least 0\."):
        Config(learning_rate=value)


def test_a_run_of_before_goes_on_without_the_fields_that_were_added() -> None:
    content = json.loads(json.dumps(dataclasses.asdict(Config(epochs=3))))
    for name in ("first_layer", "teacher", "teacher_share"):
        del content[name]
    assert config_from_json(content) == Config(epochs=3)
    del content["gamma"]
    with pytest.raises(ValueError, match="unknown fields: none; missing: gamma"):
        config_from_json(content)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"flip": "no"}, "flip: received 'no'; expected True or False"),
        ({"flip": 1}, "flip: received 1; expected True or False"),
        ({"epochs": "3"}, "epochs: received '3'; expected a whole number"),
        ({"epochs": 3.0}, "epochs: received 3.0; expected a whole number"),
        ({"epochs": True}, "epochs: received True; expected a whole number"),
        ({"learning_rate": "0.1"}, "learning_rate: received '0.1'; expected a number"),
        ({"plan": "32,64"}, "plan: received '32,64'; expected a tuple"),
        ({"loss": print}, "loss: received <built-in function print>; expected a text"),
        ({"stages": ({"epochs": 2, "autoaugment": "no"},)}, "stages: stage 1, .*autoaugment: received 'no'"),
    ],
)
def test_another_type_is_refused_and_not_guessed(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        Config(**fields)


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("teacher", Path("runs/a"), "runs/a"),
        ("init_from", Path("runs/a"), "runs/a"),
        ("plan", [32, "pool", 64], (32, "pool", 64)),
        ("seed", np.int64(3), 3),
        ("learning_rate", np.float32(0.5), 0.5),
        ("learning_rate", 1, 1.0),
    ],
)
def test_the_same_value_in_another_type_is_taken(name: str, given: Any, kept: Any) -> None:
    found = getattr(Config(model="vgg", **{"plan": (4, 4), name: given}), name)
    assert (found, type(found)) == (kept, type(kept))
