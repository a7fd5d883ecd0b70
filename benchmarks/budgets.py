"""Speech Commands in the memory of small devices: accuracy, RAM, flash and instructions, by budget.

    python benchmarks/budgets.py --data speech_commands [--out RUNS] [--seeds 0 1]
    python benchmarks/budgets.py --data speech_commands --choose

For each budget, `speech-commands-device` picks its network; beside them stands `speech-commands-small`, without one.
All are trained on the official training speakers, as their recipe says. Accuracies are those of the model file, on the
official validation speakers and on the official test speakers; `--choose` compares networks by the former, on which
nothing is trained. RAM and flash are those of the network and its front end, by the linker; instructions are those of a
Cortex-M4 under qemu, for words of the test set, without the front end. Needs arm-none-eabi-gcc and qemu-system-arm. A
finished run is not trained again. Writes results/budgets.json.
"""

import argparse
import json
import os
import platform
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from device import measure

import bsnn
from bsnn.cli._runs import export_run
from bsnn.cli._untrained import fitted
from bsnn.data.accuracy import accuracy
from bsnn.data.dataset import Dataset
from bsnn.deploy.budget import Budget
from bsnn.deploy.engine import Engine
from bsnn.deploy.files import batches, golden_samples
from bsnn.deploy.footprint import on_device
from bsnn.paper.recipes import recipe
from bsnn.train.config import Config
from bsnn.train.devices import NETWORKS
from bsnn.train.fields import written
from bsnn.train.loop import train

RESULTS = Path(__file__).parent / "results" / "budgets.json"
SMALL, DEVICE = "speech-commands-small", "speech-commands-device"
KB = 1024
BUDGETS = {
    "none": Budget(),
    "16k": Budget(16 * KB, 64 * KB),
    "64k": Budget(64 * KB, 256 * KB),
    "256k": Budget(256 * KB, 1024 * KB),
    "128k-stream": Budget(128 * KB, None, stream=True),
}


# Networks that were thought of, beside those that the recipe picks from.
OTHERS: list[dict[str, Any]] = [
    {"plan": (48, "pool", 96, "pool", 192, "pool", 384), "time_steps": 4},
    {"plan": (32, "pool", 64, "down", 96, "down", 192), "time_steps": 2},
]


class Trained(NamedTuple):
    """The model file of a run, and its accuracies."""

    engine: Engine
    model: Path
    line: dict[str, Any]


def trained(config: Config, folder: str, out: Path) -> Trained:
    """Trains a config, or goes on, and measures its model file."""
    name = f"{written(config.plan).replace(',', '-')}-t{config.time_steps}-e{config.epochs}-s{config.seed}"
    run = out / name
    # The test speakers are looked at once, when all is trained.
    done = train(replace(config, evaluation_interval=config.epochs), run, data=folder, resume=True)
    model = run / "model.bsnn"
    export_run(run, model)
    engine = bsnn.load(model)
    found = {split: _accuracy(engine, bsnn.data.speech_commands(folder, split)) for split in ("val", "test")}
    line = {
        "seed": config.seed,
        "validation_accuracy": found["val"],
        "test_accuracy": found["test"],
        "train_minutes": round(done["train_seconds"] / 60, 2),
    }
    print(name, line, flush=True)
    return Trained(engine, model, line)


def _accuracy(engine: Engine, data: Dataset) -> float:
    return accuracy(engine.predict, batches(engine, data)).accuracy


def row(config: Config, budget: Budget, folder: str, out: Path, seeds: list[int]) -> dict[str, Any]:
    """A network under a budget, over seeds."""
    runs = [trained(replace(config, seed=seed), folder, out) for seed in seeds]
    first = runs[0]
    device = on_device(first.engine.artifact)
    measured = measure(first.model, golden_samples(first.engine, folder, 4))
    taken = budget.taken(device)
    keys = ("validation_accuracy", "test_accuracy")
    return {
        "budget": budget._asdict(),
        "plan": written(config.plan),
        "time_steps": config.time_steps,
        "epochs": config.epochs,
        "runs": [run.line for run in runs],
        **{f"mean_{key}": statistics.mean(run.line[key] for run in runs) for key in keys},
        "ram_bytes": taken.ram_bytes,
        "flash_bytes": taken.flash_bytes,
        "front_end_ram_bytes": device.sound_ram_bytes,
        "front_end_flash_bytes": device.sound_flash_bytes,
        "instructions": measured["instructions"],
    }


def choose(folder: str, out: Path) -> list[dict[str, Any]]:
    """Networks for sounds, by the accuracy on the validation speakers; seed 0."""
    configs = [replace(recipe(DEVICE), **network) for network in (*NETWORKS["sound"], *OTHERS)]
    tried = []
    for config in configs:
        line = trained(config, folder, out).line
        fields = {"plan": written(config.plan), "time_steps": config.time_steps, "epochs": config.epochs}
        tried.append(fields | {key: line[key] for key in ("seed", "validation_accuracy")})
    return tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder of Speech Commands, or of some of its words")
    parser.add_argument("--out", type=Path, default=Path("runs/budgets"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--budgets", nargs="+", choices=BUDGETS, default=list(BUDGETS))
    parser.add_argument("--choose", action="store_true", help="compare all networks on the validation speakers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.choose:
        write({"choice": choose(options.data, options.out)})
        return
    for name in options.budgets:
        budget = BUDGETS[name]
        config = (
            recipe(SMALL) if budget == Budget() else fitted(DEVICE, recipe(DEVICE), (), budget, options.data).config
        )
        write({"budgets": {name: row(config, budget, options.data, options.out, options.seeds)}})
    splits = {split: len(bsnn.data.speech_commands(options.data, split)) for split in ("train", "val", "test")}
    write({"samples": splits})


def write(part: dict[str, Any]) -> None:
    """Adds to the results; what was measured before stays, so that one budget can be measured again."""
    result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    rows = result.get("budgets", {}) | part.get("budgets", {})
    result |= part | {
        "budgets": {name: rows[name] for name in BUDGETS if name in rows},
        "command": "python benchmarks/budgets.py --data speech_commands",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread, shared with other work",
        "versions": {"bsnn": bsnn.__version__, "python": platform.python_version(), "torch": torch.__version__},
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
