"""What a config stands for: its network, its data and their augmentation, its optimizers and their schedules."""

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bsnn.data.augment import Augmentation
from bsnn.data.dataset import Dataset
from bsnn.data.finder import named
from bsnn.data.groups import without_some_groups
from bsnn.data.sounds import BACKGROUND, SoundAugmentation, augmented_sounds
from bsnn.data.spec import DataSpec
from bsnn.data.subset import some_samples, without_some_samples
from bsnn.errors import UserError
from bsnn.models import residual, resnet18, vgg, vgg11
from bsnn.nn import surrogate
from bsnn.nn.bits import split_parameters
from bsnn.nn.neuron import Neuron, Stateful
from bsnn.nn.neurons import neuron_named
from bsnn.nn.trace import gradient_rule
from bsnn.online.loss import step_loss
from bsnn.optim import FlipOptimizer, Schedule, constant, cosine, inverse_sqrt, rules, step_decay, warmup
from bsnn.train.config import Config
from bsnn.train.effects import SOUND_FIELDS
from bsnn.train.own import NOTHING, Own, check_optimizers, filled, keeps_graph
from bsnn.train.whitening import fix_first_layer


def build_neuron(config: Config) -> Neuron:
    """The neuron of a config, to be copied into every layer."""
    settings = {
        "leak": config.leak,
        "threshold": config.threshold,
        "surrogate": surrogate.named(config.surrogate),
        "gradient": gradient_rule(config.gradient),
    }
    return filled(neuron_named(config.neuron), settings, "neuron", rest=settings)


def build_network(config: Config, num_classes: int, in_channels: int, own: Own = NOTHING) -> Stateful:
    """The network of a config, initialized from torch's present random state.

    Your own function is given what it names: `num_classes`, `in_channels`, `neuron`, `config` or a field of the config.
    """
    shared: dict[str, Any] = {
        "num_classes": num_classes,
        "in_channels": in_channels,
        "width": config.width,
        "weights": config.weights,
        "neuron": build_neuron(config),
    }
    model = own.part("model", config)
    if isinstance(model, nn.Module):
        return model  # pyright: ignore[reportReturnType], check_network refuses what is not Stateful
    if model is not None:
        fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        return filled(model, {**fields, **shared, "config": config}, "model", rest=shared)
    if config.model == "vgg":
        return vgg(config.plan, **shared)
    if config.model == "residual":
        return residual(config.plan, **shared)
    if config.model == "vgg11":
        return vgg11(**shared)
    released = config.model == "resnet18-released"
    return resnet18(stem=224 if config.image_size >= 128 else 32, released=released, **shared)


def network_for(config: Config, spec: DataSpec, own: Own = NOTHING) -> Stateful:
    """The network of a config for such data; a whitened first layer is fixed, and not computed yet."""
    net = build_network(config, len(spec.classes), spec.shape[-3], own)
    if config.first_layer == "whitened":
        fix_first_layer(net)
    return net


def load_data(config: Config, root: str | None) -> tuple[Dataset, Dataset]:
    """What a config trains on and what it measures each epoch on.

    These are the training and the test set or, with `validation_samples`, two parts of the training set. They come from
    a folder, or from where `bsnn.data` keeps downloads.
    """
    train = _part(config, "train", root)
    if config.validation_samples:
        # Official speakers of Speech Commands stay apart too; the first part of a file name is the speaker.
        group = config.group or ("1" if config.dataset == "speech_commands" else "")
        if group:
            train, held_out = without_some_groups(train, config.validation_samples, group)
        else:
            train, held_out = without_some_samples(train, config.validation_samples)
    else:
        held_out = load_test_set(config, root)
    if config.train_samples > len(train):
        raise UserError(
            f"train_samples: received {config.train_samples}; expected at most the {len(train)} there are to train "
            "on, or 0 for all of them."
        )
    train = some_samples(train, config.train_samples or len(train))
    if train.kind == "sound" and (settings := build_sound_augmentation(config)):
        train = augmented_sounds(train, settings)
    return train, held_out


def load_test_set(config: Config, root: str | None) -> Dataset:
    """The test set of a config."""
    return _part(config, "test", root)


def load_spec(config: Config, root: str | None) -> DataSpec:
    """What the network of a config must know about its data."""
    return DataSpec.of(_part(config, "train", root))


def load_threshold_set(config: Config, root: str | None) -> Dataset:
    """The sounds that the threshold of `reject` is chosen on: those for validation or, without them, the test set."""
    return _part(config, "val", root)


def _part(config: Config, split: str, root: str | None) -> Dataset:
    size, steps = config.image_size, config.time_steps
    return named(config.dataset, split, root, size=size, time_steps=steps, group=config.group)


def build_augmentation(config: Config, scale: float = 1.0) -> Augmentation:
    """What is done to training batches.

    Args:
        config: The config.
        scale: Size of the images, relative to those that the config counts its pixels in.
    """
    padding, cutout = (pixels and max(round(scale * pixels), 1) for pixels in (config.crop_padding, config.cutout))
    return Augmentation(
        padding,
        config.flip,
        cutout,
        config.autoaugment,
        crop_mode=config.crop_mode,
        alternating_flip=config.alternating_flip,
        mixup=config.mixup,
    )


