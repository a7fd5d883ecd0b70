"""Figure 5: the accuracy of BSO and T-BSO against the number of time steps."""

import statistics

from bsnn.paper._comparison import CONTROLS, FLIP_RULES, ROWS, config_of, order_of_rules, reason, train_rows
from bsnn.paper._target import Findings, Settings
from bsnn.paper._trained import mean_and_spread, setup


def measure(settings: Settings) -> Findings:
    """Trains both rules at each number of time steps, and BSO with a smaller threshold."""
    dataset = "cifar100" if settings.scale == "paper" else "cifar10"
    rows = [row for row in ROWS if row.dataset == dataset and row.method in FLIP_RULES]
    rows += [row for row in CONTROLS if row.dataset == dataset]
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
    stands_in = [] if settings.scale == "paper" else ["CIFAR-10 stands in for the paper's CIFAR-100."]
    findings.notes = [*order_of_rules(points), *stands_in, *reason(settings)]
    return findings
