"""Speech Commands in the memory of small devices: accuracy, RAM, flash and instructions, by budget.

    python benchmarks/budgets.py --data speech_commands [--out RUNS] [--seeds 0 1 2]
    python benchmarks/budgets.py --data speech_commands --choose

For each budget, `speech-commands-device` picks its network; beside them stands `speech-commands-small`, without one.
All are trained on the official training speakers, as their recipe says. Accuracies are those of the model file, on the
speakers of the folder's validation list and on those of its testing list. `--choose` compares the settings below on the
validation speakers, with seed 0, and does not read the test words; the recipe then holds the best. RAM and flash are
those of the network and its front end, by the linker; instructions are those of a Cortex-M4 under qemu, for words of
the test set, without the front end. Needs arm-none-eabi-gcc and qemu-system-arm. A finished run is not trained again.
Writes results/budgets.json.
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
from bsnn.data.audio import NUM_MELS
from bsnn.data.dataset import Dataset
from bsnn.deploy.budget import Budget
from bsnn.deploy.engine import Engine
from bsnn.deploy.files import batches, golden_samples
from bsnn.deploy.footprint import on_device
from bsnn.deploy.inspection import inspect
from bsnn.paper.recipes import recipe
from bsnn.train.build import load_data
from bsnn.train.config import Config
from bsnn.train.fields import written
from bsnn.train.loop import train
from bsnn.train.trainer import Trainer

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
_MOMENTUM = {"learning_rate": 0.05, "sgd_momentum": 0.9, "nesterov": True}
_WITHOUT = {name: getattr(recipe(SMALL), name) for name in _MOMENTUM}
_LEAN = ("down", 32, "pool", 64, "pool", 96, 192)
_LARGE = (32, "pool", 64, "pool", 128, "pool", 256)
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "16k": [
        {"plan": _LEAN, "epochs": 30} | _WITHOUT,
        {"plan": _LEAN, "epochs": 100} | _WITHOUT,
        {"plan": _LEAN, "epochs": 60} | _MOMENTUM,
        {"plan": ("down", 48, "pool", 96, "pool", 128, 256), "epochs": 60, "image_size": 24} | _WITHOUT,
        {"plan": _LEAN, "epochs": 60, "batch_size": 32} | _WITHOUT,
    ],
    "64k": [
        {"plan": _LARGE, "epochs": 30} | _WITHOUT,
        {"plan": _LARGE, "epochs": 60} | _MOMENTUM,
        {"plan": (48, "pool", 96, "pool", 192, "pool", 384), "epochs": 60} | _MOMENTUM,
    ],
}
"""What was tried for a budget, in this order."""


class Trained(NamedTuple):
    """The model file of a run, and its accuracies."""

    engine: Engine
    model: Path
    line: dict[str, Any]


def trained(config: Config, folder: str, out: Path) -> Trained:
    """Trains a config, or goes on, and measures its model file."""
    name = f"{written(config.plan).replace(',', '-')}-t{config.time_steps}-e{config.epochs}-s{config.seed}"
    run = out / name
    model = run / "model.bsnn"
    if not model.exists():
        # The test speakers are looked at once, when all is trained.
        train(replace(config, evaluation_interval=config.epochs), run, data=folder, resume=True)
        export_run(run, model)
    engine = bsnn.load(model)
    found = {split: _accuracy(engine, words(config, folder, split)) for split in ("val", "test")}
    seconds = sum(json.loads(line)["seconds"] for line in (run / "metrics.jsonl").read_text().splitlines())
    line = {
        "seed": config.seed,
        "validation_accuracy": found["val"],
        "test_accuracy": found["test"],
        "train_minutes": round(seconds / 60, 2),
    }
    print(name, line, flush=True)
    return Trained(engine, model, line)


def words(config: Config, folder: str, split: str) -> Dataset:
    """Words of a split in the size that a config takes."""
    return bsnn.data.speech_commands(folder, split, size=config.image_size or NUM_MELS)


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
    operations = inspect(first.engine.artifact)
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
        "constant_bytes": device.constant_bytes - device.sound_constant_bytes,
        "additions": operations["additions"],
        "multiplications": operations["multiplications"],
        "instructions": measured["instructions"],
    }


def choose(budget: str, folder: str) -> list[dict[str, Any]]:
    """Accuracy and loss of all settings for a budget on the validation speakers; seed 0."""
    tried = []
    for settings in SETTINGS[budget]:
        config = replace(recipe(DEVICE), **settings)
        train_set, held_out = load_data(config, folder)[0], words(config, folder, "val")
        trainer = Trainer(replace(config, evaluation_interval=config.epochs), train_set, held_out)
        while trainer.epoch < config.epochs:
            trainer.train_epoch()
            trainer.finish_epoch()
        found = trainer.evaluate()
        tried.append(
            settings | {"plan": written(config.plan), "validation_accuracy": found.accuracy, "loss": found.loss}
        )
        print(tried[-1], flush=True)
    return tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder of Speech Commands, or of some of its words")
    parser.add_argument("--out", type=Path, default=Path("runs/budgets"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--budgets", nargs="+", choices=BUDGETS, default=list(BUDGETS))
    parser.add_argument("--choose", action="store_true", help="compare the settings on the validation speakers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.choose:
        write({"choice": {name: choose(name, options.data) for name in options.budgets if name in SETTINGS}})
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
