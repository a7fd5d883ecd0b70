"""The recipes for CIFAR-10 on a small machine: accuracy on all test images, trained and deployed, and processor time.

    python benchmarks/cifar10_recipes.py --data DIR [--out RUNS] [--recipes cifar10-small] [--seeds 0 1]

Each recipe is trained on one thread, as it is, on all 50,000 training images. Accuracies are plain: every test image
once, the network after its last epoch; `flip_averaged` also shows the network the mirror image and adds the outputs.
Times include that of the teacher, if the recipe has one. Every run is a run directory in RUNS, such as
cifar10-medium-s0: a finished one is not trained again, an interrupted one goes on. So a run can be trained by two
processes first, `torchrun --nproc-per-node 2 -m bsnn train cifar10-medium --seed 0 --out RUNS/cifar10-medium-s0`; their
times are added. What is finished goes into results/cifar10_recipes.json; what was measured before stays, also other
seeds of the same recipe.
"""

import argparse
import json
import os
import platform
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bsnn
from bsnn.cli._runs import export_run
from bsnn.data.accuracy import accuracy
from bsnn.deploy.files import batches
from bsnn.paper.recipes import recipe
from bsnn.train.config import Config
from bsnn.train.fields import written
from bsnn.train.loop import train

RESULTS = Path(__file__).parent / "results" / "cifar10_recipes.json"
RECIPES = ("cifar10-small", "cifar10-medium")
CHOICE = (
    "Network, rates, schedule and augmentation were chosen from more than 45 settings (not all were counted), by the "
    "accuracy on 3,000 or 5,000 training images that were held out; the teacher of the last four had learned these "
    "images too. Test accuracy was seen in two decisions: a stem of stride 2, at first dropped because of it, and two "
    "former teachers, dropped because of it. The present teacher and the number of epochs were set without a trial."
)


def _history(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def settings(config: Config) -> dict[str, Any]:
    """The fields that differ from the defaults, as JSON gives them back."""
    usual = asdict(Config())
    return json.loads(json.dumps({key: value for key, value in asdict(config).items() if value != usual[key]}))


def measure(name: str, seed: int, data: str, out: Path) -> dict[str, Any]:
    """Trains a recipe with a seed, or goes on, and measures the network and its model file."""
    run = out / f"{name}-s{seed}"
    train(replace(recipe(name), seed=seed), run, data=data, resume=True)
    model = run / "model.bsnn"
    if not model.exists():
        export_run(run, model)
    engine, images = bsnn.load(model), bsnn.data.cifar10(data, "test")

    def with_mirror_image(inputs: np.ndarray) -> np.ndarray:
        return (engine.outputs(inputs) + engine.outputs(np.ascontiguousarray(inputs[..., ::-1]))).argmax(1)

    histories = [_history(folder) for folder in (run, run / "teacher") if folder.exists()]
    epochs = [epoch for history in histories for epoch in history]
    line = {
        "seed": seed,
        "processes": json.loads((run / "config.json").read_text())["computed_by"][-1]["processes"],
        "test_accuracy": bsnn.train.evaluate_run(run, data)["test_accuracy"],
        "deployed_accuracy": accuracy(engine.predict, batches(engine, images)).accuracy,
        "flip_averaged": accuracy(with_mirror_image, batches(engine, images)).accuracy,
        "train_accuracy": histories[0][-1]["train_accuracy"],
        "accuracy_of_the_teacher": histories[1][-1]["test_accuracy"] if len(histories) > 1 else None,
        "processor_minutes": round(sum(epoch["processor_seconds"] for epoch in epochs) / 60, 1),
        "minutes": round(sum(epoch["seconds"] for epoch in epochs) / 60, 1),
        "bytes": model.stat().st_size,
    }
    print(name, line, flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder of CIFAR-10")
    parser.add_argument("--out", type=Path, default=Path("runs/cifar10_recipes"))
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.recipes:
        runs = [measure(name, seed, options.data, options.out) for seed in options.seeds]
        config, rows = recipe(name), json.loads(RESULTS.read_text())["recipes"] if RESULTS.exists() else {}
        trained = {
            "model": config.model,
            "plan": written(config.plan),
            "time_steps": config.time_steps,
            "epochs": config.epochs,
            "stages": written(config.stages),
            "teacher": config.teacher or None,
            # Without them, seeds of former settings would count as seeds of the recipe.
            "settings": settings(config),
        }
        before = rows.get(name, {})
        if trained.items() <= before.items():
            runs += [run for run in before["runs"] if run["seed"] not in options.seeds]
        runs.sort(key=lambda run: run["seed"])
        row = {**trained, "runs": runs, "mean_test_accuracy": statistics.mean(run["test_accuracy"] for run in runs)}
        result = {
            "command": "python benchmarks/cifar10_recipes.py --data DIR",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread per process",
            "versions": {"bsnn": bsnn.__version__, "python": platform.python_version(), "torch": torch.__version__},
            "choice": CHOICE,
            "recipes": {**rows, name: row},
        }
        RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
