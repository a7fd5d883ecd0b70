"""Recipes for small devices, and the networks that they pick from, made for 16, 64 and 256 KB of RAM.

What a network takes depends on the data and is found when it is known. A convolution of stride 2 first (`down`) saves
most in a stream, where each neuron keeps its membrane; poolings make counts, whose rows take three bits per channel.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bsnn.data.dataset import Kind
from bsnn.errors import UserError
from bsnn.train.recipes import SMALL, Recipe

# For sounds and events, momentum for the real-valued parameters; for sounds, more epochs than in speech-commands-small.
_MOMENTUM = {"learning_rate": 0.05, "sgd_momentum": 0.9, "nesterov": True}
_LONGER = {"epochs": 60} | _MOMENTUM

# For images and more RAM, the kind of network of imagenet-small, with a lower rate: the threshold is 1 here.
_OF_NETWORK = ("time_steps", "model", "first_layer", "gradient", "sgd_momentum", "nesterov", "warmup")
_RESIDUAL = {name: getattr(SMALL["imagenet-small"].config, name) for name in _OF_NETWORK} | {"learning_rate": 0.3}

NETWORKS: dict[Kind, tuple[Mapping[str, Any], ...]] = {
    "sound": (
        {"plan": (32, "pool", 64, "pool", 128, "pool", 256), "time_steps": 4} | _LONGER,
        {"plan": ("down", 32, "pool", 64, 128, "pool", 256), "time_steps": 4} | _LONGER,
        {"plan": ("down", 32, "pool", 64, "pool", 96, 192), "time_steps": 4} | _LONGER,
        {"plan": ("down", 16, "pool", 32, "pool", 64, 128), "time_steps": 3} | _LONGER,
    ),
    "image": (
        {"plan": SMALL["imagenet-small"].config.plan} | _RESIDUAL,
        {"plan": ("down", 56, 56, "down", 112, 112, "down", 224, 224)} | _RESIDUAL,
        {"plan": (32, "pool", 64, "pool", 128, "pool", 256), "time_steps": 2},
        {"plan": (24, "pool", 48, "pool", 96, "pool", 192), "time_steps": 2},
        {"plan": ("down", 32, "pool", 64, "pool", 96, 128), "time_steps": 2},
    ),
    # Frames as large as the camera first, which the C export sums from events by itself.
    "event": (
        {"plan": ("down", 48, "pool", 96, "pool", 192, 256), "time_steps": 10, "image_size": 0} | _MOMENTUM,
        {"plan": ("down", 32, "pool", 64, "pool", 96, 192), "time_steps": 10, "image_size": 0} | _MOMENTUM,
        {"plan": ("down", 32, "pool", 64, "pool", 96, 192), "time_steps": 4, "image_size": 0} | _MOMENTUM,
        {"plan": ("down", 32, "pool", 64, "pool", 128), "time_steps": 4, "image_size": 0} | _MOMENTUM,
        {"plan": ("down", 16, "pool", 32, "pool", 64), "time_steps": 3, "image_size": 0} | _MOMENTUM,
        {"plan": ("down", 32, "pool", 64, "pool", 96, 192), "time_steps": 4, "image_size": 24} | _MOMENTUM,
        {"plan": ("down", 32, "pool", 64, "pool", 128), "time_steps": 4, "image_size": 24} | _MOMENTUM,
        {"plan": (32, "pool", 64, "pool", 96), "time_steps": 4, "image_size": 16} | _MOMENTUM,
        {"plan": ("down", 16, "pool", 32, "pool", 64), "time_steps": 3, "image_size": 16} | _MOMENTUM,
    ),
}
"""Of each kind of data, in order of preference. A recipe of `DEVICES` takes the first that fits a budget."""

DEVICES = {
    "speech-commands-device": Recipe(
        "Google Speech Commands, or some of its words, in a network that fits --ram and --flash.",
        replace(SMALL["speech-commands-small"].config, **NETWORKS["sound"][0]),
    ),
    "cifar10-device": Recipe(
        "CIFAR-10 in a network that fits --ram and --flash.",
        replace(SMALL["cifar10-narrow"].config, **NETWORKS["image"][2]),
    ),
    "nmnist-device": Recipe(
        "N-MNIST event recordings in a network that fits --ram and --flash.",
        replace(SMALL["nmnist-small"].config, **NETWORKS["event"][2]),
    ),
    "folder-device": Recipe(
        "Your own images, sounds or event recordings in a network that fits --ram and --flash.",
        SMALL["folder"].config,
    ),
}


def check_model(name: str, fields: Mapping[str, Any]) -> None:
    """Refuses a model for a recipe of `DEVICES`, before its plan is blamed."""
    if name in DEVICES and "model" in fields:
        raise UserError(
            f"--model: received {fields['model']}; {name} picks the model itself, and vgg for a --plan that is given. "
            "Leave it out, or take another recipe."
        )
