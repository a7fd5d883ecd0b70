"""The page itself: HTML text from the records of runs, with everything in it that a browser needs."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from bsnn.optim.rules import label
from bsnn.report._html import document, figure_grid, table
from bsnn.report.figures import line_chart, matrix_chart
from bsnn.train.effects import is_own
from bsnn.train.fields import written
from bsnn.train.metrics import EpochMetrics, Split

_COUNTED, _OF_PROCESS = "memory of training, counted", "peak of the process"
_PROCESS_NOTE = (
    "The peak of the process includes Python, torch, the data and whatever ran in it before, such as earlier runs of a "
    "sweep."
)
_MEMORY_NOTE = (
    "Memory of training is counted tensor by tensor: the weights, optimizer state, gradients and activations of one "
    "update. " + _PROCESS_NOTE
)


class Confusion(NamedTuple):
    """How often samples of each class were taken for each class."""

    classes: tuple[str, ...]
    counts: list[list[int]]
    """By true class, then by predicted class."""
    split: Split = "test"
    """Which samples they are."""


class RunRecord(NamedTuple):
    """All that the page shows of a run."""

    name: str
    config: dict[str, Any]
    history: Sequence[EpochMetrics]
    """One line per epoch, as in metrics.jsonl."""
    made_by: dict[str, Any]
    """Versions and commit."""
    commands: list[str]
    confusion: Confusion | None
    notes: list[str]


def page(runs: Sequence[RunRecord]) -> str:
    """The page of some runs, as HTML text.

    Example:
        >>> line = {"epoch": 1, "test_accuracy": 0.5, "train_accuracy": 0.5, "train_loss": 1.0, "firing_rates": {}}
        >>> line |= {"seconds": 1.0, "peak_bytes": 10**6, "learning_rate": 0.1, "test_loss": 1.0, "warnings": []}
        >>> run = RunRecord("first", {"dataset": "digits"}, [line], {}, ["bsnn train digits"], None, [])
        >>> page([run]).startswith("<!doctype html>")
        True
    """
    names = _unique([run.name for run in runs])
    title = names[0] if len(runs) == 1 else f"{len(runs)} runs"
    body = [f"<h1>{escape(title)}</h1>", _summary(names, runs)]
    body += [_unfinished(name, run) for name, run in zip(names, runs, strict=True)]
    body.append(figure_grid(_curves(dict(zip(names, runs, strict=True)))))
    for name, run in zip(names, runs, strict=True):
        body += [f"<h2>{escape(name if len(runs) > 1 else 'By layer, and how it was made')}</h2>", _section(run)]
    return document(title, body)


def _unique(names: Sequence[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name} ({number + 1})" for number, name in enumerate(names)]


def _summary(names: Sequence[str], runs: Sequence[RunRecord]) -> str:
    """The main numbers, the most important ones first."""
    rows = []
    for name, run in zip(names, runs, strict=True):
        last, config = run.history[-1], run.config
        rows.append(
            {
                "run": name,
                "test accuracy": _newest(run.history, "test_accuracy"),
                "validation accuracy": _newest(run.history, "validation_accuracy"),
                "epochs": f"{last['epoch']} of {config.get('epochs', last['epoch'])}",
                "minutes": f"{sum(line['seconds'] for line in run.history) / 60:.1f}",
                _COUNTED: _megabytes(last["training_bytes"]) if "training_bytes" in last else "",
                _OF_PROCESS: _megabytes(max(line["peak_bytes"] for line in run.history)),
                "T": str(config.get("time_steps", "")),
                "data": config["dataset"],
                "method": method(config),
            }
        )
    # A column that no run has, such as the memory of runs from before it was counted, is left out.
    heads = [head for head in rows[0] if any(row[head] for row in rows)]
    shown = table(heads, [[row[head] for head in heads] for row in rows], numbers=heads[1:-2], kind="summary")
    return shown + f'<p class="note">{_MEMORY_NOTE if _COUNTED in heads else _PROCESS_NOTE}</p>'


def _newest(history: Sequence[EpochMetrics], key: str) -> str:
    """The last value of an accuracy that was measured, if there is one."""
    return next((_percent(line[key]) for line in reversed(history) if key in line), "")


def _unfinished(name: str, run: RunRecord) -> str:
    done = run.history[-1]["epoch"]
    epochs = run.config.get("epochs", done)
    if done >= epochs:
        return ""
    if "stopped" in run.history[-1]:
        return f'<p class="note">{escape(name)} ended after epoch {done}: {escape(run.history[-1]["stopped"])}.</p>'
    why = f"has {done} of {epochs} epochs: it is being trained, was interrupted, or diverged."
    return f'<p class="warning">{escape(name)} {why} With <code>--resume</code> its training goes on from there.</p>'


def method(config: Mapping[str, Any]) -> str:
    """How a run was trained, in words.

    Example:
        >>> method({"weights": "binary", "optimizer": "tbso", "gradient": "ottt"})
        'T-BSO, OTTT'
    """
    if "weights" not in config:
        return ""
    rule, gradient = config["optimizer"], config["gradient"]
    weights = f"{config['weights']} weights"
    if config["weights"] == "binary":
        # A page about a run does not need the user's own modules.
        weights = rule.rpartition(":")[2].strip("<>") if is_own(rule) else label(rule)
    return f"{weights}, {gradient.rpartition(':')[2] if is_own(gradient) else gradient.upper()}"


def _curves(runs: Mapping[str, RunRecord]) -> list[str]:
    """Charts of all runs together."""

    def chart(
        title: str, key: str, show: Callable[[float], str], *, log_y: bool = False, from_zero: bool = False
    ) -> str:
        lines = {name: [(line["epoch"], line[key]) for line in r.history if key in line] for name, r in runs.items()}
        if not any(lines.values()):
            return ""
        return line_chart(title, lines, x_label="epoch", show=show, log_y=log_y, from_zero=from_zero)

    return [
        chart("validation accuracy", "validation_accuracy", _percent),
        chart("test accuracy", "test_accuracy", _percent),
        chart("training accuracy", "train_accuracy", _percent),
        chart("training loss", "train_loss", "{:.3g}".format),
        chart("flips per weight and update", "flip_ratio", _small_percent, log_y=True),
        chart("peak memory of the process so far", "peak_bytes", _megabytes, from_zero=True),
    ]


def _section(run: RunRecord) -> str:
    """What is shown of each run by itself."""
    parts = [f'<p class="note">{escape(note)}</p>' for note in run.notes]
    warnings = [(line["epoch"], text) for line in run.history for text in line["warnings"]]
    parts += [f'<p class="warning">epoch {epoch}: {escape(text)}</p>' for epoch, text in warnings[-5:]]
    figures = [
        _by_layer("flips per weight and update, by layer", run, "flip_ratios", log_y=True),
        _by_layer("firing rate, by layer", run, "firing_rates"),
        _rates_chart(run),
        _confusion_chart(run.confusion),
    ]
    parts.append(figure_grid(figures))
    parts.append(_layers_table(run))
    parts.append(f"<pre>{escape(chr(10).join(run.commands))}</pre>")
    made_by = ", ".join(f"{key} {value}" for key, value in run.made_by.items() if value)
    rows = [[key, written(value)] for key, value in run.config.items()]
    settings = table(["field", "value"], rows, kind="settings")
    parts.append(f'<details><summary>every setting</summary>{settings}<p class="note">{escape(made_by)}</p></details>')
    return "".join(parts)


def _by_layer(title: str, run: RunRecord, key: str, *, log_y: bool = False) -> str:
    layers = run.history[-1].get(key, {})
    lines = {
        layer: [(line["epoch"], line[key][layer]) for line in run.history if layer in line.get(key, ())]
        for layer in layers
    }
    return line_chart(title, lines, x_label="epoch", show=_small_percent, log_y=log_y) if lines else ""


def _rates_chart(run: RunRecord) -> str:
    """How learning rate, γ and 1 − β1 decay, each relative to its first value."""
    names = {"learning_rate": "learning rate", "gamma": "γ", "one_minus_beta1": "1 − β1"}
    lines = {}
    if len(run.history) == 1:
        return ""
    for key, name in names.items():
        values = [line[key] for line in run.history if key in line]
        if values and values[0]:
            lines[name] = [(n + 1, value / values[0]) for n, value in enumerate(values)]
    title = "schedules, relative to the first epoch"
    return line_chart(title, lines, x_label="epoch", show=_percent, from_zero=True) if lines else ""


def _confusion_chart(confusion: Confusion | None) -> str:
    if confusion is None:
        return ""
    classes, counts, split = confusion
    return matrix_chart(
        f"confusion matrix of the {split} samples",
        counts,
        row_names=classes,
        column_names=classes,
        axes=("class", "prediction"),
        by_root=True,
    )


def _layers_table(run: RunRecord) -> str:
    last = run.history[-1]
    rows = [[layer, _small_percent(rate), ""] for layer, rate in last.get("firing_rates", {}).items()]
    rows += [[layer, "", _small_percent(ratio)] for layer, ratio in last.get("flip_ratios", {}).items()]
    if not rows:
        return ""
    heads = ["layer", "firing rate", "flips per weight and update"]
    shown = table(heads, rows, numbers=heads[1:])
    return f"<details><summary>layers in the last epoch</summary>{shown}</details>"


def _percent(value: float) -> str:
    return f"{100 * value:.4g} %"


def _small_percent(value: float) -> str:
    return f"{100 * value:.2g} %"


def _megabytes(number: float) -> str:
    return f"{number / 1e6:,.0f} MB" if number >= 1e8 or not number else f"{number / 1e6:.3g} MB"
