"""Trains with momentum in 32 and in 8 bits, paired over seeds, and with evenly spaced levels to compare.

    python benchmarks/momentum.py [--seeds 3] [--recipe digits] [--data DIR] [--set FIELD=VALUE ...]

Same seeds, batches and initial weights for each way to store the momentum. Adds its result to results/momentum.json.
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
from unittest import mock

import torch
from torch import Tensor

from bso import momentum
from bso.recipes import Config, recipe
from bso.trainer import Trainer, load_data

RESULTS = Path(__file__).parent / "results" / "momentum.json"


def even_decode(codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return (codes.to(dtype).view(-1, momentum.BLOCK) * (scales[:, None] / 127)).view(-1)


def even_encode(values: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    blocks = values.view(-1, momentum.BLOCK)
    scales = blocks.abs().amax(dim=1)
    levels = blocks * torch.where(scales > 0, 127 / scales, 0.0)[:, None]
    return (levels + torch.rand(levels.shape, generator=random)).floor().to(torch.int8).view(-1), scales.float()


def accuracy(config: Config, sets: Any) -> dict[str, float]:
    run = Trainer(config, *sets)
    for _ in range(config.epochs):
        run.train_epoch()
        line = run.finish_epoch()
    return {"test_accuracy": line["test_accuracy"], "flip_ratio": line["flip_ratio"]}


def ways(config: Config, sets: Any) -> dict[str, Callable[[], dict[str, float]]]:
    eight = dataclasses.replace(config, momentum_bits=8)

    def even() -> dict[str, float]:
        with mock.patch("bso.optim.encode", even_encode), mock.patch("bso.optim.decode", even_decode):
            return accuracy(eight, sets)

    return {"32": lambda: accuracy(config, sets), "8": lambda: accuracy(eight, sets), "8, even levels": even}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--data")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    changes = {name: json.loads(value) for name, _, value in (text.partition("=") for text in options.set)}
    base = dataclasses.replace(recipe(options.recipe), **changes)
    sets, runs = load_data(base, options.data), []
    for seed in range(options.seeds):
        for way, train in ways(dataclasses.replace(base, seed=seed), sets).items():
            runs.append({"seed": seed, "momentum": way, **train()})
            print(json.dumps(runs[-1]), flush=True)
    by_way = {way: [run["test_accuracy"] for run in runs if run["momentum"] == way] for way in ways(base, sets)}
    differences = {
        way: [100 * (a - b) for a, b in zip(values, by_way["32"], strict=True)] for way, values in by_way.items()
    }
    result = {
        "recipe": options.recipe,
        "changes": changes,
        "data": "bundled" if base.dataset == "digits" else "real",
        "seeds": options.seeds,
        "mean_accuracy": {way: statistics.mean(values) for way, values in by_way.items()},
        "points_against_32_bits": differences,
        "mean_points_against_32_bits": {way: statistics.mean(values) for way, values in differences.items()},
        "runs": runs,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    kept = [r for r in before if (r["recipe"], r["changes"]) != (options.recipe, changes)]
    RESULTS.write_text(json.dumps([*kept, result], indent=1) + "\n")


if __name__ == "__main__":
    main()
