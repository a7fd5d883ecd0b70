"""Q-SNN: latent weights binarized by channel, 8-bit membranes, and spikes regulated to a rate of one half (Table 2).

    L = mean over t of CE(o[t]) + 5e-3 · mean over inner layers of (rate − ½)²

The temperature of the sign's derivative rises from 0.1 to 10, by equal factors from epoch to epoch. Weights are those
of `nn/binarized.py`, neurons those of `nn/compared.py`. Ours to choose: the rate of a layer is the mean over its
neurons, the batch and time; inner layers are those behind binary weights; first and last layer are real-valued, as the
size in Table 2 has it (eight bits in Q-SNN's own publication).
"""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bsnn.models.residual import residual
from bsnn.models.vgg import vgg
from bsnn.nn.binarized import ScaledSignConv2d
from bsnn.nn.compared import CountingState
from bsnn.nn.network import ImageNetwork
from bsnn.train.method import Method
from bsnn.train.trainer import Trainer

REGULATION = 5e-3
TEMPERATURES = (0.1, 10.0)


_convolution = functools.partial(ScaledSignConv2d, kernel_size=3, padding=1)


def network(plan: Sequence[int | str], **shared: Any) -> ImageNetwork:
    """A VGG with Q-SNN's binary convolutions; see `vgg` for the arguments."""
    return vgg(plan, convolution=_convolution, **shared)


def residual_network(plan: Sequence[int | str], **shared: Any) -> ImageNetwork:
    """A residual network with Q-SNN's binary convolutions; see `residual` for the arguments."""
    return residual(plan, convolution=_convolution, **shared)


class QSNN(Method):
    """Raises the temperature, and regulates the firing rates."""

    def before_update(self, trainer: Trainer) -> None:
        """Sets the temperature of the epoch."""
        temperature = temperature_at(trainer.epoch, self.config.epochs)
        for module in self.net.modules():
            if isinstance(module, ScaledSignConv2d):
                module.temperature.fill_(temperature)

    def penalty(self, state: Any) -> Tensor:
        """5e-3 times the mean square of the rates' distance from one half."""
        _, *inner = _neurons(state)
        rates = [layer.fired.mean() / self.config.time_steps for layer in inner]
        return REGULATION * (torch.stack(rates) - 0.5).square().mean()


def _neurons(state: Any) -> list[CountingState]:
    """The states of all neurons, in their order."""
    return [state] if isinstance(state, CountingState) else [found for part in state for found in _neurons(part)]


def temperature_at(epoch: int, epochs: int) -> float:
    """The temperature of an epoch, counted from 0.

    Example:
        >>> [round(temperature_at(epoch, 3), 6) for epoch in range(3)]
        [0.1, 1.0, 10.0]
    """
    first, last = TEMPERATURES
    return first * (last / first) ** (epoch / max(epochs - 1, 1))
