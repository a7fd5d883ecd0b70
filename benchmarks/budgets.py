"""Networks in the memory of small devices: accuracy, RAM, flash and instructions, by budget.

    python benchmarks/budgets.py sound|event|image --data DIR [--out RUNS] [--seeds 0 1 2]
    python benchmarks/budgets.py sound|event|image --data DIR --choose --seeds 0

For each budget, the recipe for devices picks its network; beside them stands the small recipe, without one. Sounds are
words of Speech Commands: trained on the official training speakers, validated on the speakers of the folder's
validation list and tested on those of its testing list. Events are N-MNIST and images CIFAR-10, validated on samples
that are held out of the training set. For images all networks have the same few training images and epochs (`COMMON`),
so their accuracies are for comparing networks and not what the whole recipe reaches. Accuracies are those of the model
file. `--choose` compares the settings below on the validation samples and does not read the test set; the recipe then
holds the best. RAM and flash are those of the network and its front end, by the linker; instructions are those of a
Cortex-M4 under qemu, for test samples, without the front end. Needs arm-none-eabi-gcc and qemu-system-arm. A finished
run is not trained again. Writes results/budgets.json.
"""

import argparse
import json
import os
import platform
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from device import measure

import bsnn
from bsnn.cli._runs import export_run
from bsnn.cli._untrained import fitted
from bsnn.data.accuracy import accuracy
from bsnn.data.dataset import Dataset, Kind
from bsnn.deploy.budget import Budget
from bsnn.deploy.engine import Engine
from bsnn.deploy.files import batches, golden_samples
from bsnn.deploy.footprint import on_device
from bsnn.deploy.inspection import inspect
from bsnn.paper.recipes import recipe
from bsnn.train.build import load_data, load_test_set, load_threshold_set
from bsnn.train.config import Config
from bsnn.train.devices import NETWORKS
from bsnn.train.fields import written
from bsnn.train.loop import train
from bsnn.train.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "budgets.json"
RECIPES: dict[Kind, tuple[str, str]] = {
    "sound": ("speech-commands-small", "speech-commands-device"),
    "event": ("nmnist-small", "nmnist-device"),
    "image": ("cifar10-narrow", "cifar10-device"),
}
"""Of each kind of data, the recipe without a budget and the one that picks."""
COMMON: dict[Kind, dict[str, Any]] = {
    "sound": {},
    "event": {"validation_samples": 200, "final_test": False},
    "image": {
        "validation_samples": 2000,
        "final_test": False,
        "train_samples": 10_000,
        "epochs": 4,
        "batch_size": 64,
    },
}
"""What holds for all networks, whatever their recipe says."""
KB = 1024
BUDGETS = {
    "none": Budget(),
    "16k": Budget(16 * KB, 64 * KB),
    "64k": Budget(64 * KB, 256 * KB),
    "256k": Budget(256 * KB, 1024 * KB),
    "128k-stream": Budget(128 * KB, None, stream=True),
}
STREAMS = ("sound",)
"""The kinds of data that are also measured as a stream."""
_MOMENTUM = {"learning_rate": 0.05, "sgd_momentum": 0.9, "nesterov": True}
_WITHOUT = {name: getattr(recipe("speech-commands-small"), name) for name in _MOMENTUM}
_LEAN = ("down", 32, "pool", 64, "pool", 96, 192)
_LARGE = (32, "pool", 64, "pool", 128, "pool", 256)
_SHORT = (32, "pool", 64, "pool", 128)
_SHORT_DOWN = ("down", 32, "pool", 64, "pool", 128)
_DEEP = (32, 64, "pool", 128, 128, "pool", 256, 256)
_RESIDUAL_56 = ("down", 56, 56, "down", 112, 112, "down", 224, 224)
_RESIDUAL = {name: value for name, value in NETWORKS["image"][0].items() if name != "plan"}
SETTINGS: dict[Kind, dict[str, list[Mapping[str, Any]]]] = {
    "sound": {
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
    },
    "event": {
        "16k": [
            {"plan": _SHORT_DOWN, "time_steps": 4, "image_size": 0, "epochs": 20} | _WITHOUT,
            {"plan": _SHORT_DOWN, "time_steps": 4, "image_size": 0, "epochs": 20} | _MOMENTUM,
            {"plan": _SHORT_DOWN, "time_steps": 4, "image_size": 0, "epochs": 60} | _MOMENTUM,
            {"plan": _LEAN, "time_steps": 4, "image_size": 0, "epochs": 20} | _MOMENTUM,
            {"plan": _SHORT, "time_steps": 3, "image_size": 0, "epochs": 20} | _MOMENTUM,
            {"plan": _SHORT, "time_steps": 4, "image_size": 24, "epochs": 20} | _MOMENTUM,
            {"plan": _LEAN, "time_steps": 4, "image_size": 24, "epochs": 20} | _MOMENTUM,
            {"plan": ("down", 16, "pool", 32, "pool", 64), "time_steps": 5, "image_size": 0, "epochs": 20} | _MOMENTUM,
        ],
        "64k": [
            {"plan": _SHORT, "time_steps": 5, "image_size": 0, "epochs": 20} | _WITHOUT,
            {"plan": _LARGE, "time_steps": 5, "image_size": 0, "epochs": 20} | _MOMENTUM,
            {"plan": _LEAN, "time_steps": 10, "image_size": 0, "epochs": 20} | _MOMENTUM,
            {"plan": ("down", 48, "pool", 96, "pool", 192, 256), "time_steps": 10, "image_size": 0, "epochs": 20}
            | _MOMENTUM,
            {"plan": (48, "pool", 96, "pool", 192, "pool", 256), "time_steps": 10, "image_size": 0, "epochs": 20}
            | _WITHOUT,
        ],
    },
    "image": {
        "16k": [
            {"plan": ("down", 32, "pool", 64, "pool", 96, 128), "time_steps": 2},
            {"plan": ("down", 32, "pool", 64, "pool", 96, 128), "time_steps": 2} | _MOMENTUM,
            {"plan": ("down", 32, "pool", 64, "pool", 96, 128), "time_steps": 4},
            # As many updates as with T = 4, of which there is one per time step.
            {"plan": ("down", 32, "pool", 64, "pool", 96, 128), "time_steps": 2, "epochs": 8},
            {"plan": ("down", 32, 64, "pool", 128, "pool", 128), "time_steps": 2},
            {"plan": (24, "pool", 48, "pool", 96, "pool", 192), "time_steps": 1},
            {"plan": (24, "pool", 48, "pool", 96, "pool", 192), "time_steps": 2},
        ],
        "64k": [
            {"plan": _LARGE, "time_steps": 2},
            {"plan": _LARGE, "time_steps": 4},
            {"plan": _DEEP, "time_steps": 2},
            {"plan": _RESIDUAL_56} | _RESIDUAL,
            # As many updates as with T = 2.
            {"plan": _RESIDUAL_56, "epochs": 8} | _RESIDUAL,
        ],
        "256k": [
            {"plan": _RESIDUAL_56} | _RESIDUAL,
            NETWORKS["image"][0],
            {"plan": (64, "pool", 128, "pool", 256, "pool", 512), "time_steps": 2},
        ],
    },
}
"""What was tried for a budget, in this order."""


