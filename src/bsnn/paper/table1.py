"""Table 1: the memory complexity of training methods, and what it comes to."""

from bsnn.paper._memory import METHODS, bytes_of_v, megabytes, memory, setup
from bsnn.paper._target import Findings, Settings
from bsnn.paper.numbers import TABLE_1


def measure(settings: Settings) -> Findings:
    """Counts what each method holds at few and at more time steps."""
    steps = (1, 2) if settings.scale == "smoke" else (1, 8)
    points = {(m, t): memory(settings, m, t) for m in METHODS for t in steps}
    findings = Findings("Table 1: memory of training", setup(settings), data=list(points.values()))
    rows = []
    for method, (weights, state) in TABLE_1.items():
        first, last = (points[method, t] for t in steps)
        held = [point["peak_bytes"] - point["weight_bytes"] for point in (first, last)]
        growth = f"{held[1] / held[0]:.2f}"
        rows.append([method, weights, megabytes(first["weight_bytes"]), state, *map(megabytes, held), growth])
    columns = ["method", "weights, paper", "weights, MB", "state, paper", *(f"state at T = {t}, MB" for t in steps)]
    findings.add_table("n neurons a layer, L layers, T time steps", [*columns, "growth"], rows)
    v_bytes = bytes_of_v(points, steps[-1])
    findings.notes = [
        "Weights count the real-valued first convolution and classifier too; BPTT and OTTT hold latent weights. State "
        "is everything else at the peak: momentum, gradients, activations, traces.",
        "The paper gives orders and no numbers, and ours follow them: only BPTT's state grows with T. T-BSO's term LT, "
        f"a v for each layer and time step, is {v_bytes:,} bytes here at T = {steps[-1]}.",
    ]
    return findings
