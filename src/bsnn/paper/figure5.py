"""Figure 5: the accuracy of BSO and T-BSO against the number of time steps."""

import statistics

from bsnn.data.finder import find
from bsnn.errors import UserError
from bsnn.paper._comparison import CONTROLS, FLIP_RULES, ROWS, SCALE, Row, config_of, order_of_rules, train_rows
from bsnn.paper._target import Findings, Settings
from bsnn.paper._trained import mean_and_spread, setup

_PUBLISHED = "γ, β2 and learning rates are the paper's; Table 2 has both rules with a γ chosen on held-out images."


def measure(settings: Settings) -> Findings:
    """Trains both rules at each number of time steps, and BSO with a smaller threshold."""
    dataset = _dataset(settings)
    rows = [row for row in ROWS if row.dataset == dataset and row.method in FLIP_RULES]
    rows += [row for row in CONTROLS if row.dataset == dataset and settings.scale != "paper"]
    if settings.time_steps:
        rows = [_at(rows, method, steps) for method in FLIP_RULES for steps in settings.time_steps]
    points = train_rows(settings, sorted(rows, key=lambda row: row.time_steps))
    paper = {(row.method, row.time_steps): row.accuracy for row in ROWS if row.dataset == "cifar100"}
    findings = Findings(
        "Figure 5: accuracy against time steps",
        setup(settings, config_of(settings, rows[0]), "CIFAR-100, VGG-11, 400 epochs; its values are Table 2's"),
        data=points,
    )
    shown, lines, bars = [], {}, {}
    for point in points:
        method, steps = point["method"], point["time_steps"]
        shown.append([method, steps, paper.get((method, steps)), mean_and_spread(point["accuracies"])])
        percents = [100 * accuracy for accuracy in point["accuracies"] if accuracy is not None]
        if percents:
            lines.setdefault(method, []).append([steps, statistics.mean(percents)])
            bars.setdefault(method, []).append([steps, min(percents), max(percents)])
    findings.add_table("Test accuracy, %", ["method", "T", "paper, CIFAR-100", "ours"], shown)
    findings.add_lines("test accuracy, %, mean and range", lines, "time steps", bars=bars)
    findings.notes = order_of_rules(points)
    if settings.scale != "paper":
        findings.notes += ["CIFAR-10 stands in for the paper's CIFAR-100.", SCALE, _PUBLISHED]
    return findings


def _dataset(settings: Settings) -> str:
    """CIFAR-100 at the paper's scale, or CIFAR-10 if that is what is in the folder; CIFAR-10 below it."""
    if settings.scale != "paper":
        return "cifar10"
    name = "cifar100" if settings.data is None else find(settings.data).name
    if name not in ("cifar10", "cifar100"):
        raise UserError(f"--data: {settings.data} holds {name}; expected cifar100, as in Figure 5, or cifar10.")
    return name


def _at(rows: list[Row], method: str, time_steps: int) -> Row:
    """A row of Table 2, or the same at another T, which the paper does not have."""
    known = [row for row in rows if row.method == method]
    found = [row for row in known if row.time_steps == time_steps]
    return found[0] if found else known[0]._replace(time_steps=time_steps, megabytes=None, accuracy=None)
