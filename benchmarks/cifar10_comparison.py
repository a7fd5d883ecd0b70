"""T-BSO, BSO, latent and real weights, and Q-SNN on CIFAR-10: the network of cifar10-small and the same budget.

    python benchmarks/cifar10_comparison.py --data DIR [--out RUNS] [--stage STAGE] [--methods NAME ...]

The stages:

select    For each method one knob: the middle three of a ladder of values, and values beyond as long as the best is at
          the edge of those tried, by the accuracy on 5,000 training images that are held out, spread evenly over the
          set. To be affordable, these runs train on 10,000 of the other 45,000 images for as many epochs as `compare`,
          hence with a fifth of its updates. The test set is not read.
compare   Each method with the value that was chosen, 12 epochs (half of the recipe's) on all 50,000 training images,
          all 10,000 test images, seeds 0 to 2, every method's seed 0 first.
eight     T-BSO as in `compare`, with its momentum in eight bits; paired with it by seed.
table     Trains nothing; only writes down what is finished.

Without --stage all of them, in this order. Each run is a run directory in RUNS; an interrupted one goes on, and one
that another process is training is passed over, so that two processes of one thread each can share the work. What is
finished goes into results/cifar10_comparison.json, which also names what is missing. What the file holds is not trained
again unless the recipe or the method has changed since, so that the work can be spread over machines.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cifar10_recipes import settings

from bsnn.atomic import write_file
from bsnn.errors import UserError
from bsnn.paper.recipes import recipe
from bsnn.train.config import Config
from bsnn.train.loop import check_ready, train
from bsnn.train.trainer import Diverged

RESULTS = Path(__file__).parent / "results" / "cifar10_comparison.json"
RECIPE, EPOCHS, SEEDS = "cifar10-small", 12, (0, 1, 2)
VALIDATION_SAMPLES, SELECTION_SAMPLES = 5_000, 10_000


class Method(NamedTuple):
    """What differs from the recipe, and the ladder of values of one knob."""

    fields: dict[str, Any]
    knob: str
    ladder: tuple[float, ...]


# Of all that SGD trains. The recipe's is 1.
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_OF_QSNN = ("neuron", "surrogate", "weights", "gradient", "batchnorm", "method", "mse_share", "weight_decay")
METHODS = {
    # A γ on the scale of the momentum's noise needs a second moment that is right from the start.
    "tbso": Method({"optimizer": "tbso", "bias_correction": True}, "gamma", (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 0.3)),
    # Here γ is on the scale of the gradients. The paper's is 5e-7.
    "bso": Method({"optimizer": "bso"}, "gamma", (1.6e-10, 8e-10, 4e-9, 2e-8, 1e-7, 5e-7, 2.5e-6)),
    "latent": Method({"weights": "latent"}, "learning_rate", RATES),
    "real": Method({"weights": "real"}, "learning_rate", RATES[:-1]),
    # Brings its own weights, neurons, loss and decay of weights; the rest is the recipe's.
    "qsnn": Method(
        {"model": "bsnn.paper.qsnn:residual_network"}
        | {name: getattr(recipe("cifar10-qsnn"), name) for name in _OF_QSNN},
        "learning_rate",
        RATES,
    ),
}


class Runs:
    """Runs by name: those that were measured before, and run directories.

    Args:
        folder: Where the run directories are.
        data: The folder of CIFAR-10.
        measured: Results by name of a run.
        few: What makes runs tiny, to try the script.
    """

    def __init__(self, folder: Path, data: str, measured: dict[str, dict[str, Any]], few: dict[str, Any]) -> None:
        self.folder, self.data, self.measured, self._few = folder, data, measured, few

    def result(self, name: str, config: Config, *, to_train: bool) -> dict[str, Any] | None:
        """What a run ended with; trains it first if it has not ended. None if another process is at it."""
        config, run = dataclasses.replace(config, **self._few), self.folder / name
        if name not in self.measured and to_train and _ended(run, config) is None:
            train_run(run, config, self.data)
        if name not in self.measured and (ended := _ended(run, config)) is not None:
            self.measured[name] = ended
        return self.measured.get(name)

    def select(self, method: str, *, to_train: bool) -> dict[float, dict[str, Any]] | None:
        """Results by value of the knob; None if one is missing."""
        fields, knob, ladder = METHODS[method]
        base = dataclasses.replace(
            recipe(RECIPE),
            epochs=EPOCHS,
            validation_samples=VALIDATION_SAMPLES,
            final_test=False,
            train_samples=SELECTION_SAMPLES,
            **fields,
        )
        low, high, tried = len(ladder) // 2 - 1, len(ladder) // 2 + 1, {}
        while True:
            for value in ladder[low : high + 1]:
                if value not in tried:
                    config = dataclasses.replace(base, **{knob: value})
                    tried[value] = self.result(f"select-{method}-{knob}={value:g}", config, to_train=to_train)
            if None in tried.values():
                return None
            best = ladder.index(best_of(tried))
            if low < best < high or best in (0, len(ladder) - 1):
                return dict(sorted(tried.items()))
            low, high = min(low, best - 1), max(high, best + 1)

    def compare(self, method: str, seed: int, *, to_train: bool, bits: int = 32) -> dict[str, Any] | None:
        """The result of a method with the value of its knob that was chosen, if it is."""
        tried = self.select(method, to_train=False)
        if tried is None:
            return None
        fields, knob, _ = METHODS[method]
        chosen = best_of(tried)
        changes = {**fields, "epochs": EPOCHS, "seed": seed, "momentum_bits": bits, knob: chosen}
        # The value is in the name, so that another choice is another run.
        name = f"{'eight' if bits == 8 else 'compare'}-{method}-{knob}={chosen:g}-s{seed}"
        return self.result(name, dataclasses.replace(recipe(RECIPE), **changes), to_train=to_train)


def train_run(run: Path, config: Config, data: str) -> None:
    """Trains a run to its end, or until it diverges, unless another process is at it."""
    print(f"training {run.name}", file=sys.stderr, flush=True)
    try:
        train(config, run, data=data, resume=True)
    except Diverged as error:
        (run / "diverged.txt").write_text(f"{error}\n")
    except UserError as error:
        print(f"passed over {run.name}: {error}", file=sys.stderr, flush=True)


def best_of(tried: Mapping[float, dict[str, Any] | None]) -> float:
    """The value with the highest accuracy."""
    return max(tried, key=lambda value: (tried[value] or {})["accuracy"] or 0.0)


def _ended(run: Path, config: Config) -> dict[str, Any] | None:
    """What a run directory ended with; None if it has not. A run that diverged has no accuracy."""
    try:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        return None
    diverged = (run / "diverged.txt").exists()
    if len(lines) < config.epochs and not diverged:
        return None
    saved = json.loads((run / "config.json").read_text())
    return {
        "accuracy": None if diverged else lines[-1].get("validation_accuracy", lines[-1].get("test_accuracy")),
        "train_accuracy": None if diverged else lines[-1]["train_accuracy"],
        "processor_minutes": round(sum(line["processor_seconds"] for line in lines) / 60, 1),
        "peak_bytes": max((line["peak_bytes"] for line in lines), default=None),
        "versions": {name: saved["computed_by"][-1][name] for name in ("bsnn", "python", "torch")},
        "git_commit": saved["git_commit"],
    }


def protocol(few: dict[str, Any]) -> dict[str, Any]:
    """All that results depend on, as JSON gives it back: those of another protocol are not taken over."""
    content = {
        "recipe": RECIPE,
        "settings": {**settings(recipe(RECIPE)), "epochs": EPOCHS, **few},
        "epochs_of_the_comparison": EPOCHS,
        "held_out_samples": VALIDATION_SAMPLES,
        "training_samples_of_the_selection": SELECTION_SAMPLES,
        "methods": {name: {**method.fields, "knob": method.knob} for name, method in METHODS.items()},
    }
    return json.loads(json.dumps(content))


def summary(runs: Runs) -> dict[str, Any]:
    """What is finished, method by method."""
    methods, missing = {}, []
    for method, (_, knob, ladder) in METHODS.items():
        tried = runs.select(method, to_train=False)
        results = {seed: runs.compare(method, seed, to_train=False) for seed in SEEDS}
        missing += [f"select-{method}"] if tried is None else []
        missing += [f"compare-{method}-s{seed}" for seed, result in results.items() if result is None]
        chosen = None if tried is None else best_of(tried)
        methods[method] = {
            "knob": knob,
            "held_out_accuracies": [[value, result["accuracy"]] for value, result in (tried or {}).items()],
            "chosen": chosen,
            "chosen_at_the_edge": chosen in (ladder[0], ladder[-1]),
            "test_accuracy": spread(results.values()),
            "test_accuracies": {seed: result["accuracy"] for seed, result in results.items() if result},
        }
    eight = {seed: runs.compare("tbso", seed, to_train=False, bits=8) for seed in SEEDS}
    missing += [f"eight-tbso-s{seed}" for seed, result in eight.items() if result is None]
    usual = methods["tbso"]["test_accuracies"]
    pairs = {seed: (usual.get(seed), found["accuracy"]) for seed, found in eight.items() if found}
    lost = {seed: 100 * (a - b) for seed, (a, b) in pairs.items() if a is not None and b is not None}
    return {
        "missing": missing,
        "methods": methods,
        "eight_bits": {"points_lost_by_seed": lost, "points_lost": statistics.mean(lost.values()) if lost else None},
        "runs": dict(sorted(runs.measured.items())),
    }


def spread(results: Iterable[dict[str, Any] | None]) -> dict[str, Any]:
    """Mean and spread of the runs that have ended."""
    done = [result["accuracy"] for result in results if result and result["accuracy"] is not None]
    if not done:
        return {}
    deviation = statistics.stdev(done) if len(done) > 1 else None
    return {
        "mean": statistics.mean(done),
        "standard_deviation": deviation,
        "lowest_and_highest": [min(done), max(done)],
    }


def measured_before(path: Path, content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The runs of a results file, if they are of this protocol."""
    before = json.loads(path.read_text()) if path.exists() else {}
    return before["runs"] if before.get("protocol") == content else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder of CIFAR-10")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/cifar10_comparison"), help="where the run directories are"
    )
    parser.add_argument("--stage", choices=("select", "compare", "eight", "table"))
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--result", type=Path, default=RESULTS)
    parser.add_argument("--smoke", action="store_true", help="tiny runs that try the script; give another --result")
    options = parser.parse_args()
    if options.smoke and options.result == RESULTS:
        parser.error("--smoke would replace the results; give another --result")
    torch.set_num_threads(1)
    few = {"width": 0.125, "epochs": 1, "train_samples": 256, "statistics_batches": 1} if options.smoke else {}
    content = protocol(few)
    if options.stage != "table":
        try:
            check_ready(recipe(RECIPE), options.data)
        except UserError as error:
            parser.error(f"{error}")
    runs = Runs(options.out, options.data, measured_before(options.result, content), few)
    if options.stage in ("select", None):
        for method in options.methods:
            runs.select(method, to_train=True)
    if options.stage in ("compare", None):
        for seed in SEEDS:
            for method in options.methods:
                runs.compare(method, seed, to_train=True)
    if options.stage in ("eight", None) and "tbso" in options.methods:
        for seed in SEEDS:
            runs.compare("tbso", seed, to_train=True, bits=8)
    # Another process may have added to the file since.
    runs.measured = {**measured_before(options.result, content), **runs.measured}
    result = {
        "command": "python benchmarks/cifar10_comparison.py --data DIR",
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread per run",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "protocol": content,
        **summary(runs),
    }
    write_file(options.result, (json.dumps(result, indent=1) + "\n").encode())
    for name, row in result["methods"].items():
        measured = row["test_accuracy"]
        print(f"{name:7} {measured['mean']:.4f}" if measured else f"{name:7} nothing yet")
    if result["missing"]:
        print(f"missing: {', '.join(result['missing'])}")


if __name__ == "__main__":
    main()
