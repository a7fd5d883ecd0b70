"""Recipes of the systems that the paper compares with, at its scale and at one for two CPU cores.

What each one is stands in a module (`qsnn`, `cbp`, `atif`, `stst`, `online_baselines`); here are its numbers. A small
recipe keeps the method's own settings, its learning rates among them, and takes data, T, epochs and batch size from
our small recipe of the same data set, and its network if the method has none of its own. Importing this takes no
torch.
"""

from dataclasses import replace
from typing import Any, NamedTuple

from bsnn.paper.numbers import TABLE_2, TABLE_5, Published
from bsnn.train.config import Config
from bsnn.train.recipes import SMALL, Recipe, without_room

VGG11 = (64, 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512)
_CIFAR: dict[str, Any] = {"crop_padding": 4, "flip": True, "cutout": 16, "autoaugment": True}
DVS: dict[str, Any] = {"dataset": "dvs_cifar10", "image_size": 48, "crop_padding": 4}


class Compared(NamedTuple):
    """A recipe of a method that the paper compares with."""

    name: str
    description: str
    config: Config
    method: str | None = None
    """The paper's name of it, if one of its tables has this very run."""


_QSNN: dict[str, Any] = {
    "model": "bsnn.paper.qsnn:network",
    "neuron": "bsnn.nn.compared:EightBitLIF",
    "surrogate": "triangle",
    "weights": "latent",
    "gradient": "bptt-full",
    "batchnorm": "sequence",
    "method": "bsnn.paper.qsnn:QSNN",
    "mse_share": 0.0,
    "learning_rate": 0.1,
    "sgd_momentum": 0.9,
    "weight_decay": 1e-4,
}
_QSNN_PAPER = Config(**_QSNN, plan=VGG11, time_steps=6, epochs=300, batch_size=64)


_ATIF: dict[str, Any] = {
    "model": "bsnn.paper.atif:network",
    "neuron": "bsnn.nn.compared:TrainableThresholdIF",
    "surrogate": "bsnn.paper.atif:slope1",
    "weights": "real",
    "gradient": "bptt-full",
    "batchnorm": "sequence",
    "mse_share": 0.0,
    "real_optimizer": "adamw",
    "learning_rate": 1e-3,
}
_STST: dict[str, Any] = {
    "model": "bsnn.paper.stst:network",
    "neuron": "hard-lif",
    "surrogate": "triangle",
    "weights": "real",
    "gradient": "bptt-full",
    "batchnorm": "sequence",
    "loss": "bsnn.online.loss:tet_loss",
    "real_optimizer": "adamw",
    "learning_rate": 1e-2,
    "weight_decay": 1e-4,
}
# Binary weights in the blocks, and T-BSO with gradients that are cut from the past: beyond the paper.
_STST_TBSO: dict[str, Any] = {
    **_STST,
    "weights": "binary",
    "gradient": "sltt",
    "batchnorm": "step",
    "optimizer": "tbso",
    "learning_rate": 1e-3,
}
# The paper gives neither epochs nor batch size: those are CIFAR's.
SPEECH: dict[str, Any] = {"dataset": "speech_commands", "time_steps": 4, "epochs": 400, "batch_size": 128}

_CBP: dict[str, Any] = {
    "weights": "latent",
    "gradient": "bptt",
    "loss_of": "mean",
    "mse_share": 0.0,
    "sgd_momentum": 0.9,
    "learning_rate_schedule": "constant",
}
VGG16 = (64, 64, "pool", 128, 128, "pool", *(256,) * 3, "pool", *(512,) * 3, "pool", *(512,) * 3, "pool")
_CBP_VGG: dict[str, Any] = {**_CBP, "model": "bsnn.paper.cbp:vgg16", "learning_rate": 0.01}
_RECTIFIED: dict[str, Any] = {
    **_CBP_VGG,
    "neuron": "bsnn.nn.compared:Rectifier",
    "time_steps": 1,
    "learning_rate_schedule": "cosine",
    "weight_decay": 1e-4,
}
_CONVERTED: dict[str, Any] = {**_CBP_VGG, "neuron": "if", "method": "bsnn.paper.cbp:ConvertedCBP"}
_RECTIFIED_PAPER = Config(**_RECTIFIED, plan=VGG16, epochs=300, batch_size=128, **_CIFAR)
_CONVERTED_PAPER = Config(**_CONVERTED, plan=VGG16, time_steps=32, epochs=100, batch_size=128, **_CIFAR)
_SEW: dict[str, Any] = {**_CBP, "surrogate": "arctan", "batchnorm": "sequence", "learning_rate": 0.1}
_CBP_DVS = Config(
    **_SEW,
    dataset="dvs_cifar10",
    model="bsnn.paper.cbp:conv16fc1",
    neuron="bsnn.nn.compared:InputDecayPLIF",
    image_size=128,
    time_steps=16,
    epochs=64,
    batch_size=16,
)
_CBP_IMAGENET = Config(
    **_SEW,
    dataset="imagenet",
    model="bsnn.paper.cbp:sew_resnet18",
    neuron="hard-lif",
    leak=1.0,
    image_size=224,
    time_steps=4,
    epochs=100,
    batch_size=64,
)
# How the networks that are constrained were trained is not ours to know: as in constraining, with a cosine.
_BEFORE: dict[str, Any] = {"learning_rate_schedule": "cosine"}


