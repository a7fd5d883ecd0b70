"""What a config stands for: its network, its data and their augmentation, its optimizers and their schedules."""

import dataclasses
import math
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from bsnn.data.augment import Augmentation
from bsnn.data.dataset import Dataset
from bsnn.data.finder import named
from bsnn.data.spec import DataSpec
from bsnn.data.subset import some_samples, without_some_samples
from bsnn.models import residual, resnet18, vgg, vgg11
from bsnn.nn import surrogate
from bsnn.nn.bits import split_parameters
from bsnn.nn.network import ImageNetwork
from bsnn.nn.neuron import LIF
from bsnn.optim import FlipOptimizer, Schedule, constant, cosine, inverse_sqrt, rules, step_decay, warmup
from bsnn.train.config import Config


def build_network(config: Config, num_classes: int, in_channels: int) -> ImageNetwork:
    """The network of a config, initialized from torch's present random state."""
    neuron = LIF(config.leak, config.threshold, surrogate.named(config.surrogate), config.gradient)
    shared: dict[str, Any] = {
        "num_classes": num_classes,
        "in_channels": in_channels,
        "width": config.width,
        "weights": config.weights,
        "neuron": neuron,
    }
    if config.model == "vgg":
        return vgg(config.plan, **shared)
    if config.model == "residual":
        return residual(config.plan, **shared)
    if config.model == "vgg11":
        return vgg11(**shared)
    return resnet18(stem=224 if config.image_size >= 128 else 32, **shared)


def network_for(config: Config, spec: DataSpec) -> ImageNetwork:
    """The network of a config for such data."""
    return build_network(config, len(spec.classes), spec.shape[-3])


def load_data(config: Config, root: str | None) -> tuple[Dataset, Dataset]:
    """Training and test set of a config, from a folder or where `bsnn.data` keeps downloads.

    With `validation_samples`, accuracy is measured on a part of the training set that is not trained on.
    """
    settings = {"size": config.image_size, "time_steps": config.time_steps}
    train = named(config.dataset, "train", root, **settings)
    if config.validation_samples:
        train, test = without_some_samples(train, config.validation_samples)
    else:
        test = named(config.dataset, "test", root, **settings)
    return some_samples(train, config.train_samples or len(train)), test


def build_augmentation(config: Config) -> Augmentation:
    """What is done to training batches."""
    return Augmentation(
        config.crop_padding,
        config.flip,
        config.cutout,
        config.autoaugment,
        crop_mode=config.crop_mode,
        alternating_flip=config.alternating_flip,
        mixup=config.mixup,
    )


def build_optimizers(config: Config, net: nn.Module) -> tuple[FlipOptimizer | None, Optimizer]:
    """The flip optimizer, if there are binary weights, and an ordinary one for all other parameters."""
    flip, parameters = None, list(net.parameters())
    if config.weights == "binary":
        binary, parameters = split_parameters(net)
        settings = dataclasses.asdict(config)
        if config.gradient == "bptt":
            settings["time_steps"] = 1  # a sequence has one gradient
        flip = rules.build(rules.find(config.optimizer), binary, settings)
    return flip, _real_optimizer(config, parameters)


def _real_optimizer(config: Config, parameters: list[nn.Parameter]) -> Optimizer:
    """SGD or AdamW; weights decay, but not BatchNorm, biases and whatever else has one number per channel or less."""
    groups: list[Any] = parameters
    if config.weight_decay:
        decaying = [parameter for parameter in parameters if parameter.dim() > 1]
        others = [parameter for parameter in parameters if parameter.dim() <= 1]
        groups = [
            {"params": part, "weight_decay": decay}
            for part, decay in ((decaying, config.weight_decay), (others, 0.0))
            if part
        ]
    if config.real_optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=0.0)
    return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.sgd_momentum, nesterov=config.nesterov)


def build_schedules(config: Config, flip: FlipOptimizer | None, real: Optimizer, num_batches: int) -> list[Schedule]:
    """How the settings of the optimizers change, counted in batches.

    Args:
        config: The config.
        flip: The flip optimizer.
        real: The optimizer of the real-valued parameters.
        num_batches: Batches per epoch.
    """
    total = config.epochs * num_batches
    factors = {
        "constant": constant(),
        "step": step_decay(config.decay_epochs * num_batches),
        "cosine": cosine(total),
        "inverse_sqrt": inverse_sqrt(),
    }
    rate = factors[config.learning_rate_schedule]
    if config.warmup:
        rate = warmup(math.ceil(config.warmup * total), rate)
    schedules = [Schedule(real, lr=rate)]
    if flip is not None:
        gamma, beta = factors[config.gamma_schedule], factors[config.beta_schedule]
        schedules.append(Schedule(flip, gamma=gamma, one_minus_beta1=beta))
    return schedules
