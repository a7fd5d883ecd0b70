"""The loop that measures accuracy, whatever predicts: arrays of NumPy or torch go through it as they are."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from bsnn.errors import UserError


class Accuracy(NamedTuple):
    """The share of samples whose class was predicted, and how many samples there were."""

    accuracy: float
    samples: int


def accuracy(predict: Callable[[Any], Any], batches: Iterable[tuple[Any, Any]]) -> Accuracy:
    """Predicts the class of every sample and compares it with the label.

    Args:
        predict: Called with the inputs of a batch; returns their classes `[B]`.
        batches: Inputs and labels `[B]`.

    Example:
        >>> accuracy(lambda x: x.argmax(1), [(torch.eye(3), torch.tensor([0, 1, 1]))])
        Accuracy(accuracy=0.6666666666666666, samples=3)
    """
    correct = samples = 0
    for inputs, labels in batches:
        correct += int((predict(inputs) == labels).sum())
        samples += len(labels)
    if not samples:
        raise UserError("evaluate: received no samples; expected at least one batch of inputs and labels.")
    return Accuracy(correct / samples, samples)
