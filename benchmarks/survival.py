"""Kills runs with kill -9 at random moments, resumes them, and compares the end with an uninterrupted run.

    python benchmarks/survival.py [--kills 10] [--seed 0]

On one process, on two under torchrun (all of them killed, torchrun too), and on two where torchrun itself restarts
a killed worker. Compared are bits, real parameters, optimizer states and metrics; times and memory aside. Writes
results/survival.json.
"""

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bsnn.train.run import RunDirectory

RESULTS = Path(__file__).parent / "results" / "survival.json"
FIELDS = ["--plan", "8,16,pool,16", "--train-samples", "600", "--epochs", "24"]
RECIPE = ["digits", *FIELDS, "--checkpoint-minutes", "0.002"]
UPDATES = 24 * 10
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def start(out: Path, processes: int, *options: str, restarts: int = 0) -> subprocess.Popen[bytes]:
    launch = [*TORCHRUN, "--max-restarts", str(restarts)] if processes > 1 else []
    command = [sys.executable, *launch, "-m", "bsnn", "train", *RECIPE, "--out", str(out), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [child for child, parent in parents.items() if parent == pid]
    return found + [deeper for child in found for deeper in descendants(child)]


def kill_all(process: subprocess.Popen[bytes]) -> None:
    for pid in [process.pid, *descendants(process.pid)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def end_of(run: Path) -> dict[str, Any]:
    """What the end of a run depends on, without times and memory."""
    state, notes = RunDirectory(run).checkpoints.load_newest()
    assert not notes, notes
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in [*state["history"], *metrics]:
        del line["seconds"], line["peak_bytes"]
    del state["tally"]
    return {**state, "metrics": metrics}


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    if isinstance(a, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [path]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [found for key in a for found in differences(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [found for i, (x, y) in enumerate(zip(a, b, strict=True)) for found in differences(x, y, f"{path}/{i}")]
    return [] if a == b else [path]


def newest_update(run: Path) -> int:
    """How far a run is, by the names of its checkpoints."""
    numbers = [int(path.stem[6:]) for path in (run / "checkpoints").glob("batch-*.ckpt")]
    return max(numbers, default=0)


def survive(folder: Path, processes: int, kills: int, rng: random.Random) -> dict[str, Any]:
    """Kills at random updates, the first while starting, every third when a file is seen being written.

    Most such kills come too late, after the rename; `partial_files_left` says which did not.
    """
    whole, killed = folder / f"whole{processes}", folder / f"killed{processes}"
    assert start(whole, processes).wait() == 0
    targets = [0, *sorted(rng.randrange(1, int(0.85 * UPDATES)) for _ in range(kills - 1))]
    places = []
    for number, target in enumerate(targets):
        process = start(killed, processes, "--resume")
        while newest_update(killed) < target and process.poll() is None:
            time.sleep(0.001)
        writing = number % 3 == 2
        if writing:
            while process.poll() is None and not any(killed.rglob("*.partial")):
                pass
        else:
            time.sleep(rng.uniform(0, 0.2) if target else rng.uniform(0, 5))
        assert process.poll() is None, "it ended before it was killed"
        kill_all(process)
        left = [path.name for path in killed.rglob("*.partial")]
        state, notes = RunDirectory(killed).checkpoints.load_newest()
        place = {"update": state["place"][2] if state else 0, "within_epoch": bool(state and state["place"][1])}
        places.append({**place, "partial_files_left": left, "damaged_checkpoints": len(notes)})
        print(f"{processes} process(es), kill {len(places)}: {places[-1]}", flush=True)
    assert start(killed, processes, "--resume").wait() == 0
    found = differences(end_of(whole), end_of(killed))
    print(f"{processes} process(es): {found or 'identical'}", flush=True)
    return {"processes": processes, "kills": places, "differences": found}


def restart(folder: Path, kills: int, rng: random.Random) -> dict[str, Any]:
    """Kills one of two workers again and again; torchrun starts both again."""
    killed, places = folder / "restarted", []
    process = start(killed, 2, restarts=kills)
    for target in sorted(rng.randrange(1, int(0.85 * UPDATES)) for _ in range(kills)):
        while newest_update(killed) < target and process.poll() is None:
            time.sleep(0.001)
        # Both workers are of this start: the last one's are gone when its successors have saved something.
        workers = descendants(process.pid)
        os.kill(rng.choice(workers), signal.SIGKILL)
        places.append({"update": newest_update(killed)})
        print(f"killed one of the workers {workers}: {places[-1]}", flush=True)
        while set(workers) & set(descendants(process.pid)) and process.poll() is None:
            time.sleep(0.01)
        reached = newest_update(killed)
        while newest_update(killed) <= reached and process.poll() is None:
            time.sleep(0.01)
    status = process.wait()
    found = differences(end_of(folder / "whole2"), end_of(killed)) if status == 0 else [f"exit status {status}"]
    return {"processes": 2, "restarted_by": "torchrun", "kills": places, "differences": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        results = [survive(Path(folder), processes, options.kills, rng) for processes in (1, 2)]
        results.append(restart(Path(folder), 3, rng))
    RESULTS.write_text(
        json.dumps(
            {
                "command": f"python benchmarks/survival.py --kills {options.kills} --seed {options.seed}",
                "machine": f"{platform.machine()}, {os.cpu_count()} cores",
                "versions": {"python": platform.python_version(), "torch": torch.__version__},
                "recipe": " ".join(RECIPE),
                "results": results,
            },
            indent=1,
        )
        + "\n"
    )
    for result in results:
        print(
            f"{result['processes']} process(es), {len(result['kills'])} kills: {result['differences'] or 'identical'}"
        )


if __name__ == "__main__":
    main()
