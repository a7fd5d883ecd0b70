"""Which epoch of a run is its result, and whether the run has come to its end."""

from collections.abc import Sequence

from bsnn.data.dataset import Kind
from bsnn.train.config import Config
from bsnn.train.metrics import EpochMetrics, Split, accuracy_on


def best_epoch(config: Config, history: Sequence[EpochMetrics]) -> EpochMetrics | None:
    """The epoch of `best.ckpt`: the first of those with the highest accuracy on what there is to choose by.

    That is the held-out samples or, if the config says so in the open, the test set. Otherwise there is no best epoch.
    Of a run with several stages, only the epochs of the last stage that it has reached are compared: earlier ones are
    measured with other time steps or images.

    Example:
        >>> history = [{"epoch": 1, "test_accuracy": 0.5}, {"epoch": 2}, {"epoch": 3, "test_accuracy": 0.25}]
        >>> best_epoch(Config(select="test"), history)["epoch"], best_epoch(Config(), history)
        (1, None)
    """
    split: Split | None = "validation" if config.validation_samples else "test" if config.select == "test" else None
    reached = [line for line in history if line.get("stage") == history[-1].get("stage")]
    measured = [line for line in reached if split and accuracy_on(split, line) is not None]
    return max(measured, key=lambda line: accuracy_on(split or "test", line) or 0.0, default=None)


def selected_epoch(config: Config, history: Sequence[EpochMetrics]) -> EpochMetrics:
    """The epoch whose network is the result of a run."""
    line = history[-1] if config.select == "last" else best_epoch(config, history)
    assert line is not None, "the last epoch is always measured"
    return line


def why_stopped(history: Sequence[EpochMetrics]) -> str | None:
    """Why a run has ended before its time, if it has."""
    return history[-1].get("stopped") if history else None


def is_trained(config: Config, history: Sequence[EpochMetrics]) -> bool:
    """Whether there is no epoch to come."""
    return len(history) >= config.epochs or why_stopped(history) is not None


def is_finished(config: Config, history: Sequence[EpochMetrics], kind: Kind = "image") -> bool:
    """Whether nothing is left to do: training has ended, and what is measured after it was.

    Args:
        config: The config of the run.
        history: Its epochs so far.
        kind: What its samples are.
    """
    return is_trained(config, history) and not missing(config, selected_epoch(config, history), kind)


def missing(config: Config, line: EpochMetrics, kind: Kind) -> list[str]:
    """Which of the metrics of the selected epoch that are measured when training has ended are still to come."""
    wanted = ["test_accuracy"] if config.validation_samples and config.final_test else []
    wanted += ["reject_below"] if has_threshold(config, kind) else []
    return [name for name in wanted if name not in line]


def has_threshold(config: Config, kind: Kind) -> bool:
    """Whether a finished run has a threshold below which its model file says `none of these`."""
    return config.reject > 0 and kind == "sound"
