"""The page itself: HTML text from records of runs, with everything in it that a browser needs."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from bsnn.report.figures import STYLE, line_chart, matrix_chart

_PAGE_STYLE = """
html { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 1180px; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid var(--rule); padding-top: 1rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 1.25rem; }
figure { margin: 0; break-inside: avoid; }
.wide { overflow-x: auto; margin-bottom: 1.5rem; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; white-space: nowrap; vertical-align: top; padding: 0.3rem 0.8rem 0.3rem 0;
  border-bottom: 1px solid var(--rule); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 0.85rem; padding: 0.7rem;
  border: 1px solid var(--rule); border-radius: 4px; }
.summary th { white-space: normal; vertical-align: bottom; }
.summary td:first-child { font-weight: 600; white-space: normal; overflow-wrap: anywhere; min-width: 8rem; }
@media screen and (max-width: 600px) {
  .summary table, .summary tbody { display: block; } .summary thead { display: none; }
  .summary tr { display: grid; grid-template-columns: 1fr 1fr; gap: 0.3rem 1rem; padding: 0.6rem 0;
    border-bottom: 1px solid var(--rule); }
  .summary td, .summary td.number { border: 0; padding: 0; text-align: left; white-space: normal; }
  .summary td:first-child { grid-column: 1 / -1; }
  .summary td:not(:first-child)::before { content: attr(data-head); display: block; color: var(--muted);
    font-size: 0.8rem; line-height: 1.2; } }
code { white-space: nowrap; } .note { color: var(--muted); font-size: 0.9rem; }
.warning { border-left: 3px solid var(--c1); padding-left: 0.6rem; }
@media print { html { font-size: 12px; } body { max-width: none; padding: 0; }
  h2 { break-before: page; border: 0; margin: 0; } details, pre, tr { break-inside: avoid; }
  summary { break-after: avoid; list-style: none; font-size: 1.1rem; margin-top: 1rem; }
  .figures { grid-template-columns: 1fr 1fr; } .settings { columns: 2; }
  .wide { overflow: visible; } details::details-content { content-visibility: visible; } }
