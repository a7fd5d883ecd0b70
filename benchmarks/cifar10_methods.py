"""T-BSO, BSO, latent and real weights on CIFAR-10: the same network, the same online gradients, the same budget.

    python benchmarks/cifar10_methods.py --data DIR --out RUNS [--stage full|select|compare|eight|table] [--threads 1]

full      recipe cifar10-narrow, seeds 0 and 1
select    for each method one knob of three values, and values beyond where the best of them was at the edge, by the
          accuracy on 5,000 training images that are held out, spread evenly over the set. To be affordable these
          train on 10,000 of the other 45,000 for as many epochs as `compare`, hence with a fifth of its updates. The
          test set is not read.
compare   each method with the knob that was chosen, 10 epochs (a third of the recipe's 30) on all 50,000 training
          images, all 10,000 test images, seeds 0 to 2, every method's seed 0 first
eight     T-BSO as in `compare`, with its momentum in eight bits; paired with it by seed
table     only writes the table

Without --stage all of them, in this order. Every run is a run directory in RUNS. A finished one is not trained again,
an interrupted one goes on, one that another process is training is passed over. Whatever is finished then goes into
results/cifar10_methods.json, and what is missing is named there.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cifar10_comparison import spread, train_run

from bsnn.paper.recipes import recipe
from bsnn.train.config import Config

RESULTS = Path(__file__).parent / "results" / "cifar10_methods.json"
EPOCHS, SEEDS, FULL_SEEDS = 10, (0, 1, 2), (0, 1)
VALIDATION_SAMPLES, SELECTION_SAMPLES = 5_000, 10_000

# Around 0.03, which recipes give to weights that SGD trains; the best of the first three was the largest.
SGD_RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
METHODS: dict[str, tuple[dict[str, Any], str, tuple[float, ...]]] = {
    # T-BSO's γ = 5e-7 is as good as 0 against its momentum, so what it depends on is the rate of the momentum.
    "tbso": ({"optimizer": "tbso"}, "one_minus_beta1", (1e-3, 3e-3, 1e-2)),
    # BSO's γ is on the scale of the gradients. The rate of its momentum is the recipe's. The paper's γ is 5e-7.
    "bso": ({"optimizer": "bso"}, "gamma", (4e-9, 2e-8, 1e-7, 5e-7, 2.5e-6)),
    "latent": ({"weights": "latent", "sgd_momentum": 0.9}, "learning_rate", SGD_RATES),
    "real": ({"weights": "real", "sgd_momentum": 0.9}, "learning_rate", SGD_RATES),
}
SMOKE = {"plan": (4, "pool", 8), "epochs": 1, "train_samples": 256, "statistics_batches": 1}


class Runs:
    """The run directories of the comparison, each with its config."""

    def __init__(self, folder: Path, data: str, smoke: bool) -> None:
        self.folder, self.data, self.smoke = folder, data, smoke

    def full(self) -> dict[Path, Config]:
        """A run of the whole recipe for each seed."""
        base = recipe("cifar10-narrow")
        return {self.folder / f"small-s{seed}": self._config(base, seed=seed) for seed in FULL_SEEDS}

    def selection(self, method: str) -> dict[Path, Config]:
        """A run for each value of the method's knob."""
        fields, knob, values = METHODS[method]
        base = dataclasses.replace(
            recipe("cifar10-narrow"),
            epochs=EPOCHS,
            validation_samples=VALIDATION_SAMPLES,
            final_test=False,
            train_samples=SELECTION_SAMPLES,
            **fields,
        )
        return {self.folder / f"select-{method}-{knob}={v:g}": self._config(base, **{knob: v}) for v in values}

    def comparison(self, method: str, seed: int) -> tuple[Path, Config] | None:
        """A run of the method with the knob that was chosen, if it is chosen."""
        chosen = self.chosen(method)
        if chosen is None:
            return None
        fields, knob, _ = METHODS[method]
        base = dataclasses.replace(recipe("cifar10-narrow"), epochs=EPOCHS, **fields)
        return self.folder / f"compare-{method}-s{seed}", self._config(base, seed=seed, **{knob: chosen})

    def eight_bits(self, seed: int) -> tuple[Path, Config] | None:
        """T-BSO's run of the comparison, with its momentum in eight bits."""
        pair = self.comparison("tbso", seed)
        return pair and (self.folder / f"eight-tbso-s{seed}", dataclasses.replace(pair[1], momentum_bits=8))

    def chosen(self, method: str) -> float | None:
        """The value of the knob with the highest held-out accuracy, if all values are tried."""
        knob = METHODS[method][1]
        results = {getattr(config, knob): result_of(run, config) for run, config in self.selection(method).items()}
        if None in results.values():
            return None
        return max(results, key=lambda value: (results[value] or {})["accuracy"] or 0.0)

    def _config(self, base: Config, **fields: Any) -> Config:
        return dataclasses.replace(base, **fields, **(SMOKE if self.smoke else {}))

    def train(self, run: Path, config: Config) -> None:
        """Trains a run to its end, unless it has ended or another process is at it."""
        if result_of(run, config) is not None:
            return
        train_run(run, config, self.data)


