"""Predicting and measuring: summed logits, accuracy, firing rates."""

import itertools
import numbers
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bsnn.errors import UserError
from bsnn.kernels.torch_internals import uncompiled, uncompiled_calls
from bsnn.nn.fused import recycling_state
from bsnn.nn.neuron import Neuron, SpikeCount, Stateful, evaluating
from bsnn.nn.norm import estimating_statistics
from bsnn.nn.trace import as_output
from bsnn.online.step_statistics import StepStatistics


def over_time(inputs: Tensor, time_steps: int | None) -> Iterable[Tensor]:
    """The frames of a sequence: a still input `time_steps` times, or with None the first axis of `inputs`.

    Example:
        >>> len(list(over_time(torch.zeros(2, 3), time_steps=4))), len(list(over_time(torch.zeros(5, 2), None)))
        (4, 5)
    """
    if time_steps is None:
        return inputs
    if not isinstance(time_steps, numbers.Integral) or time_steps < 1:
        raise UserError(f"time_steps: received {time_steps!r}; expected a whole number, at least 1.")
    return itertools.repeat(inputs, time_steps)


@torch.no_grad()
def predict(
    net: nn.Module, inputs: Tensor, time_steps: int | None, *, step_statistics: StepStatistics | None = None
) -> Tensor:
    """Logits summed over time, in whatever mode the network is; spikes, if the network ends in neurons.

    Args:
        net: Called as `logits, state = net(frame, state)`.
        inputs: A still batch, or with `time_steps=None` frames `[T, B, ...]`.
        time_steps: How often to show a still batch.
        step_statistics: BatchNorm's statistics of each time step, instead of one set for all.

    Example:
        >>> net = bsnn.models.vgg((8, 8), in_channels=1).eval()
        >>> predict(net, torch.zeros(2, 1, 8, 8), time_steps=4).argmax(dim=1).shape
        torch.Size([2])
    """
    total, state = None, None
    try:
        with recycling_state(net):
            for t, frame in enumerate(over_time(inputs, time_steps)):
                if step_statistics is not None:
                    step_statistics.use(t)
                output, state = net(frame, state)
                logits = as_output(output)
                total = logits if total is None else total + logits
    finally:
        if step_statistics is not None:
            step_statistics.restore()
    if total is None:
        raise UserError(f"predict: received frames of shape {tuple(inputs.shape)}; expected at least one.")
    return total


class FiringRates:
    """Shares of neurons that fired, by the name of their layer in the network."""

    def __init__(self, counts: dict[str, SpikeCount]) -> None:
        self._counts = counts

    def by_layer(self) -> dict[str, float]:
        """Share of neurons that fired, by layer; layers that have not run are left out."""
        rates = {name: count.rate for name, count in self._counts.items()}
        return {name: rate for name, rate in rates.items() if rate is not None}


@contextmanager
def counting_spikes(net: nn.Module) -> Iterator[FiringRates]:
    """Counts spikes by layer of every forward pass within it, in training or evaluation.

    A compiled network runs as it was before it was compiled, with the same spikes: compiled code knows no new hooks.

    Example:
        >>> net = bsnn.models.vgg((8, 8), in_channels=1).eval()
        >>> with counting_spikes(net) as rates:
        ...     _ = predict(net, torch.zeros(2, 1, 8, 8), time_steps=4)
        >>> rates.by_layer()["lif1"]
        0.0
    """
    layers = {name: module for name, module in uncompiled(net).named_modules() if isinstance(module, Neuron)}
    counts = {name: SpikeCount() for name in layers}
    handles = [module.register_forward_hook(counts[name]) for name, module in layers.items()]
    try:
        with uncompiled_calls():
            yield FiringRates(counts)
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def estimate_statistics(
    net: nn.Module, batches: Iterable[Tensor], time_steps: int | None, *, layer_by_layer: bool = False
) -> None:
    """Estimates BatchNorm's statistics anew from training inputs, because flips outrun running averages.

    Args:
        net: Called as `logits, state = net(frame, state)`.
        batches: Inputs, as `predict` takes them.
        time_steps: How often to show a still batch; None for inputs `[T, B, ...]`.
        layer_by_layer: Whether the network was trained so, with statistics of whole sequences (`bptt_update`).
    """
    with estimating_statistics(net):
        for inputs in batches:
            if layer_by_layer and isinstance(net, Stateful):
                net.sequence(list(over_time(inputs, time_steps)), None)
            else:
                predict(net, inputs, time_steps)


class Evaluation(NamedTuple):
    """What a network makes of labeled samples."""

    confusion: Tensor
    """Samples by true class, then by predicted class."""
    total_loss: float
    """Cross-entropy of the logits' mean over time, summed over samples."""
    firing_rates: dict[str, float]
    """Share of the neurons that fired per time step, by layer."""

    @property
    def samples(self) -> int:
        """How many there were."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Share of the samples whose class was found."""
        return int(self.confusion.trace()) / self.samples

    @property
    def loss(self) -> float:
        """The mean over samples."""
        return self.total_loss / self.samples


@torch.no_grad()
def evaluate(
    net: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    time_steps: int | None,
    *,
    step_statistics: StepStatistics | None = None,
) -> Evaluation:
    """Measures the predictions by summed logits, in evaluation mode; the mode is restored.

    While weights still flip, call `estimate_statistics` first.

    Args:
        net: Called as `logits, state = net(frame, state)`.
        batches: Inputs, and labels `[B]`, each the number of a class.
        time_steps: How often to show a still batch; None for inputs `[T, B, ...]`.
        step_statistics: BatchNorm's statistics of each time step, instead of one set for all.

    Example:
        >>> net = bsnn.models.vgg((8, 8), in_channels=1)
        >>> x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> estimate_statistics(net, [x], time_steps=4)
        >>> evaluate(net, [(x, y)], time_steps=4).samples
        4
    """
    total_loss, confusion = 0.0, None
    with evaluating(net), counting_spikes(net) as rates:
        for inputs, labels in batches:
            steps = len(inputs) if time_steps is None else time_steps
            logits = predict(net, inputs, time_steps, step_statistics=step_statistics)
            labels = _class_indices(labels, logits)
            classes, guesses = logits.shape[1], logits.argmax(dim=1)
            pairs = torch.bincount((labels * classes + guesses).cpu(), minlength=classes**2).view(classes, classes)
            confusion = pairs if confusion is None else confusion + pairs
            total_loss += float(F.cross_entropy(logits / steps, labels, reduction="sum"))
    if confusion is None:
        raise UserError("evaluate: received no samples; expected at least one batch of inputs and labels.")
    return Evaluation(confusion, total_loss, rates.by_layer())


def _class_indices(labels: Tensor, logits: Tensor) -> Tensor:
    """Labels in a type that can number pairs of classes; refuses any that do not name a class of the logits."""
    if logits.dim() != 2:
        raise UserError(f"evaluate: the network's output has shape {tuple(logits.shape)}; expected [batch, classes].")
    if labels.shape != logits.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        raise UserError(
            f"evaluate: received labels of shape {tuple(labels.shape)}, {labels.dtype}, for {len(logits)} samples; "
            f"expected class indices [batch], of shape ({len(logits)},), such as torch.int64."
        )
    wrong = labels[(labels < 0) | (labels >= logits.shape[1])]
    if len(wrong):
        raise UserError(
            f"evaluate: received the label {int(wrong[0])} for a network with {logits.shape[1]} outputs; expected 0 to "
            f"{logits.shape[1] - 1}."
        )
    return labels.long()
