"""Accuracy and time of `bsnn demo` over seeds.

    python benchmarks/demo.py [--seeds 0 1 2]

Each seed runs as the command itself, in a process of its own. Writes results/demo.json.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results" / "demo.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = parser.parse_args().seeds
    runs = []
    for seed in seeds:
        command = [sys.executable, "-m", "bsnn", "demo", "--json", "--seed", str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout))
        print(f"seed {seed}: {runs[-1]['test_accuracy']:.4f} after {runs[-1]['train_seconds']:.0f} s")
    accuracies = [run["test_accuracy"] for run in runs]
    result = {
        "command": "python benchmarks/demo.py --seeds " + " ".join(map(str, seeds)),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "mean_test_accuracy": statistics.mean(accuracies),
        "lowest_and_highest": [min(accuracies), max(accuracies)],
        "runs": runs,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(f"mean {result['mean_test_accuracy']:.4f} over {len(seeds)} seeds; written to {RESULTS}")


if __name__ == "__main__":
    main()