_ONLINE: dict[str, Any] = {"weights": "real", "sgd_momentum": 0.9, "learning_rate": 0.1}
_OTTT_VGG: dict[str, Any] = {**_ONLINE, "model": "bsnn.paper.online_baselines:ottt_vgg", "gradient": "ottt"}
_OTTT_PAPER = Config(**_OTTT_VGG, plan=VGG11, time_steps=6, epochs=300, crop_padding=4, flip=True, cutout=16)
_OTTT_IMAGENET = Config(
    **{**_OTTT_VGG, "model": "bsnn.paper.online_baselines:ottt_resnet34"},
    dataset="imagenet",
    image_size=224,
    time_steps=6,
    epochs=100,
    batch_size=256,
    weight_decay=2e-5,
)
_SLTT_DVS = Config(
    **{**_ONLINE, "learning_rate": 0.05},
    **DVS,
    model="bsnn.paper.online_baselines:sltt_vgg",
    gradient="sltt",
    plan=VGG11,
    leak=1 - 1 / 1.1,
    surrogate="triangle",
    weight_decay=5e-4,
    time_steps=10,
    epochs=300,
    mse_share=0.001,
)
_SLTT_IMAGENET = Config(
    **{**_ONLINE, "learning_rate": 0.001},
    dataset="imagenet",
    model="bsnn.paper.online_baselines:sltt_resnet34",
    gradient="sltt",
    surrogate="triangle",
    image_size=224,
    time_steps=6,
    epochs=130,
    batch_size=256,
    stages=({"epochs": 100, "time_steps": 1, "learning_rate": 0.1, "weight_decay": 1e-5},),
    schedule_span="stage",
)


def _small(base: str, **fields: Any) -> Config:
    return replace(without_room(SMALL[base].config), **fields)


def _cbp(name: str, data: str, first: Config, then: Config, how: str, method: str | None) -> tuple[Compared, Compared]:
    """The recipes of both stages."""
    before = f"{name}-{how[:3].lower()}"
    second = f"{data}, CBP, T = {then.time_steps}, from {before}"
    return (
        Compared(before, f"{data}, {how}, which CBP begins with", first),
        Compared(name, second, replace(then, init_from=f"runs/{before}"), method),
    )


