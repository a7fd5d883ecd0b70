"""The metrics of an epoch: the one schema of metrics.jsonl, and what a person should know about a line of it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict, get_type_hints

from bsnn.errors import UserError

Split = Literal["validation", "test"]
"""Which samples an accuracy is of."""


class EpochMetrics(TypedDict):
    """One line of metrics.jsonl."""

    epoch: int
    """From 1, over all stages."""
    train_loss: float
    train_accuracy: float
    learning_rate: float
    """Of the first optimizer of real-valued parameters."""
    seconds: float
    """Spent on training, without evaluation."""
    processor_seconds: NotRequired[float]
    """The same in time of the processors, by all threads of all processes; older runs do not have it."""
    peak_bytes: int
    """The most memory that the process has held so far."""
    warnings: list[str]
    stage: NotRequired[int]
    """From 1, of a run with several. Accuracy and loss are measured with its time steps and image size."""
    validation_accuracy: NotRequired[float]
    """With held-out samples; of every epoch that was measured, as all that follows."""
    validation_loss: NotRequired[float]
    test_accuracy: NotRequired[float]
    """With held-out samples, only of the one epoch that was selected."""
    test_loss: NotRequired[float]
    firing_rates: NotRequired[dict[str, float]]
    """Share of the neurons that fired per time step, by layer."""
    reject_below: NotRequired[float]
    """Of the selected epoch, if the config says `reject`: see `bsnn.train.rejection`."""
    stopped: NotRequired[str]
    """Why training ended after this epoch, if it ended before its time."""
    training_bytes: NotRequired[int]
    """The most that the first two updates held, of each stage so far, counted tensor by tensor."""
    gamma: NotRequired[float]
    """With binary weights, as all that follows."""
    one_minus_beta1: NotRequired[float]
    flip_ratio: NotRequired[float]
    """Share of the weights that flipped per update."""
    flip_ratios: NotRequired[dict[str, float]]
    """The same by parameter."""


def check_metrics(line: Any, place: str) -> EpochMetrics:
    """Refuses what is not a line of metrics.

    Args:
        line: What was read.
        place: Where from, for the message.
    """
    if not isinstance(line, dict):
        raise UserError(f"{place}: received {line!r}; expected an epoch, as `bsnn train` writes it.")
    hints = get_type_hints(EpochMetrics)
    wrong = {name for name in EpochMetrics.__required_keys__ if name not in line}
    wrong |= {name for name, kind in hints.items() if name in line and not _is(kind, line[name])}
    if wrong:
        names = ", ".join(name for name in hints if name in wrong)
        raise UserError(
            f"{place}: received an epoch without a proper {names}; expected what `bsnn train` writes. Restore the "
            "file, or leave this run out."
        )
    return line  # pyright: ignore[reportReturnType]


def _is(kind: Any, value: Any) -> bool:
    if kind in (int, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind in (str, list[str]):
        return isinstance(value, str if kind is str else list)
    return isinstance(value, dict) and all(isinstance(number, int | float) for number in value.values())


def warnings_of(line: EpochMetrics, history: Sequence[EpochMetrics]) -> list[str]:
    """What a person should know about an epoch: dead or saturated layers, flips that stop or grow."""
    found = []
    for name, rate in line.get("firing_rates", {}).items():
        if rate < 1e-4:
            found.append(f"layer {name} hardly ever fires ({rate:.2%})")
        elif rate > 0.99:
            found.append(f"layer {name} fires nearly always ({rate:.2%})")
    if "flip_ratios" not in line or "flip_ratio" not in line or "one_minus_beta1" not in line:
        return found
    annealed = history and line["one_minus_beta1"] < 0.02 * history[0].get("one_minus_beta1", 0.0)
    for name, ratio in line["flip_ratios"].items():
        if ratio == 0 and not annealed:
            found.append(f"the weights of {name} have stopped flipping")
    before = [earlier.get("flip_ratio", 0.0) for earlier in history[-2:] if _stage(earlier) == _stage(line)]
    if len(before) == 2 and line["flip_ratio"] > 1.5 * before[1] > 1.5**2 * before[0]:
        found.append(
            f"flips grow: {line['flip_ratio']:.2%} of the weights per update; anneal 1 − β1, or start it lower"
        )
    return found


def _stage(line: EpochMetrics) -> int:
    return line.get("stage", 1)


def accuracy_on(split: Split, line: EpochMetrics) -> float | None:
    """An epoch's accuracy on validation or test samples, if it was measured."""
    return line.get(f"{split}_accuracy")  # pyright: ignore[reportReturnType]


@dataclass
class Tally:
    """What adds up over an epoch, over all processes."""

    loss: float = 0.0
    seen: float = 0
    correct: float = 0
    judged: float = 0
    """Samples that have a class."""
    seconds: float = 0.0
    processor_seconds: float = 0.0
    flips: list[int] = field(default_factory=list)
    """By binary parameter."""
    flip_updates: int = 0
    training_bytes: int = 0
    """The most that the first two updates held, of each stage so far."""

    @property
    def accuracy(self) -> float:
        """Share of the samples with a class that got it."""
        return self.correct / max(self.judged, 1)

    def add_time(self, since: float) -> float:
        """Adds the time since a reading of `time.perf_counter`; returns a new one."""
        now = time.perf_counter()
        self.seconds += now - since
        return now

    def add(self, loss: float, seen: float, correct: float, judged: float, processor_seconds: float) -> None:
        """Adds the sums of a batch."""
        self.loss, self.seen = self.loss + loss, self.seen + seen
        self.correct, self.judged = self.correct + correct, self.judged + judged
        self.processor_seconds += processor_seconds
