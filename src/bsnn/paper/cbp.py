"""CBP: a trained network is quantized by constrained backpropagation, a method of Lagrange multipliers (Table 2).

    L = CE + Σ λ · cs(w)        weights are a·sign(w), a = mean|w| of each layer, fixed (`nn/binarized.py`)

λ, one per weight, begins at 0 and takes one step of Adam upward at the start and at each of its updates. Such an update
comes when the Lagrangian of a round is not below that of the round before, or after 20 rounds; then g grows, by 1 below
10 and by 10 from there, and the learning rate is divided by ten at g = 20. Each step clips every gradient to
[−1, 1] and clamps the weights to ±1. A round is an epoch, or in a run of fewer than 50 a hundredth of the run.

On CIFAR the trained network is a VGG-16 with rectifiers that is converted first (`conversion`); on DVS-CIFAR10 and
ImageNet it is a SEW-ResNet. Ours to choose: how those two are trained beforehand, the surrogate of the converted
network, that gradients are clipped one by one, and that the loss is that of the mean output.
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bsnn.errors import UserError
from bsnn.models.basic import basic_resnet, wide_7b
from bsnn.models.vgg import vgg
from bsnn.nn.binarized import ConstrainedConv2d, constraint
from bsnn.nn.compared import Rectifier
from bsnn.nn.network import ImageNetwork, Sequential
from bsnn.nn.neuron import Neuron
from bsnn.paper.conversion import convert
from bsnn.train.config import Config
from bsnn.train.method import Method
from bsnn.train.trainer import Trainer

_PATIENCE = 20


def vgg16(plan: Sequence[int | str], neuron: Neuron, **shared: Any) -> ImageNetwork:
    """A VGG without BatchNorm; with rectifiers for neurons, it has dropout of 0.25. See `vgg` for the arguments."""
    net = vgg(
        plan,
        neuron=neuron,
        convolution=functools.partial(ConstrainedConv2d, kernel_size=3, padding=1, bias=True),
        normalized=False,
        dropout=0.25 if isinstance(neuron, Rectifier) else 0.0,
        **shared,
    )
    # torch's own initialization lets the activities of a network this deep die out.
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            assert module.bias is not None
            nn.init.zeros_(module.bias)
    return net


def sew_resnet18(**shared: Any) -> ImageNetwork:
    """SEW-ResNet-18 for ImageNet; see `basic_resnet` for the arguments."""
    return basic_resnet(stem=224, convolution=ConstrainedConv2d, spikes_added=True, **shared)


def conv16fc1(image_size: int, **shared: Any) -> ImageNetwork:
    """16Conv1FC, which is SEW's Wide-7B-Net, with fewer blocks for images under 128 × 128; see `wide_7b`."""
    return wide_7b(blocks=min(7, image_size.bit_length() - 1), convolution=ConstrainedConv2d, **shared)


class CBP(Method):
    """Constrains the weights of a trained network; `init_from` says which."""

    rate = 1e-3
    """Of Adam, on the multipliers."""

    def __init__(self, net: Sequential, config: Config) -> None:
        super().__init__(net, config)
        self.layers = [module for module in net.modules() if isinstance(module, ConstrainedConv2d)]
        if not self.layers:
            raise UserError(f"method: {config.model} has no weights to constrain; expected ConstrainedConv2d layers.")
        self.multipliers = [torch.zeros_like(layer.weight, requires_grad=True) for layer in self.layers]
        self.adam = torch.optim.Adam(self.multipliers, lr=self.rate, maximize=True)
        for parameter in net.parameters():
            parameter.register_post_accumulate_grad_hook(_clip)
        self.g, self.age, self.total, self.batches = 1, 0, 0.0, 0
        self.before: float | None = None

    def start(self, trainer: Trainer) -> None:
        """Fixes a, and takes the first step of λ."""
        for layer in self.layers:
            layer.constrain()
        self._raise_multipliers()

    def penalty(self, state: Any) -> Tensor:
        """Σ λ · cs(w)."""
        return torch.stack(
            [
                (multiplier.detach() * constraint(layer.weight, layer.scale, self.g)).sum()
                for layer, multiplier in zip(self.layers, self.multipliers, strict=True)
            ]
        ).sum()

    @torch.no_grad()
    def after_update(self, trainer: Trainer, loss: float) -> None:
        """Clamps the weights; at the end of a round, decides about λ."""
        for layer in self.layers:
            layer.weight.clamp_(-1, 1)
        self.total, self.batches = self.total + loss, self.batches + 1
        if self.batches % round_batches(self.config.epochs, len(trainer.train_loader)) == 0:
            self._end_round(trainer)

    def _end_round(self, trainer: Trainer) -> None:
        self.age += 1
        if (self.before is not None and self.total >= self.before) or self.age >= _PATIENCE:
            self._raise_multipliers()
            self.g, self.age = self.g + (1 if self.g < 10 else 10), 0
            if self.g == 20:
                for schedule in trainer.schedules:
                    schedule.scale("lr", 0.1)
        self.before, self.total = self.total, 0.0

    def _raise_multipliers(self) -> None:
        """One step of Adam, whose gradient is cs(w)."""
        for layer, multiplier in zip(self.layers, self.multipliers, strict=True):
            multiplier.grad = constraint(layer.weight.detach(), layer.scale, self.g)
        self.adam.step()

    def state_dict(self) -> dict[str, Any]:
        """λ, its optimizer, and where the rounds stand."""
        numbers = {name: getattr(self, name) for name in ("g", "age", "total", "batches", "before")}
        return {**numbers, "multipliers": [m.detach() for m in self.multipliers], "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Method`."""
        for name in ("g", "age", "total", "batches", "before"):
            setattr(self, name, state[name])
        for multiplier, saved in zip(self.multipliers, state["multipliers"], strict=True):
            multiplier.data.copy_(saved)
        self.adam.load_state_dict(state["adam"])


def _clip(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-1, 1)


class EventCBP(CBP):
    """CBP with the larger rate of λ that it has on DVS-CIFAR10."""

    rate = 0.01


class ConvertedCBP(CBP):
    """Converts a network that was trained with rectifiers, and then constrains its weights."""

    def start(self, trainer: Trainer) -> None:
        """Converts with the first batch, and starts as CBP does."""
        if trainer.world.size > 1:
            raise UserError(
                "method: conversion needs one process, because each sees other samples; expected no torchrun."
            )
        assert isinstance(self.net, Sequential)
        inputs, _ = next(iter(trainer.train_loader.epoch(0, mixed=False)))
        convert(self.net, inputs, self.config.time_steps)
        super().start(trainer)


class ShortConvertedCBP(ConvertedCBP):
    """For runs of some hundred updates, in which λ has to rise faster to bring the weights to ±a."""

    rate = 0.01


def round_batches(epochs: int, batches_per_epoch: int) -> int:
    """The batches of a round.

    Example:
        >>> round_batches(100, 391), round_batches(2, 160)
        (391, 3)
    """
    return batches_per_epoch if epochs >= 50 else max(epochs * batches_per_epoch // 100, 1)