class Trained(NamedTuple):
    """The model file of a run, and what its last epoch measured."""

    engine: Engine
    model: Path
    epoch: dict[str, Any]
    minutes: float


def trained(config: Config, folder: str, out: Path) -> Trained:
    """Trains a config, or goes on, and writes its model file."""
    parts = {"t": config.time_steps, "i": config.image_size, "e": config.epochs, "m": config.sgd_momentum}
    marks = "-".join(f"{mark}{value}" for mark, value in (parts | {"s": config.seed}).items())
    run = out / config.dataset / f"{written(config.plan).replace(',', '-')}-{marks}"
    model = run / "model.bsnn"
    if not model.exists():
        # Held-out samples are looked at once, when all is trained.
        train(replace(config, evaluation_interval=config.epochs), run, data=folder, resume=True)
        export_run(run, model)
    epochs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return Trained(bsnn.load(model), model, epochs[-1], sum(epoch["seconds"] for epoch in epochs) / 60)


def measured(config: Config, folder: str, out: Path) -> tuple[Trained, dict[str, Any]]:
    """A run, and the accuracies of its model file."""
    found = trained(config, folder, out)
    line = {
        "seed": config.seed,
        "validation_accuracy": _accuracy(found.engine, validation_set(config, folder)),
        "test_accuracy": _accuracy(found.engine, load_test_set(config, folder)),
        "train_minutes": round(found.minutes, 2),
    }
    print(found.model.parent.name, line, flush=True)
    return found, line


def validation_set(config: Config, folder: str) -> Dataset:
    """What settings are chosen on."""
    return load_data(config, folder)[1] if config.validation_samples else load_threshold_set(config, folder)


def _accuracy(engine: Engine, data: Dataset) -> float:
    return accuracy(engine.predict, batches(engine, data)).accuracy


