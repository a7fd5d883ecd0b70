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

# For sounds, more epochs than in speech-commands-small, and momentum for the real-valued parameters.
_LONGER = {"epochs": 60, "learning_rate": 0.05, "sgd_momentum": 0.9, "nesterov": True}

NETWORKS: dict[Kind, tuple[Mapping[str, Any], ...]] = {
    "sound": (
        {"plan": (32, "pool", 64, "pool", 128, "pool", 256), "time_steps": 4} | _LONGER,
        {"plan": ("down", 32, "pool", 64, 128, "pool", 256), "time_steps": 4} | _LONGER,
        {"plan": ("down", 32, "pool", 64, "pool", 96, 192), "time_steps": 4} | _LONGER,
        {"plan": ("down", 16, "pool", 32, "pool", 64, 128), "time_steps": 3} | _LONGER,
    ),
    "image": (
        {"plan": (64, 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512), "time_steps": 4},
        {"plan": (48, 96, "pool", 192, 192, "pool", 384, 384, "pool", 384), "time_steps": 4},
        {"plan": (32, 64, "pool", 128, 128, "pool", 256, 256, "pool", 256), "time_steps": 4},
        {"plan": (32, 64, "pool", 128, 128, "pool", 256, 256), "time_steps": 2},
        {"plan": (32, "pool", 64, "pool", 128, "pool", 256), "time_steps": 2},
        {"plan": ("down", 32, "pool", 64, "pool", 128, 256), "time_steps": 2},
        {"plan": ("down", 32, "pool", 64, "pool", 96, 128), "time_steps": 2},
    ),
    # Frames as large as the camera first, which the C export sums from events by itself.
    "event": (
        {"plan": (48, "pool", 96, "pool", 192, "pool", 256), "time_steps": 10, "image_size": 0},
        {"plan": (32, "pool", 64, "pool", 128, "pool", 256), "time_steps": 5, "image_size": 0},
        {"plan": (32, "pool", 64, "pool", 128), "time_steps": 5, "image_size": 0},
        {"plan": ("down", 32, "pool", 64, "pool", 128), "time_steps": 4, "image_size": 0},
        {"plan": ("down", 16, "pool", 32, "pool", 64), "time_steps": 3, "image_size": 0},
        {"plan": (32, "pool", 64, "pool", 128), "time_steps": 4, "image_size": 24},
        {"plan": ("down", 32, "pool", 64, "pool", 128), "time_steps": 4, "image_size": 24},
        {"plan": (32, "pool", 64, "pool", 96), "time_steps": 4, "image_size": 16},
        {"plan": ("down", 16, "pool", 32, "pool", 64), "time_steps": 3, "image_size": 16},
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
    """Refuses another model than `NETWORKS` has for a recipe of `DEVICES`, before its plan is blamed."""
    model = fields.get("model", "vgg")
    if name in DEVICES and model != "vgg":
        raise UserError(
            f"--model: received {model}; {name} picks one of the model vgg. Leave it out, or take another recipe."
        )
