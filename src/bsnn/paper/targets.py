"""`bsnn reproduce`: the paper's tables, figures and theory, measured again.

Each target writes NAME.json: its tables and figures, the paper's values beside ours, and how it was made.
"""

import json
import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import torch

import bsnn
from bsnn.atomic import write_file
from bsnn.errors import UserError
from bsnn.paper import (
    ablation,
    figure3,
    figure4,
    figure5,
    gradients,
    regret,
    table1,
    table2,
    table3,
    table4,
    table5,
)
from bsnn.paper._target import Findings, Scale, Settings
from bsnn.train.run import git_commit

TARGETS: dict[str, Callable[[Settings], Findings]] = {
    "table1": table1.measure,
    "table2": table2.measure,
    "table3": table3.measure,
    "table4": table4.measure,
    "table5": table5.measure,
    "figure3": figure3.measure,
    "figure4": figure4.measure,
    "figure5": figure5.measure,
    "gradients": gradients.measure,
    "regret": regret.measure,
    "ablation": ablation.measure,
}
"""What can be reproduced, in the order of docs/results.md."""


def reproduce(
    name: str,
    results: Path,
    *,
    scale: Scale = "small",
    data: str | None = None,
    runs: Path,
    time_steps: tuple[int, ...] = (),
) -> dict[str, Any]:
    """Measures a target and writes its result.

    Training runs are kept: a target that was interrupted goes on where it stopped.

    Args:
        name: One of `TARGETS`.
        results: The folder to write the result to, as `NAME.json`.
        scale: `"paper"` for the paper's own, `"small"` for two CPU cores, or `"smoke"`, which only tries the code.
        data: Folder of the data, for targets that do not use the bundled digits.
        runs: Where run directories go.
        time_steps: Numbers of time steps of Figure 5; those of Table 2 if none are given.

    Returns:
        The path, and what was written there.
    """
    if name not in TARGETS:
        raise UserError(f"reproduce: received {name!r}; expected one of {', '.join(TARGETS)}.")
    if time_steps and name != "figure5":
        raise UserError(f"time_steps: received {', '.join(map(str, time_steps))} for {name}; only figure5 takes them.")
    started = time.perf_counter()
    findings = TARGETS[name](Settings(scale, data, runs, time_steps))
    if scale == "smoke":
        findings.notes.append("This scale only tries the code: its numbers and what is said of them mean nothing.")
    result = {
        "name": name,
        "scale": scale,
        **vars(findings),
        "command": f"bsnn reproduce {name}"
        + (f" --scale {scale}" if scale != "small" else "")
        + (" --data DIR" if data else "")
        + (f" --time-steps {','.join(map(str, time_steps))}" if time_steps else ""),
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
    write_file(path, _json(result).encode())
    return {"path": str(path), **result}


def _json(result: dict[str, Any]) -> str:
    """A result as JSON with one line per part, so that a difference between two results can be read."""
    text = json.dumps(result, indent=1, ensure_ascii=False)
    # A list of numbers or words takes one line.
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda match: "[" + re.sub(r",\s+", ", ", match[1]) + "]", text) + "\n"