_ROWS = (
    Compared("cifar10-qsnn", "CIFAR-10, Q-SNN, T = 6", replace(_QSNN_PAPER, dataset="cifar10", **_CIFAR), "Q-SNN"),
    Compared("cifar100-qsnn", "CIFAR-100, Q-SNN, T = 6", replace(_QSNN_PAPER, dataset="cifar100", **_CIFAR), "Q-SNN"),
    Compared("dvs-cifar10-qsnn", "DVS-CIFAR10, Q-SNN, T = 10", replace(_QSNN_PAPER, **DVS, time_steps=10), "Q-SNN"),
    Compared("cifar10-qsnn-small", "CIFAR-10 on two CPU cores, Q-SNN, T = 2", _small("cifar10-narrow", **_QSNN)),
    *_cbp("cifar10-cbp", "CIFAR-10", _RECTIFIED_PAPER, _CONVERTED_PAPER, "ANN of rectifiers", "CBP"),
    *_cbp(
        "cifar100-cbp",
        "CIFAR-100",
        replace(_RECTIFIED_PAPER, dataset="cifar100"),
        replace(_CONVERTED_PAPER, dataset="cifar100"),
        "ANN of rectifiers",
        "CBP",
    ),
    *_cbp(
        "dvs-cifar10-cbp",
        "DVS-CIFAR10",
        replace(_CBP_DVS, **_BEFORE),
        replace(_CBP_DVS, method="bsnn.paper.cbp:EventCBP"),
        "SNN, SEW's Wide-7B-Net",
        "CBP",
    ),
    *_cbp(
        "imagenet-cbp",
        "ImageNet",
        replace(_CBP_IMAGENET, **_BEFORE),
        replace(_CBP_IMAGENET, method="bsnn.paper.cbp:CBP"),
        "SNN, SEW-ResNet-18",
        "CBP",
    ),
    *_cbp(
        "cifar10-cbp-small",
        "CIFAR-10 on two CPU cores",
        _small("cifar10-narrow", **_RECTIFIED),
        _small("cifar10-narrow", **{**_CONVERTED, "method": "bsnn.paper.cbp:ShortConvertedCBP", "time_steps": 8}),
        "ANN of rectifiers",
        None,
    ),
    Compared("cifar10-ottt-sws", "CIFAR-10, OTTT with standardized weights, T = 6", _OTTT_PAPER),
    Compared(
        "cifar100-ottt-sws",
        "CIFAR-100, OTTT with standardized weights, T = 6",
        replace(_OTTT_PAPER, dataset="cifar100"),
    ),
    Compared("imagenet-ottt", "ImageNet, OTTT on a ResNet-34 without BatchNorm, T = 6", _OTTT_IMAGENET, "OTTT"),
    Compared("dvs-cifar10-sltt", "DVS-CIFAR10, SLTT with its own settings, T = 10", _SLTT_DVS),
    Compared("imagenet-sltt", "ImageNet, SLTT, ResNet-34, T = 6 after 100 epochs at T = 1", _SLTT_IMAGENET, "SLTT"),
    Compared(
        "cifar10-ottt-sws-small",
        "CIFAR-10 on two CPU cores, OTTT with standardized weights, T = 2",
        _small("cifar10-narrow", **_OTTT_VGG),
    ),
    Compared("speech-commands-atif", "Google Speech Commands, ATIF, T = 4", Config(**_ATIF, **SPEECH), "ATIF"),
    Compared("speech-commands-stst", "Google Speech Commands, STS-T, T = 4", Config(**_STST, **SPEECH), "STS-T"),
    Compared(
        "speech-commands-atif-small",
        "Google Speech Commands on two CPU cores, ATIF, T = 4",
        _small("speech-commands-small", **_ATIF, width=0.25, plan=()),
    ),
    Compared(
        "speech-commands-stst-small",
        "Google Speech Commands on two CPU cores, STS-T, T = 4",
        _small("speech-commands-small", **_STST, width=0.25, plan=()),
    ),
    Compared(
        "speech-commands-stst-tbso-small",
        "Google Speech Commands on two CPU cores, T-BSO on STS-T's transformer, T = 4",
        _small("speech-commands-small", **_STST_TBSO, width=0.25, plan=()),
    ),
)


def small_version(name: str) -> str:
    """The name of a recipe's small version; both stages of CBP have one.

    Example:
        >>> small_version("cifar10-qsnn"), small_version("cifar10-cbp-ann")
        ('cifar10-qsnn-small', 'cifar10-cbp-small-ann')
    """
    return f"{name.removesuffix('-ann')}-small" + ("-ann" if name.endswith("-ann") else "")


def published(row: Compared) -> tuple[int, Published] | None:
    """Where the paper reports what a recipe trains: the number of the table, and its row there."""
    for number, table in ((2, TABLE_2), (5, TABLE_5)):
        for entry in table:
            if (entry.dataset, entry.method) == (row.config.dataset, row.method):
                return number, entry
    return None


def _described(row: Compared) -> str:
    found = published(row)
    if found is None:
        return f"{row.description}."
    return f"Table {found[0]}: {row.description}; the paper reports {found[1].accuracy:.2f} %."


COMPARED: dict[str, Recipe] = {row.name: Recipe(_described(row), row.config) for row in _ROWS}
"""The recipes by name."""

COMPARED_RECIPE_OF: dict[Published, str] = {found[1]: row.name for row in _ROWS if (found := published(row))}
"""The recipe of a row of Table 2 or 5."""
