"""What the fields of a config may be, by themselves and together."""

import dataclasses
import math
from typing import TYPE_CHECKING

from bsnn.data.groups import check_rule
from bsnn.errors import UserError
from bsnn.optim import rules
from bsnn.train.effects import PLAN_WORDS, is_own
from bsnn.train.fields import choices_of, written

if TYPE_CHECKING:
    from bsnn.train.config import Config

_NAMED: dict[str, tuple[str, ...]] = {
    "model": ("vgg11", "resnet18", "resnet18-released", "vgg", "residual"),
    "neuron": ("lif", "if", "plif", "hard-lif", "alif"),
    "gradient": ("ottt", "ndot", "sltt", "bptt", "bptt-full"),
    "optimizer": rules.names(),
    "loss": ("mixed",),
}
"""Fields that name a part of the library, or one of the user's own."""

_RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("epochs", "batch_size", "statistics_batches", "decay_epochs"), (1, math.inf)),
    "time_steps": (1, 65536),  # the most that a model file may have
    **dict.fromkeys(("image_size", "train_samples", "validation_samples", "crop_padding", "cutout"), (0, math.inf)),
    "evaluation_interval": (1, math.inf),
    "early_stopping": (0, math.inf),
    **dict.fromkeys(("gamma", "eps", "initial_momentum", "learning_rate", "sgd_momentum"), (0, math.inf)),
    **dict.fromkeys(("weight_decay", "clip_norm", "mixup", "noise"), (0, math.inf)),
    **dict.fromkeys(("leak", "one_minus_beta1", "one_minus_beta2", "mse_share"), (0, 1)),
    **dict.fromkeys(("warmup", "label_smoothing", "teacher_share", "time_shift"), (0, 1)),
    **dict.fromkeys(("speed_change", "reject"), (0, 0.5)),
    "gain_change": (0, 96),
    **dict.fromkeys(("width", "threshold"), (1e-3, math.inf)),
    "seed": (0, 2**63 - 1),
}


def check_config(config: "Config") -> None:
    """Refuses values that no run could have, and fields that contradict each other."""
    for name, (low, high) in _RANGES.items():
        value = getattr(config, name)
        if not low <= value <= high or value == math.inf:
            expected = f"at least {low}" if high == math.inf else f"{low} to {high}"
            if name == "time_steps":
                expected += ", as a model file allows; for longer streams there is bsnn.stream_update"
            raise UserError(f"{name}: received {value}; expected a number, {expected}.")
    if config.momentum_bits not in (8, 32):
        raise UserError(f"momentum_bits: received {config.momentum_bits}; expected 8 or 32.")
    if config.model in PLAN_WORDS:
        _check_plan(config, PLAN_WORDS[config.model])
    if config.nesterov and config.real_optimizer == "sgd" and not config.sgd_momentum:
        raise UserError("nesterov: received yes without a momentum; expected sgd_momentum above 0, such as 0.9.")
    for name, known in _NAMED.items():
        if (value := getattr(config, name)) not in known and not is_own(value):
            raise UserError(
                f"{name}: received {value!r}; expected one of {', '.join(known)}, or module:Name for your own."
            )
    check_rule(config.group)
    _check_selection(config)
    if config.method and not is_own(config.method):
        raise UserError(f"method: received {config.method!r}; expected module:Class, or none.")
    if config.teacher_answers == "once" and (config.mixup or config.reject):
        name = "mixup" if config.mixup else "reject"
        raise UserError(
            f"teacher_answers: received once with {name}, which makes samples that the data set does not have; "
            f"expected batch. Or switch {name} off."
        )
    for setting in dataclasses.fields(config):
        value, choices = getattr(config, setting.name), choices_of(setting)
        if choices and value not in choices:
            raise UserError(f"{setting.name}: received {value!r}; expected one of {', '.join(choices)}.")


def _check_plan(config: "Config", words: tuple[str, ...]) -> None:
    channels, word = [part for part in config.plan if part not in words], words[0]
    if any(not isinstance(part, int) or part < 1 for part in channels):
        raise UserError(
            f"plan: received {written(config.plan)}; the model {config.model} expects channels and "
            f"{' or '.join(map(repr, words))}, as 32,{word},64."
        )
    if config.weights == "binary" and len(channels) < 2:
        raise UserError(
            f"plan: received {written(config.plan)}; expected channels of two layers or more, as 32,{word},64: the "
            "first is real-valued."
        )


def _check_selection(config: "Config") -> None:
    """Refuses what needs held-out samples if there are none, and what would make the test set one."""
    needing = {
        "select": config.select == "validation",
        "early_stopping": config.early_stopping > 0,
        "final_test": not config.final_test,
    }
    for name in (name for name, needed in needing.items() if needed and not config.validation_samples):
        raise UserError(
            f"{name}: received {written(getattr(config, name))} without held-out samples; set validation_samples, "
            "the number of training samples to hold out."
        )
    if config.select == "test" and config.validation_samples:
        raise UserError(
            "select: received test with validation_samples, which keep the test set for the end; expected "
            "validation, or no validation_samples."
        )
