"""The config of a training run: one frozen value with every number in it.

The help of a field is the help of its option on the command line. Nothing here needs torch.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bsnn.optim import rules
from bsnn.train.config_checks import check_config
from bsnn.train.effects import (
    ONLY_BINARY,
    ONLY_MIXED,
    ONLY_SOUNDS,
    Unused,
    is_own,
    only,
    unused_by_data,
    unused_by_network,
    unused_by_neuron,
    unused_by_rule,
    unused_noise,
    unused_plan,
)
from bsnn.train.fields import typed
from bsnn.train.stages import Changes, check_stages

DataName = Literal[
    "digits", "cifar10", "cifar100", "mnist", "fashion_mnist", "imagenet", "dvs_cifar10", "nmnist",
    "speech_commands", "folder",
]  # fmt: skip
ScheduleName = Literal["constant", "step", "cosine", "inverse_sqrt"]


def _setting(
    default: Any, help: str, *, heading: str = "", metavar: str = "NAME", unused: Unused = lambda config, name: ""
) -> Any:
    """A field and its option.

    Args:
        default: The value if nothing is said.
        help: The help of its option.
        heading: Of a group of options that begins with this one.
        metavar: What stands for a text in the help.
        unused: When the field has no effect.
    """
    return field(default=default, metadata={"help": help, "heading": heading, "metavar": metavar, "unused": unused})


def _by_bptt(config: "Config") -> bool:
    return config.gradient in ("bptt", "bptt-full") or is_own(config.gradient)


def _unused_beta2_schedule(config: "Config", name: str) -> str:
    if config.beta2_schedule == "constant":
        return ONLY_BINARY(config, name)
    return unused_by_rule(config, "one_minus_beta2")


def _only_bptt(config: "Config", name: str) -> str:
    default = next(setting.default for setting in dataclasses.fields(config) if setting.name == name)
    holds = _by_bptt(config) or getattr(config, name) == default
    return "" if holds else "it has an effect only with --gradient bptt or bptt-full"


def _unused_answers(config: "Config", name: str) -> str:
    return "" if config.teacher or config.teacher_answers == "batch" else "it has an effect only with --teacher"


@dataclass(frozen=True)
class Config:
    """All that a training run depends on. The help of each field is the help of its option."""

    dataset: DataName = _setting("cifar10", "what to train on", heading="data")
    time_steps: int = _setting(4, "T; event data are cut into as many frames")
    image_size: int = _setting(
        0,
        "height and width of images and event frames, bands and frames of sounds; 0 takes the data set's own",
        unused=unused_by_data,
    )
    train_samples: int = _setting(0, "train on so many samples, spread evenly over the set; 0 takes all")
    validation_samples: int = _setting(
        0, "hold out so many training samples, spread evenly, and measure each epoch on them, not on the test set"
    )
    group: str = _setting(
        "",
        "keep files of one group, such as a speaker, in one split of your own data: folder, for the folder below the "
        "class, or the number of the part of the file name that names it (2 for jackson in 7_jackson_32.wav)",
        metavar="folder|N",
        unused=only("--dataset folder", lambda config: config.dataset == "folder"),
    )

    model: str = _setting(
        "vgg11",
        "network: vgg11, resnet18, resnet18-released (as in the authors' code), vgg, residual, or module:function for "
        "your own",
        heading="network",
    )
    plan: tuple[int | str, ...] = _setting(
        (),
        "channels of each layer: for `vgg` with pool for 2×2 average pooling, as 32,64,pool,128; for `residual` with "
        "max for 2×2 maximum pooling, as 64,max,128,128; down makes the next layer halve height and width itself",
        unused=unused_plan,
    )
    width: float = _setting(1.0, "factor on every number of channels", unused=unused_by_network)
    first_layer: Literal["learned", "whitened"] = _setting(
        "learned",
        "the first convolution: learned; or whitened, fixed filters that make the pixels of the training samples "
        "uncorrelated (with init_from, the filters of that run, fixed)",
    )
    neuron: str = _setting(
        "lif", "neuron: lif, if, plif, hard-lif, alif, or module:Class for your own", unused=unused_by_network
    )
    leak: float = _setting(0.5, "λ of the neurons", unused=unused_by_neuron)
    threshold: float = _setting(1.0, "V_th of the neurons", unused=unused_by_neuron)
    surrogate: str = _setting(
        "sigmoid", "surrogate derivative, such as sigmoid or triangle, or module:Class", unused=unused_by_neuron
    )
    weights: Literal["binary", "latent", "real"] = _setting("binary", "one-bit weights, or what they compare with")

    gradient: str = _setting(
        "ottt",
        "gradient rule: ottt, ndot, sltt, bptt, bptt-full (through the reset too), or module:Class for your own",
        heading="gradients and flips",
    )
    updates: Literal["real-time", "accumulated"] = _setting(
        "real-time",
        "one update per time step or per sequence",
        unused=only(
            "an online --gradient, because bptt has one update per sequence",
            lambda config: config.gradient not in ("bptt", "bptt-full"),
        ),
    )
    precision: Literal["fp32", "tf32", "bf16"] = _setting(
        "fp32",
        "of the synapses' gradients, and of products with latent or real weights: single; or fewer digits, in tf32 on "
        "NVIDIA's GPUs, or in bf16",
    )
    batchnorm: Literal["step", "sequence"] = _setting(
        "step",
        "BatchNorm's statistics in training: of each time step, or of all time steps together",
        unused=_only_bptt,
    )
    method: str = _setting(
        "",
        "what a method adds around its updates: module:Class, a subclass of bsnn.train.Method",
        metavar="MODULE:CLASS",
    )
    optimizer: str = _setting(
        "tbso", f"flip rule of binary weights: {', '.join(rules.names())}, or module:Class", unused=ONLY_BINARY
    )
    gamma: float = _setting(
        5e-7, "γ, the flip threshold; of `sigma` in standard deviations, such as 2", unused=unused_by_rule
    )
    one_minus_beta1: float = _setting(1e-3, "1 − β1, the rate of the momentum", unused=unused_by_rule)
    one_minus_beta2: float = _setting(1e-5, "1 − β2, the rate of the second moments", unused=unused_by_rule)
    eps: float = _setting(1e-20, "ε inside the root", unused=unused_by_rule)
    bias_correction: bool = _setting(
        False, "divide the second moments by the share of them that is filled", unused=unused_by_rule
    )
    initial_momentum: float = _setting(
        0.0, "δ: the momentum begins at −δ·W; with 0 at 0, or at that of init_from", unused=unused_by_rule
    )
    momentum_bits: int = _setting(32, "bits of a weight's momentum: 32, or 8, rounded at random", unused=unused_by_rule)
    gamma_schedule: ScheduleName = _setting("constant", "how γ decays", unused=ONLY_BINARY)
    beta_schedule: ScheduleName = _setting("cosine", "how 1 − β1 decays", unused=ONLY_BINARY)
    beta2_schedule: ScheduleName = _setting("constant", "how 1 − β2 decays", unused=_unused_beta2_schedule)
    decay_epochs: int = _setting(
        50,
        "epochs from one division by ten to the next, with schedule `step`",
        unused=only(
            "--weights binary and --gamma-schedule, --beta-schedule or --beta2-schedule step",
            lambda config: (
                config.weights == "binary"
                and "step" in (config.gamma_schedule, config.beta_schedule, config.beta2_schedule)
            ),
        ),
    )

    learning_rate: float = _setting(0.1, "of the real-valued parameters", heading="real-valued parameters")
    learning_rate_schedule: Literal["cosine", "constant"] = _setting("cosine", "how the learning rate decays")
    warmup: float = _setting(0.0, "share of the run in which the learning rate rises to its schedule, such as 0.05")
    real_optimizer: Literal["sgd", "adamw"] = _setting("sgd", "optimizer of the real-valued parameters")
    sgd_momentum: float = _setting(
        0.0,
        "momentum of SGD on the real-valued parameters",
        unused=only("--real-optimizer sgd", lambda config: config.real_optimizer == "sgd"),
    )
    nesterov: bool = _setting(
        False,
        "Nesterov's form of that momentum",
        unused=only(
            "--real-optimizer sgd and --sgd-momentum",
            lambda config: config.real_optimizer == "sgd" and config.sgd_momentum > 0,
        ),
    )
    weight_decay: float = _setting(0.0, "decay of real-valued weights; BatchNorm and biases have none")

    loss: str = _setting(
        "mixed",
        "loss of a time step: mixed, or module:function of (logits, labels) for your own",
        heading="loss and length",
    )
    loss_of: Literal["steps", "mean"] = _setting(
        "steps", "sum the losses of all time steps, or take that of the logits' mean over time", unused=_only_bptt
    )
    mse_share: float = _setting(0.05, "κ, the share of the squared distance in the loss `mixed`", unused=ONLY_MIXED)
    label_smoothing: float = _setting(
        0.0, "share of a label that is spread over all classes, such as 0.1", unused=ONLY_MIXED
    )
    teacher: str = _setting(
        "",
        "run directory of a network whose answers take the place of most of each label; or a recipe, which is trained "
        "first, on the same samples, in the folder `teacher` of the run",
        metavar="RUN|RECIPE",
    )
    teacher_share: float = _setting(
        0.9,
        "share of the teacher's answers in the labels",
        unused=only("--teacher", lambda config: bool(config.teacher)),
    )
    teacher_answers: Literal["batch", "once"] = _setting(
        "batch",
        "for each batch as it is augmented; or once for each training sample, and its mirror image if images are "
        "mirrored, which saves a forward pass per update",
        unused=_unused_answers,
    )
    clip_norm: float = _setting(
        0.0, "scale the gradients of a time step down to this norm, taken over all parameters; 0 for none"
    )
    epochs: int = _setting(400, "passes over the training data, over all stages")
    batch_size: int = _setting(128, "samples per update, over all processes")
    stages: tuple[Mapping[str, Any], ...] = _setting(
        (),
        "what to change before the run ends with its own fields, stage by stage, as epochs=18,time_steps=1; "
        "weights and momentum are carried on",
        metavar="epochs=N,FIELD=X; ...",
    )
    schedule_span: Literal["run", "stage"] = _setting(
        "run",
        "how far a schedule reaches: over the whole run, or over each stage by itself",
        unused=only("--stages", lambda config: len(config.stages) > 0),
    )

    crop_padding: int = _setting(0, "pixels around an image before a random crop; 0 for none", heading="augmentation")
    crop_mode: Literal["zeros", "reflect"] = _setting(
        "zeros",
        "what these pixels are: zeros, or the image reflected at its border",
        unused=only("--crop-padding", lambda config: config.crop_padding > 0),
    )
    flip: bool = _setting(False, "mirror half of the images")
    alternating_flip: bool = _setting(
        False,
        "mirror each image in every other epoch, instead of at random",
        unused=only("--flip yes", lambda config: config.flip),
    )
    cutout: int = _setting(0, "side of the square that is cut out; 0 for none")
    autoaugment: bool = _setting(False, "AutoAugment's CIFAR-10 policy")
    mixup: float = _setting(
        0.0, "α of mixup: each image is mixed with another one by a share from Beta(α, α); 0 for none"
    )

    time_shift: float = _setting(
        0.0, "move sounds by up to so many seconds, either way; 0 for none", heading="sounds", unused=ONLY_SOUNDS
    )
    speed_change: float = _setting(
        0.0, "play sounds faster or slower by up to this share, such as 0.1; 0 for none", unused=ONLY_SOUNDS
    )
    gain_change: float = _setting(
        0.0,
        "make sounds louder or quieter by up to so many decibels, clipped at 16 bits; 0 for none",
        unused=ONLY_SOUNDS,
    )
    noise: float = _setting(
        0.0,
        "background noise of up to this amplitude relative to a sound's, such as 0.3 (10 dB below it); 0 for none",
        unused=ONLY_SOUNDS,
    )
    noise_folder: str = _setting(
        "",
        "recordings to take the noise from; otherwise it is generated",
        metavar="DIR",
        unused=unused_noise,
    )
    reject: float = _setting(
        0.0,
        "train on noise and silence alone too, and let the model file say `none of these` to this share of the "
        "sounds held out, such as 0.01; 0 names a class for any sound",
        unused=ONLY_SOUNDS,
    )

    init_from: str = _setting(
        "",
        "run directory or checkpoint to take the weights from, and their momentum",
        heading="start and statistics",
        metavar="PATH",
    )
    statistics_batches: int = _setting(50, "training batches that estimate BatchNorm before an evaluation")
    sync_batchnorm: bool = _setting(
        False,
        "share BatchNorm's statistics between processes",
        unused=only("several processes, which torchrun starts", lambda _: int(os.environ.get("WORLD_SIZE", "1")) > 1),
    )
    seed: int = _setting(0, "seed of weights, order and augmentation")

    evaluation_interval: int = _setting(
        1, "measure every so many epochs, and after the last", heading="what is measured and selected"
    )
    select: Literal["last", "validation", "test"] = _setting(
        "last",
        "the epoch whose network is the result: the last, or the best by validation or, at your risk, test accuracy",
    )
    early_stopping: int = _setting(0, "stop after so many epochs without a better validation accuracy; 0 never does")
    final_test: bool = _setting(True, "with validation_samples: measure the result on the test set, once, at the end")

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            object.__setattr__(self, setting.name, typed(setting, getattr(self, setting.name)))
        check_config(self)
        if self.stages:
            object.__setattr__(self, "stages", tuple(map(Changes, self.stages)))
            check_stages(self)


def why_unused(config: Config, name: str) -> str:
    """Why a field has no effect in this config; empty if it has one, or if it is off: switching off is no mistake.

    Example:
        >>> why_unused(Config(model="vgg11", plan=(32, "pool", 64)), "plan")
        'it has an effect only with --model vgg or residual, whose channels it gives'
    """
    setting = next(setting for setting in dataclasses.fields(config) if setting.name == name)
    return setting.metadata["unused"](config, name) if getattr(config, name) else ""


# Fields that earlier runs do not have: their defaults are what those runs did.
_ADDED = ("first_layer", "teacher", "teacher_share", "teacher_answers")


def config_from_json(content: dict[str, Any]) -> Config:
    """A config from the JSON of its fields; those that were added later may be missing.

    Raises:
        ValueError: If any other field is missing, or one is unknown: another version wrote it.
    """
    names = {setting.name for setting in dataclasses.fields(Config)}
    unknown, missing = sorted(content.keys() - names), sorted(names - content.keys() - set(_ADDED))
    if unknown or missing:
        raise ValueError(f"unknown fields: {', '.join(unknown) or 'none'}; missing: {', '.join(missing) or 'none'}")
    return Config(**content)


def config_of_run(run: Path) -> Config | None:
    """What a run was started with, if its config.json can tell."""
    try:
        return config_from_json(_recorded(run, "config"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def data_of_run(run: Path) -> str | None:
    """The folder of data that a run was started with, if its config.json can tell."""
    return _recorded(run, "data")


def group_of_run(run: Path) -> str:
    """How a run has grouped its files, if its config.json can tell."""
    return _recorded(run, "config", "group") or ""


def _recorded(run: Path, *keys: str) -> Any:
    try:
        content = json.loads((run / "config.json").read_text())
        for key in keys:
            content = content[key]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return content