def row(config: Config, budget: Budget, folder: str, out: Path, seeds: list[int]) -> dict[str, Any]:
    """A network under a budget, over seeds."""
    runs = [measured(replace(config, seed=seed), folder, out) for seed in seeds]
    first, lines = runs[0][0], [line for _, line in runs]
    device = on_device(first.engine.artifact)
    counted = measure(first.model, golden_samples(first.engine, folder, 4))
    taken = budget.taken(device)
    keys = ("validation_accuracy", "test_accuracy")
    operations = inspect(first.engine.artifact)
    return {
        "budget": budget._asdict(),
        "plan": written(config.plan),
        "time_steps": config.time_steps,
        "epochs": config.epochs,
        "runs": lines,
        **{f"mean_{key}": statistics.mean(line[key] for line in lines) for key in keys},
        "ram_bytes": taken.ram_bytes,
        "flash_bytes": taken.flash_bytes,
        "front_end_ram_bytes": device.front_ram_bytes,
        "front_end_flash_bytes": device.front_flash_bytes,
        "constant_bytes": device.constant_bytes - device.sound_constant_bytes,
        "additions": operations["additions"],
        "multiplications": operations["multiplications"],
        "instructions": counted["instructions"],
    }


def chosen_by(config: Config, folder: str, out: Path) -> dict[str, float]:
    """Accuracy and loss of a config on the validation samples."""
    if config.validation_samples:
        epoch = trained(config, folder, out).epoch
        return {"validation_accuracy": epoch["validation_accuracy"], "loss": epoch["validation_loss"]}
    # A run would be measured on the test speakers.
    train_set, held_out = load_data(config, folder)[0], validation_set(config, folder)
    trainer = Trainer(replace(config, evaluation_interval=config.epochs), train_set, held_out)
    while trainer.epoch < config.epochs:
        trainer.train_epoch()
        trainer.finish_epoch()
    found = trainer.evaluate()
    return {"validation_accuracy": found.accuracy, "loss": found.loss}


def choose(kind: Kind, budget: str, folder: str, out: Path, seed: int) -> list[dict[str, Any]]:
    """All settings for a budget on the validation samples."""
    tried = []
    for settings in SETTINGS[kind][budget]:
        config = replace(recipe(RECIPES[kind][1]), **COMMON[kind] | settings, seed=seed)
        tried.append(settings | {"plan": written(config.plan), "seed": seed} | chosen_by(config, folder, out))
        print(tried[-1], flush=True)
    return tried


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=RECIPES)
    parser.add_argument("--data", required=True, help="the folder of the kind's data set, or of a part of it")
    parser.add_argument("--out", type=Path, default=Path("runs/budgets"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--budgets", nargs="+", choices=BUDGETS, default=list(BUDGETS))
    parser.add_argument("--choose", action="store_true", help="compare the settings on the validation samples")
    options = parser.parse_args()
    kind, (small, device) = options.kind, RECIPES[options.kind]
    torch.set_num_threads(1)
    names = [name for name in options.budgets if kind in STREAMS or not BUDGETS[name].stream]
    if options.choose:
        for name in (name for name in names if name in SETTINGS[kind]):
            tried = [one for seed in options.seeds for one in choose(kind, name, options.data, options.out, seed)]
            write(kind, {"choice": {name: tried}})
        return
    for name in names:
        budget = BUDGETS[name]
        picked = (
            fitted(device, recipe(device), (), budget, options.data).config if budget != Budget() else recipe(small)
        )
        config = replace(picked, **COMMON[kind])
        write(kind, {"budgets": {name: row(config, budget, options.data, options.out, options.seeds)}})
    config = replace(recipe(small), **COMMON[kind])
    train_set, test_set = load_data(config, options.data)[0], load_test_set(config, options.data)
    sets = {"train": train_set, "val": validation_set(config, options.data), "test": test_set}
    write(kind, {"samples": {split: len(data) for split, data in sets.items()}})


def write(kind: Kind, part: dict[str, Any]) -> None:
    """Adds to the results; what was measured before stays, so that one budget can be measured again."""
    result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    before = result.get(kind, {})
    for key in ("budgets", "choice"):
        rows = before.get(key, {}) | part.get(key, {})
        part[key] = {name: rows[name] for name in BUDGETS if name in rows}
    result[kind] = (
        before
        | part
        | {
            "command": f"python benchmarks/budgets.py {kind} --data DIR",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread, shared with other work",
            "versions": {"bsnn": bsnn.__version__, "python": platform.python_version(), "torch": torch.__version__},
        }
    )
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