def result_of(run: Path, config: Config) -> dict[str, Any] | None:
    """What a run ended with; None if it has not ended. A run that diverged has no accuracy."""
    try:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        lines = []
    diverged = (run / "diverged.txt").exists()
    if len(lines) < config.epochs and not diverged:
        return None
    saved = json.loads((run / "config.json").read_text())
    return {
        "run": run.name,
        "accuracy": None if diverged else lines[-1].get("validation_accuracy", lines[-1].get("test_accuracy")),
        "train_minutes": round(sum(line["seconds"] for line in lines) / 60, 1),
        "peak_bytes": max((line["peak_bytes"] for line in lines), default=None),
        "versions": {name: saved["computed_by"][-1][name] for name in ("bsnn", "python", "torch")},
        "git_commit": saved["git_commit"],
    }


def table(runs: Runs, threads: int) -> dict[str, Any]:
    missing = []

    def ended(run: Path, config: Config) -> dict[str, Any] | None:
        result = result_of(run, config)
        if result is None:
            missing.append(run.name)
        return result

    full = [ended(run, config) for run, config in runs.full().items()]
    methods = {}
    for method, (fields, knob, values) in METHODS.items():
        tried = {getattr(config, knob): ended(run, config) for run, config in runs.selection(method).items()}
        chosen, results = runs.chosen(method), []
        for seed in SEEDS:
            pair = runs.comparison(method, seed)
            if pair is None:
                missing.append(f"compare-{method}-s{seed}")
            else:
                results.append(ended(*pair))
        methods[method] = {
            **fields,
            "knob": knob,
            "held_out_accuracies": [[value, result and result["accuracy"]] for value, result in tried.items()],
            "chosen": chosen,
            "chosen_at_the_edge": None if chosen is None else chosen in (values[0], values[-1]),
            "test_accuracy": spread(results),
            "test_accuracies": {
                seed: result["accuracy"] for seed, result in zip(SEEDS, results, strict=False) if result
            },
            "runs": [result for result in results if result],
        }
    return {
        "command": "python benchmarks/cifar10_methods.py --data DIR --out RUNS",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {threads} thread(s) a run",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "protocol": {
            "recipe": "cifar10-narrow",
            "epochs_of_the_comparison": EPOCHS,
            "held_out_samples": VALIDATION_SAMPLES,
            "training_samples_of_the_selection": SELECTION_SAMPLES,
            "smoke": runs.smoke,
        },
        "missing": missing,
        "eight_bits": eight_bits(runs, ended),
        "full_recipe": {"test_accuracy": spread(full), "runs": [result for result in full if result]},
        "methods": methods,
    }


def eight_bits(runs: Runs, ended: Callable[[Path, Config], dict[str, Any] | None]) -> dict[str, Any]:
    """What momentum in eight bits costs, in points of accuracy, by seed."""
    pairs = {seed: (runs.eight_bits(seed), runs.comparison("tbso", seed)) for seed in SEEDS}
    results = {seed: (ended(*eight), result_of(*usual)) for seed, (eight, usual) in pairs.items() if eight and usual}
    lost = {
        seed: 100 * (usual["accuracy"] - eight["accuracy"])
        for seed, (eight, usual) in results.items()
        if eight and usual and None not in (eight["accuracy"], usual["accuracy"])
    }
    return {
        "points_lost_by_seed": lost,
        "points_lost": statistics.mean(lost.values()) if lost else None,
        "runs": [eight for eight, _ in results.values() if eight],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder of CIFAR-10")
    parser.add_argument("--out", type=Path, required=True, help="where the run directories are")
    parser.add_argument("--stage", choices=("full", "select", "compare", "eight", "table"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--result", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="tiny runs that try the script; give another --result")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    runs = Runs(options.out, options.data, options.smoke)
    if options.stage in ("full", None):
        for run, config in runs.full().items():
            runs.train(run, config)
    if options.stage in ("select", None):
        for method in METHODS:
            for run, config in runs.selection(method).items():
                runs.train(run, config)
    if options.stage in ("compare", None):
        for seed in SEEDS:
            for method in METHODS:
                pair = runs.comparison(method, seed)
                if pair is not None:
                    runs.train(*pair)
    if options.stage in ("eight", None):
        for seed in SEEDS:
            pair = runs.eight_bits(seed)
            if pair is not None:
                runs.train(*pair)
    result = table(runs, options.threads)
    options.result.write_text(json.dumps(result, indent=1) + "\n")
    for name, row in {"full recipe": result["full_recipe"], **result["methods"]}.items():
        measured = row["test_accuracy"]
        text = f"{measured['mean']:.4f}, {len(row['runs'])} run(s)" if measured else "nothing yet"
        print(f"{name:12} {text}")
    if result["missing"]:
        print(f"missing: {', '.join(result['missing'])}")


if __name__ == "__main__":
    main()
