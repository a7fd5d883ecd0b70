"""`bsnn reproduce`: the paper's tables, figures and theory, measured again.

Each target writes NAME.json, with its tables and figures, the paper's values beside ours, and how it was made.
`document` turns all of them into one page of Markdown with pictures.
"""

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

import bsnn
from bsnn.atomic import write_file
from bsnn.errors import UserError
from bsnn.paper import experiments, gradients, memory, regret
from bsnn.paper.document import document, result_text
from bsnn.paper.target import Outcome, Scale, Settings
from bsnn.train.run import git_commit

__all__ = ["TARGETS", "document", "reproduce"]

TARGETS: dict[str, Callable[[Settings], Outcome]] = {
    "table1": memory.table1,
    "table2": experiments.table2,
    "table3": experiments.table3,
    "table4": experiments.table4,
    "table5": experiments.table5,
    "figure3": gradients.figure3,
    "figure4": memory.figure4,
    "figure5": experiments.figure5,
    "gradients": gradients.microscope,
    "regret": regret.regret_bounds,
    "ablation": experiments.ablation,
}
"""What can be reproduced, in the order of the page."""


def reproduce(
    name: str, results: Path, *, scale: Scale = "small", data: str | None = None, runs: Path
) -> dict[str, Any]:
    """Runs a target and writes its result.

    Trained runs are kept: a target that was interrupted goes on where it stopped.

    Args:
        name: One of `TARGETS`.
        results: The folder of results.
        scale: The paper's own, a small one for two CPU cores, or smoke, which only tries the code.
        data: Folder of the data, for targets that are not on the bundled digits.
        runs: Where run directories go.
    """
    if name not in TARGETS:
        raise UserError(f"reproduce: received {name!r}; expected one of {', '.join(TARGETS)}, document.")
    started = time.perf_counter()
    outcome = TARGETS[name](Settings(scale, data, runs))
    if scale == "smoke":
        outcome.notes.append("This scale only tries the code: its numbers and what is said of them mean nothing.")
    result = {
        "name": name,
        "scale": scale,
        **vars(outcome),
        "command": f"bsnn reproduce {name}"
        + (f" --scale {scale}" if scale != "small" else "")
        + (" --data DIR" if data else ""),
        "seconds": round(time.perf_counter() - started, 1),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s)",
        "versions": {
            "bsnn": bsnn.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
        "git_commit": git_commit(),
    }
    path = results / f"{name}.json"
    results.mkdir(parents=True, exist_ok=True)
    write_file(path, result_text(result).encode())
    return {"path": str(path), **result}
