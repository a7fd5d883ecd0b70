"""Recipes that finish on two CPU cores: a table of names, descriptions and configs.

The paper's own are in `bsnn.paper.recipes`, which also looks a recipe up by its name.
"""

from dataclasses import replace
from typing import NamedTuple

from bsnn.train.config import Config


class Recipe(NamedTuple):
    """A config with a description."""

    description: str
    config: Config


ROOM = {"time_shift": 0.2, "speed_change": 0.1, "gain_change": 10.0, "noise": 0.6, "reject": 0.01}
"""What recipes for sounds add, so that a network works beyond the recordings that it was trained on."""


def without_room(config: Config) -> Config:
    """A config without them, as in papers, which train on the recordings as they are."""
    return replace(config, **dict.fromkeys(ROOM, 0.0))


_SMALL = Config(
    model="vgg",
    plan=(32, "pool", 64, "pool", 128, "pool", 256),
    time_steps=2,
    epochs=20,
    batch_size=64,
    one_minus_beta1=3e-3,
)
_CIFAR = replace(_SMALL, crop_padding=4, flip=True, batch_size=128, epochs=30)

_RESIDUAL = Config(
    model="residual",
    plan=("down", 128, 128, "down", 256, 256, "down", 512, 512),
    first_layer="whitened",
    threshold=2.0,
    time_steps=1,
    gradient="sltt",
    precision="bf16",
    one_minus_beta1=3e-3,
    learning_rate=1.0,
    sgd_momentum=0.9,
    nesterov=True,
    warmup=0.02,
    epochs=24,
    crop_padding=4,
    crop_mode="reflect",
    flip=True,
    alternating_flip=True,
    evaluation_interval=2,
)

SMALL = {
    "digits": Recipe(
        "The bundled digits, T-BSO, T = 4: half a minute, no download.",
        Config(
            dataset="digits",
            model="vgg",
            plan=(24, 48, "pool", 96, "pool", 96),
            time_steps=4,
            epochs=15,
            batch_size=64,
            one_minus_beta1=1e-2,
        ),
    ),
    "cifar10-small": Recipe(
        "CIFAR-10 on one CPU core in 90 minutes: a residual network, T = 1.",
        _RESIDUAL,
    ),
    "cifar10-teacher": Recipe(
        "CIFAR-10, an ordinary network with real weights, for others to learn from.",
        replace(
            _RESIDUAL,
            model="bsnn.models.plain:plain",
            plan=(),
            weights="real",
            neuron="bsnn.nn.compared:Rectifier",
            threshold=1.0,
            gradient="bptt",
            learning_rate=0.125,
            weight_decay=1.3e-3,
            warmup=0.2,
            mse_share=0.0,
            epochs=10,
            evaluation_interval=10,
        ),
    ),
    "cifar10-medium": Recipe(
        "CIFAR-10 on one CPU core in some hours: a residual network with a teacher, T = 1.",
        replace(
            _RESIDUAL,
            plan=(80, "max", 160, 160, "max", 320, 320, "max", 640, 640),
            teacher="cifar10-teacher",
            teacher_answers="once",
            gamma=0.006,
            gamma_schedule="cosine",
            one_minus_beta1=1e-3,
            bias_correction=True,
            epochs=44,
            evaluation_interval=12,
        ),
    ),
    "cifar10-narrow": Recipe(
        "CIFAR-10 on two CPU cores: a narrow network, T = 2, which the methods are compared on.",
        replace(_CIFAR, dataset="cifar10"),
    ),
    "cifar100-small": Recipe(
        "CIFAR-100 on two CPU cores: a narrow network, T = 2.",
        replace(_CIFAR, dataset="cifar100"),
    ),
    "imagenet-small": Recipe(
        "An ImageNet-like folder, such as Tiny ImageNet, on one CPU core: 32 × 32 pixels, T = 1.",
        replace(_RESIDUAL, dataset="imagenet", image_size=32),
    ),
    "dvs-cifar10-small": Recipe(
        "DVS-CIFAR10 on two CPU cores: a narrow network, five frames.",
        replace(_SMALL, dataset="dvs_cifar10", time_steps=5, image_size=32, mse_share=0.001, epochs=10),
    ),
    "nmnist-small": Recipe(
        "N-MNIST event recordings on two CPU cores: five frames.",
        replace(_SMALL, dataset="nmnist", time_steps=5, plan=(32, "pool", 64, "pool", 128), batch_size=32, epochs=20),
    ),
    "speech-commands-small": Recipe(
        "Google Speech Commands, or some of its words, on two CPU cores: T = 4.",
        replace(_SMALL, dataset="speech_commands", time_steps=4, epochs=30, crop_padding=2, **ROOM),
    ),
    "folder": Recipe(
        "Your own images, sounds or event recordings, one folder per class.",
        replace(_SMALL, dataset="folder", time_steps=4, image_size=32, epochs=30, **ROOM),
    ),
}
