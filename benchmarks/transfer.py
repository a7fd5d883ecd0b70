"""The settings of cifar10-small on other data, unchanged, beside the small recipe of that data.

    python benchmarks/transfer.py --data DIR [--out RUNS] [--seeds 0 1] [--sets imagenet speech_commands]

DIR holds the folders tiny_imagenet and speech_commands; a part of each set will do. Only what cannot be as it is for
CIFAR-10 differs: images become 32 by 32 pixels, and sounds are not mirrored. Every run is a run directory in RUNS: a
finished one is not trained again, an interrupted one goes on. Writes results/transfer.json; what was measured before
stays.
"""

import argparse
import json
import os
import platform
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # before torch is loaded, as the command bsnn does
import torch

from bsnn.paper.recipes import recipe
from bsnn.train.config import Config
from bsnn.train.loop import train

RESULTS = Path(__file__).parent / "results" / "transfer.json"
SETTINGS = "cifar10-small"
FOLDERS = {"imagenet": "tiny_imagenet", "speech_commands": "speech_commands"}
SMALL = {"imagenet": "imagenet-small", "speech_commands": "speech-commands-small"}
CHANGED: dict[str, dict[str, Any]] = {
    "imagenet": {"image_size": 32},
    "speech_commands": {"flip": False, "alternating_flip": False},
}


def measure(config: Config, folder: Path, run: Path) -> dict[str, Any]:
    # The test samples are looked at once, when all is trained.
    done = train(replace(config, evaluation_interval=config.epochs), run, data=str(folder), resume=True)
    history = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    minutes = round(sum(epoch["processor_seconds"] for epoch in history) / 60, 1)
    line = {"seed": config.seed, "test_accuracy": done["test_accuracy"], "processor_minutes": minutes}
    print(run.name, line, flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of the folders")
    parser.add_argument("--out", type=Path, default=Path("runs/transfer"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--sets", nargs="+", choices=FOLDERS, default=list(FOLDERS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.sets:
        configs = {
            SETTINGS: replace(recipe(SETTINGS), dataset=name, **CHANGED[name]),
            SMALL[name]: recipe(SMALL[name]),
        }
        row: dict[str, Any] = {}
        for label, config in configs.items():
            runs = [
                measure(
                    replace(config, seed=seed), options.data / FOLDERS[name], options.out / f"{name}-{label}-s{seed}"
                )
                for seed in options.seeds
            ]
            row[label] = {
                "epochs": config.epochs,
                "runs": runs,
                "mean_test_accuracy": statistics.mean(run["test_accuracy"] for run in runs),
            }
        before = json.loads(RESULTS.read_text())["sets"] if RESULTS.exists() else {}
        result = {
            "command": "python benchmarks/transfer.py --data DIR",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread",
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "sets": {**before, name: row},
        }
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
