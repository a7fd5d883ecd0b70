"""The small recipes on real files, against simple baselines on exactly the same split and inputs.

    python benchmarks/small_recipes.py --data DIR [--out RUNS] [--seeds 0 1]
    python benchmarks/small_recipes.py --data DIR --choose
    python benchmarks/small_recipes.py --data DIR --carry [--seeds 0 1]

DIR holds the folders speech_commands, nmnist and tiny_imagenet; a part of each set will do. Baselines see the
normalized inputs as the network does, without augmentation, those of events summed over time: nearest class
centroid, and scikit-learn's logistic regression on standardized inputs (C = 1e-3). `--choose` compares the settings
below on a held-out fifth of the training samples and does not read the test samples; the recipe then holds the best.
imagenet-small has all settings of cifar10-small; `--carry` trains the words with them too: they may suit images alone.
Every run is a run directory in RUNS: a finished one is not trained again, an interrupted one goes on. Writes
results/small_recipes.json.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bsnn.data.loader import Loader
from bsnn.paper.recipes import recipe
from bsnn.train.build import load_data
from bsnn.train.loop import train

RESULTS = Path(__file__).parent / "results" / "small_recipes.json"
NOTE = (
    "nmnist-small and imagenet-small hold the best of a few settings, each trained with seed 0 and measured on "
    "training samples that were held out (`choice` in the file); they are measured with other seeds. "
    "speech-commands-small was not adjusted, and measured before its sounds were augmented."
)
WORDS = "speech-commands-small"
FOLDERS = {
    WORDS: "speech_commands",
    "nmnist-small": "nmnist",
    "imagenet-small": "tiny_imagenet",
}
_NARROW, _WIDE = (16, "pool", 32, "pool", 64), (32, "pool", 64, "pool", 128)
_BEFORE = {"threshold": 1.0, "precision": "fp32", "statistics_batches": 10}
_PLAIN = {
    **_BEFORE,
    "model": "vgg",
    "plan": (32, "pool", 64, "pool", 128, "pool", 256),
    "first_layer": "learned",
    "gradient": "ottt",
    "learning_rate": 0.1,
    "sgd_momentum": 0.0,
    "nesterov": False,
    "warmup": 0.0,
    "batch_size": 64,
    "crop_padding": 0,
    "flip": False,
    "alternating_flip": False,
}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "nmnist-small": [
        {"plan": _NARROW, "batch_size": 32},
        {"plan": _WIDE, "batch_size": 64},
        {"plan": _WIDE, "batch_size": 32},
    ],
    "imagenet-small": [
        {**_PLAIN, "epochs": 20},
        {**_PLAIN, "epochs": 40},
        {**_PLAIN, "epochs": 40, "crop_padding": 4, "flip": True},
        {"epochs": 24},
        {**_BEFORE, "learning_rate": 0.3, "epochs": 24},
    ],
}


def inputs_and_labels(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """All samples as rows, normalized; events summed over time."""
    batches = list(Loader(dataset, batch_size=100).ordered())
    inputs = torch.cat([x.sum(0) if dataset.kind == "event" else x for x, _ in batches])
    return inputs.flatten(1).numpy(), torch.cat([labels for _, labels in batches]).numpy()


def baselines(train_set: Any, test_set: Any) -> dict[str, float]:
    train_rows, test_rows = inputs_and_labels(train_set), inputs_and_labels(test_set)
    models = {
        "nearest_centroid": NearestCentroid(),
        "logistic_regression": make_pipeline(StandardScaler(), LogisticRegression(C=1e-3, max_iter=500)),
    }
    return {name: float(model.fit(*train_rows).score(*test_rows)) for name, model in models.items()}


def choose(name: str, folder: str, out: Path) -> dict[str, Any]:
    """The settings of a recipe, compared on a held-out fifth of its training samples."""
    # With any sample held out, the test samples are not read.
    count = sum(map(len, load_data(dataclasses.replace(recipe(name), validation_samples=1), folder)))
    tried = []
    for number, setting in enumerate(SETTINGS[name]):
        config = dataclasses.replace(recipe(name), **setting, validation_samples=count // 5, final_test=False, seed=0)
        done = train(config, out / f"{name}-choice{number}", data=folder, resume=True)
        tried.append({**setting, "held_out_accuracy": done["validation_accuracy"]})
        print(f"{name}: {tried[-1]}", flush=True)
    held_out = f"{count // 5} of the {count} training samples, spread evenly; trained on the others, seed 0"
    return {"held_out": held_out, "tried": tried, "best": max(tried, key=lambda one: one["held_out_accuracy"])}


def carry(folder: str, out: Path, seeds: list[int]) -> list[dict[str, Any]]:
    """The settings of cifar10-small on words, unchanged but for mirror images, which no sound has."""
    of_sounds = {"dataset": "speech_commands", "flip": False, "alternating_flip": False}
    runs = []
    for seed in seeds:
        config = dataclasses.replace(recipe("cifar10-small"), **of_sounds, seed=seed)
        done = train(config, out / f"{WORDS}-carried-s{seed}", data=folder, resume=True)
        runs.append({"seed": seed, "test_accuracy": done["test_accuracy"]})
        print(f"{WORDS} with the settings of cifar10-small: {runs[-1]}", flush=True)
    return runs


def measure(name: str, folder: str, out: Path, seeds: list[int]) -> dict[str, Any]:
    """A recipe and its baselines on the test samples."""
    train_set, test_set = load_data(recipe(name), folder)
    runs = []
    for seed in seeds:
        config = dataclasses.replace(recipe(name), seed=seed)
        done = train(config, out / f"{name}-s{seed}", data=folder, resume=True)
        minutes = round(done["train_seconds"] / 60, 2)
        runs.append({"seed": seed, "test_accuracy": done["test_accuracy"], "train_minutes": minutes})
    row = {
        "samples": {"train": len(train_set), "test": len(test_set)},
        "classes": len(train_set.classes),
        "epochs": recipe(name).epochs,
        "baselines": baselines(train_set, test_set),
        "runs": runs,
        "mean_test_accuracy": statistics.mean(run["test_accuracy"] for run in runs),
    }
    print(f"{name}: {row['mean_test_accuracy']:.4f}; {row['baselines']}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="holds the folder of each set")
    parser.add_argument("--out", type=Path, default=Path("runs/small_recipes"))
    parser.add_argument("--recipes", nargs="+", choices=FOLDERS, default=list(FOLDERS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--choose", action="store_true", help="compare settings on held-out training samples")
    action.add_argument("--carry", action="store_true", help="train the words with the settings of cifar10-small")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.recipes:
        folder = str(options.data / FOLDERS[name])
        if options.carry and name == WORDS:
            part = {"with_settings_of_cifar10_small": carry(folder, options.out, options.seeds)}
        elif options.choose and name in SETTINGS:
            part = {"choice": choose(name, folder, options.out)}
        elif not (options.carry or options.choose):
            part = measure(name, folder, options.out, options.seeds)
        else:
            continue
        # What was measured before stays, so that one recipe can be measured again.
        rows = json.loads(RESULTS.read_text())["recipes"] if RESULTS.exists() else {}
        result = {
            "command": "python benchmarks/small_recipes.py --data DIR --seeds N N",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread",
            "load_at_the_end": round(os.getloadavg()[0], 1),
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "scikit-learn": sklearn.__version__,
            },
            "recipes": {**rows, name: {**rows.get(name, {}), **part}},
            "note": NOTE,
        }
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
