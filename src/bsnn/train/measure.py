"""What a network makes of labeled samples, measured by all processes together."""

from typing import NamedTuple

import numpy as np
from torch import nn

from bsnn.data.loader import Loader
from bsnn.online.evaluate import evaluate
from bsnn.train.distributed import World, summed
from bsnn.train.own import gradient_rules


class Measurement(NamedTuple):
    """Over all samples of a set, and over all processes."""

    accuracy: float
    loss: float
    """Cross-entropy of the logits' mean over time."""
    samples: int
    firing_rates: dict[str, float]
    """Share of the neurons that fired per time step, by layer."""
    confusion: list[list[int]]
    """Samples by true class, then by predicted class."""


def measure(net: nn.Module, loader: Loader, time_steps: int | None, world: World) -> Measurement:
    """Measures a network on all samples of a loader's data set.

    Args:
        net: The network.
        loader: Gives this process its part of the samples.
        time_steps: How often to show a still batch; None for events.
        world: Which of how many processes this is.
    """
    names, side = list(gradient_rules(net)), len(loader.dataset.classes)
    numbers = [0.0] * (1 + len(names) + side**2)
    if world.rank < len(loader.dataset):  # else it has no sample of its own
        found = evaluate(net, loader.ordered(), time_steps)
        rates = [found.firing_rates.get(name, 0.0) * found.samples for name in names]
        numbers = [found.total_loss, *rates, *found.confusion.view(-1).tolist()]
    loss, *numbers = summed(numbers, world)
    rates, confusion = numbers[: len(names)], np.array(numbers[len(names) :], np.int64).reshape(side, side)
    samples = int(confusion.sum())
    return Measurement(
        accuracy=int(confusion.trace()) / samples,
        loss=loss / samples,
        samples=samples,
        firing_rates={name: rate / samples for name, rate in zip(names, rates, strict=True)},
        confusion=confusion.tolist(),
    )