"""


_COUNTED, _OF_PROCESS = "memory of training, counted", "peak of the process"
_PROCESS_NOTE = (
    "The peak of the process is that of Python, torch, data and all that ran in it before, such as the earlier runs of "
    "a sweep."
)
_MEMORY_NOTE = (
    "Memory of training is counted tensor by tensor: weights, optimizer state, gradients and activations of an update. "
    + _PROCESS_NOTE
)


class Confusion(NamedTuple):
    """How often samples of each class were taken for each class."""

    classes: tuple[str, ...]
    counts: list[list[int]]
    """By true class, then by predicted class."""


class RunRecord(NamedTuple):
    """All that the page shows of a run."""

    name: str
    config: dict[str, Any]
    history: list[dict[str, Any]]
    """A line an epoch, as in metrics.jsonl."""
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
    body.append(_figures(_curves(dict(zip(names, runs, strict=True)))))
    for name, run in zip(names, runs, strict=True):
        body += [f"<h2>{escape(name if len(runs) > 1 else 'By layer, and how it was made')}</h2>", _section(run)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{STYLE}{_PAGE_STYLE}</style></head>\n"
        f"<body>{''.join(body)}</body></html>\n"
    )


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
                "test accuracy": _percent(last["test_accuracy"]),
                "best epoch's": _percent(max(line["test_accuracy"] for line in run.history)),
                "epochs": f"{last['epoch']} of {config.get('epochs', last['epoch'])}",
                "minutes": f"{sum(line['seconds'] for line in run.history) / 60:.1f}",
                _COUNTED: _megabytes(last["training_bytes"]) if "training_bytes" in last else "",
                _OF_PROCESS: _megabytes(max(line["peak_bytes"] for line in run.history)),
                "T": str(config.get("time_steps", "")),
                "data": config["dataset"],
                "method": method(config),
            }
        )
    # Runs of before it was counted have none.
    heads = [head for head in rows[0] if any(row[head] for row in rows)]
    table = _table(heads, [[row[head] for head in heads] for row in rows], numbers=heads[1:-2], kind="summary")
    return table + f'<p class="note">{_MEMORY_NOTE if _COUNTED in heads else _PROCESS_NOTE}</p>'


def _unfinished(name: str, run: RunRecord) -> str:
    done = run.history[-1]["epoch"]
    epochs = run.config.get("epochs", done)
    if done >= epochs:
        return ""
    why = f"has {done} of {epochs} epochs: it is being trained, was interrupted, or diverged."
    return f'<p class="warning">{escape(name)} {why} With <code>--resume</code> its training goes on from there.</p>'


def method(config: Mapping[str, Any]) -> str:
    """What trained a run, in words.

    Example:
        >>> method({"weights": "binary", "optimizer": "tbso", "gradient": "ottt"})
        'T-BSO, OTTT'
    """
    if "weights" not in config:
        return ""
    rule = {"tbso": "T-BSO", "bso": "BSO", "sigma": "Sigma-BSO"}[config["optimizer"]]
    weights = rule if config["weights"] == "binary" else f"{config['weights']} weights"
    return f"{weights}, {config['gradient'].upper()}"


def _curves(runs: Mapping[str, RunRecord]) -> list[str]:
    """Of all runs together."""

    def chart(
        title: str, key: str, show: Callable[[float], str], *, log_y: bool = False, from_zero: bool = False
    ) -> str:
        lines = {name: [(line["epoch"], line[key]) for line in r.history if key in line] for name, r in runs.items()}
        if not any(lines.values()):
            return ""
        return line_chart(title, lines, x_label="epoch", show=show, log_y=log_y, from_zero=from_zero)

    return [
        chart("test accuracy", "test_accuracy", _percent),
        chart("training accuracy", "train_accuracy", _percent),
        chart("training loss", "train_loss", "{:.3g}".format),
        chart("flips per weight and update", "flip_ratio", _small_percent, log_y=True),
        chart("peak memory of the process so far", "peak_bytes", _megabytes, from_zero=True),
    ]


def _section(run: RunRecord) -> str:
    """Of one run."""
    parts = [f'<p class="note">{escape(note)}</p>' for note in run.notes]
    warnings = [(line["epoch"], text) for line in run.history for text in line["warnings"]]
    parts += [f'<p class="warning">epoch {epoch}: {escape(text)}</p>' for epoch, text in warnings[-5:]]
    figures = [
        _by_layer("flips per weight and update, by layer", run, "flip_ratios", log_y=True),
        _by_layer("firing rate, by layer", run, "firing_rates"),
        _rates_chart(run),
        _confusion_chart(run.confusion),
    ]
    parts.append(_figures(figures))
    parts.append(_layers_table(run))
    parts.append(f"<pre>{escape(chr(10).join(run.commands))}</pre>")
    made_by = ", ".join(f"{key} {value}" for key, value in run.made_by.items() if value)
    rows = [[key, str(value)] for key, value in run.config.items()]
    settings = _table(["field", "value"], rows, kind="settings")
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
    """How learning rate, γ and 1 − β1 decay, each as a part of its first value."""
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
    classes, counts = confusion
    return matrix_chart(
        "confusion matrix of the test samples",
        counts,
        row_names=classes,
        column_names=classes,
        axes=("class", "prediction"),
        by_root=True,
    )


def _layers_table(run: RunRecord) -> str:
    last = run.history[-1]
    rows = [[layer, _small_percent(rate), ""] for layer, rate in last["firing_rates"].items()]
    rows += [[layer, "", _small_percent(ratio)] for layer, ratio in last.get("flip_ratios", {}).items()]
    if not rows:
        return ""
    heads = ["layer", "firing rate", "flips per weight and update"]
    table = _table(heads, rows, numbers=heads[1:])
    return f"<details><summary>layers in the last epoch</summary>{table}</details>"


def _figures(figures: Sequence[str]) -> str:
    return f'<div class="figures">{"".join(f"<figure>{figure}</figure>" for figure in figures if figure)}</div>'


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = (), kind: str = "plain"
) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = [' class="number"' if head in numbers else "" for head in heads]
        # Where there is no room for a table, each cell says what it is.
        kinds = [f'{kind} data-head="{escape(head)}"' for kind, head in zip(kinds, heads, strict=True)]
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', heads)}</tr></thead>"
    return f'<div class="wide {kind}"><table>{head}<tbody>{body}</tbody></table></div>'


def _percent(value: float) -> str:
    return f"{100 * value:.4g} %"


def _small_percent(value: float) -> str:
    return f"{100 * value:.2g} %"


def _megabytes(number: float) -> str:
    return f"{number / 1e6:,.0f} MB" if number >= 1e8 or not number else f"{number / 1e6:.3g} MB"
