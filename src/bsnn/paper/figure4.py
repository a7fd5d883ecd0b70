"""Figure 4: memory against the number of time steps."""

from bsnn.paper._memory import METHODS, bytes_of_v, megabytes, memory, setup
from bsnn.paper._target import Findings, Settings
from bsnn.paper.numbers import FIGURE_4


def measure(settings: Settings) -> Findings:
    """Counts what each method holds at each number of time steps."""
    steps = (1, 2) if settings.scale == "smoke" else (1, 5, 10, 15, 20, 25, 30, 35)
    methods = [method for method in METHODS if method != "OTTT"]
    points = {(m, t): memory(settings, m, t) for m in methods for t in steps}
    findings = Findings("Figure 4: memory against time steps", setup(settings), data=list(points.values()))
    rows = []
    for method in methods:
        first, last = points[method, steps[0]], points[method, steps[-1]]
        paper = FIGURE_4[method]
        rows.append(
            [
                method,
                f"{paper[0]} → {paper[1]} GB",
                f"{paper[1] / paper[0]:.1f}",
                f"{megabytes(first['peak_bytes'])} → {megabytes(last['peak_bytes'])} MB",
                f"{last['peak_bytes'] / first['peak_bytes']:.2f}",
                f"{last['activation_bytes'] / first['activation_bytes']:.2f}",
            ]
        )
    lines = {method: [[t, points[method, t]["peak_bytes"] / 1e6] for t in steps] for method in methods}
    findings.add_lines("peak memory, MB", lines, "time steps")
    columns = [
        "method",
        "paper, T = 1 → 35",
        "growth",
        f"ours, T = {steps[0]} → {steps[-1]}",
        "growth",
        "of activations",
    ]
    findings.add_table("Peak memory of training", columns, rows)
    v_bytes = bytes_of_v(points, steps[-1])
    findings.notes = [
        "What is to be compared is the growth. Activations are all but weights and the optimizers' state: gradients "
        "and transients are among them. A GPU's memory, the paper's measure, also holds the driver's and libraries' "
        "own, which does not grow with T; we count tensors alone.",
        f"T-BSO keeps {v_bytes:,} bytes more than BSO at T = {steps[-1]}, its v; in the paper they are 0.2 GB apart, "
        "which v cannot be.",
    ]
    return findings