def build_sound_augmentation(config: Config) -> SoundAugmentation:
    """What is done to training sounds; a network that is to reject some also hears noise and silence alone."""
    fields = {name: getattr(config, name) for name in SOUND_FIELDS if name != "reject"}
    return SoundAugmentation(**fields, background=BACKGROUND if config.reject else 0.0)


def build_optimizers(config: Config, net: nn.Module, own: Own = NOTHING) -> list[Optimizer]:
    """The flip optimizer, if there are binary weights, and one for all other parameters; or your own."""
    rule = own.part("optimizer", config)
    if rule is not None and not inspect.isclass(rule):
        return check_optimizers(rule(net), net)
    flip, parameters = None, list(net.parameters())
    if config.weights == "binary":
        binary, parameters = split_parameters(net)
        settings = dataclasses.asdict(config)
        if keeps_graph(net):
            settings["time_steps"] = 1  # a sequence has one gradient
        flip = rules.build(rules.checked(rule) if rule else rules.find(config.optimizer), binary, settings)
    real = _real_optimizer(config, parameters)
    return [real] if flip is None else [flip, real]


def _real_optimizer(config: Config, parameters: list[nn.Parameter]) -> Optimizer:
    """SGD or AdamW; weights decay, but not BatchNorm, biases and whatever else has one number per channel or less."""
    groups: list[Any] = parameters
    if config.weight_decay:
        decaying = [parameter for parameter in parameters if parameter.dim() > 1]
        others = [parameter for parameter in parameters if parameter.dim() <= 1]
        groups = [
            {"params": part, "weight_decay": config.weight_decay if decays else 0.0, "decays": decays}
            for part, decays in ((decaying, True), (others, False))
            if part
        ]
    # On a GPU one launch for all, which the GPU itself can skip if a gradient is not finite.
    fused = True if parameters and all(parameter.is_cuda for parameter in parameters) else None
    if config.real_optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=0.0, fused=fused)
    momentum, nesterov = config.sgd_momentum, config.nesterov
    return torch.optim.SGD(groups, lr=config.learning_rate, momentum=momentum, nesterov=nesterov, fused=fused)


class Span(NamedTuple):
    """What a schedule reaches over, and how much of it lies behind."""

    epochs: int
    """All of them."""
    past_epochs: int = 0
    past_batches: int = 0


def build_schedules(
    config: Config, optimizers: Sequence[Optimizer], num_batches: int, span: Span | None = None
) -> list[Schedule]:
    """How the settings of the optimizers change, counted in batches.

    Args:
        config: The config.
        optimizers: Flip optimizers and ordinary ones, with the values that the schedules begin with.
        num_batches: Batches per epoch.
        span: By default the epochs of the config.
    """
    span = span or Span(config.epochs)
    total = span.epochs * num_batches
    # By epochs, as batches may have had another size before; 1/√k counts updates.
    past = span.past_epochs * num_batches
    factors = {
        "constant": constant(),
        "step": _from(past, step_decay(config.decay_epochs * num_batches)),
        "cosine": _from(past, cosine(total)),
        "inverse_sqrt": _from(span.past_batches, inverse_sqrt()),
    }
    gamma, beta, beta2 = (
        factors[name] for name in (config.gamma_schedule, config.beta_schedule, config.beta2_schedule)
    )
    rate = cosine(total) if config.learning_rate_schedule == "cosine" else constant()
    if config.warmup:
        rate = warmup(math.ceil(config.warmup * total), rate)
    rate = _from(past, rate)
    schedules = []
    for optimizer in optimizers:
        settings = {"lr": rate}
        if isinstance(optimizer, FlipOptimizer):
            settings = {"gamma": gamma, "one_minus_beta1": beta}
            if "one_minus_beta2" in optimizer.param_groups[0]:
                settings["one_minus_beta2"] = beta2
        schedules.append(Schedule(optimizer, **settings))
    return schedules


def _from(past: int, factor: Callable[[int], float]) -> Callable[[int], float]:
    """A factor whose count begins later."""
    return lambda count: factor(past + count)


def change_settings(schedules: Sequence[Schedule], before: Config, now: Config, time_steps: int) -> None:
    """Prepares optimizers for another stage: their state stays, apart from what they keep for each time step.

    Args:
        schedules: Those of the stage before, which know the values that it began with.
        before: The config of the stage before.
        now: The config of the stage that begins.
        time_steps: How many gradients an update of the new stage has.
    """
    for schedule in schedules:
        optimizer = schedule.optimizer
        if isinstance(optimizer, FlipOptimizer) and optimizer.time_steps != time_steps:
            optimizer.change_time_steps(time_steps)
        for group, initial in zip(optimizer.param_groups, schedule.state_dict()["initial"], strict=True):
            for name, value in initial.items():
                field = "learning_rate" if name == "lr" else name
                new = getattr(now, field)
                group[name] = new if new != getattr(before, field) else value
            if group.get("decays"):
                group["weight_decay"] = now.weight_decay


def build_loss(config: Config, own: Own = NOTHING) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of one time step from its logits and the labels; over a sequence, losses add up to their mean."""
    loss, steps = own.part("loss", config), config.time_steps
    if loss is None:
        settings = {"mse_share": config.mse_share, "label_smoothing": config.label_smoothing}
        return functools.partial(step_loss, time_steps=steps, **settings)
    return lambda logits, labels: loss(logits, labels) / steps
