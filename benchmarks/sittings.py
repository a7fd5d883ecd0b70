"""A long training in many sittings, each of which ends with kill -9, wherever the run is.

    python benchmarks/sittings.py RECIPE --out RUN [--data DIR] [--minutes 15] [--FIELD VALUE ...]

Two processes of one thread each train under torchrun, with --resume. After `--minutes` they are killed, and the next
sitting begins. If the script itself is stopped, it goes on when it is started again with the same words. Other options
are those of `bsnn train`. Writes results/sittings.json after each sitting: how far the run is, its accuracies, and how
often it was started.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from survival import TORCHRUN, kill_all, newest_update

import bsnn
from bsnn.atomic import write_file
from bsnn.train.config import config_of_run
from bsnn.train.fields import written

RESULTS = Path(__file__).parent / "results" / "sittings.json"


def sitting(arguments: list[str], minutes: float) -> int | None:
    """Trains until it ends, and returns its status, or until the time is over, and kills it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "THP_MEM_ALLOC_ENABLE": "1"}
    process = subprocess.Popen([sys.executable, *TORCHRUN, "-m", "bsnn", "train", *arguments], env=environment)
    try:
        return process.wait(60 * minutes)
    except subprocess.TimeoutExpired:
        return None
    finally:
        kill_all(process)


def saved(run: Path) -> int:
    """How far the checkpoints of a run and of its teacher are."""
    return newest_update(run) + newest_update(run / "teacher")


def progress(run: Path) -> dict[str, Any]:
    """How far a run is."""
    config = config_of_run(run)
    assert config is not None
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 2 processes with 1 thread each",
        "versions": {"bsnn": bsnn.__version__, "python": platform.python_version(), "torch": torch.__version__},
        "time_steps": config.time_steps,
        "stages": written(config.stages),
        "seed": config.seed,
        "epochs": config.epochs,
        "epochs_done": len(lines),
        # Each start opens a file of its own there.
        "starts": len(list((run / "tensorboard").glob("events.*"))),
        # What was computed after the last checkpoint of a sitting is not counted.
        "processor_minutes": round(sum(line["processor_seconds"] for line in lines) / 60, 1),
        "minutes": round(sum(line["seconds"] for line in lines) / 60, 1),
        "accuracies": [
            {key: line[key] for key in ("epoch", "stage", "train_accuracy", "test_accuracy") if key in line}
            for line in lines
            if "test_accuracy" in line
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("recipe")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--result", type=Path, default=RESULTS)
    options, fields = parser.parse_known_args()
    arguments = [options.recipe, "--out", str(options.out), "--resume", *fields]
    status = None
    while status is None:
        before = saved(options.out)
        status = sitting(arguments, options.minutes)
        if (options.out / "metrics.jsonl").exists():
            result = {"command": shlex.join(["bsnn", "train", options.recipe, *fields]), **progress(options.out)}
            write_file(options.result, (json.dumps(result, indent=1) + "\n").encode())
            print(f"{result['epochs_done']} of {result['epochs']} epochs, {result['starts']} starts", flush=True)
        if status is None and saved(options.out) == before:
            sys.exit(f"nothing was saved within {options.minutes:g} minutes; give more, or fewer --checkpoint-minutes")
    sys.exit(status)


if __name__ == "__main__":
    main()
