"""What a network makes of labeled samples, measured by all processes together, and the memory of a process."""

import resource
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bsnn.data.loader import Loader
from bsnn.online.evaluate import evaluate
from bsnn.train.distributed import World, summed
from bsnn.train.metrics import EpochMetrics, Split
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


def judged(logits: Tensor, labels: Tensor) -> tuple[int, int]:
    """How many samples of a batch got their class, and how many have one.

    Args:
        logits: [B, classes].
        labels: Class indices, [B]; or the share of each class, [B, classes]: the largest counts, and a sample that
            belongs to all classes alike has none.

    Example:
        >>> judged(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([[0.7, 0.3], [0.5, 0.5]]))
        (1, 1)
    """
    if labels.dim() == 1:
        return int((logits.argmax(dim=1) == labels).sum()), len(labels)
    has_class = labels.amax(dim=1) > labels.amin(dim=1)
    return int(((logits.argmax(dim=1) == labels.argmax(dim=1)) & has_class).sum()), int(has_class.sum())


def measured_as(split: Split, found: Measurement) -> EpochMetrics:
    """The part of a line of metrics that says on which samples accuracy and loss were measured."""
    return {f"{split}_accuracy": found.accuracy, f"{split}_loss": found.loss}  # pyright: ignore[reportReturnType]


def peak_bytes_of_process(device: torch.device) -> int:
    """The most memory that this process has held so far: on its GPU, or else on the machine."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()  # which PyTorch keeps, so that it does not shrink
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
