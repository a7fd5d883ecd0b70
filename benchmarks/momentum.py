"""Trains with momentum in 32 and in 8 bits, paired over seeds, and with evenly spaced levels to compare.

    python benchmarks/momentum.py [--seeds 3] [--recipe digits] [--data DIR] [--set FIELD=VALUE ...]
    python benchmarks/momentum.py --recipe synthetic

Same seeds, batches and initial weights for each way to store the momentum. The recipe `synthetic` has no network: every
weight sees gradients with a mean of its own in noise ten times as large, while 1 − β1 is annealed from 1e-2 to 1e-6;
how far is the momentum from that in 32 bits, and how many weights end on the wrong side?

Adds its result to results/momentum.json.
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

from bsnn.optim import momentum
from bsnn.paper.recipes import recipe
from bsnn.train.config import Config
from bsnn.train.trainer import Trainer, load_data

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
        with mock.patch("bsnn.optim.base.encode", even_encode), mock.patch("bsnn.optim.base.decode", even_decode):
            return accuracy(eight, sets)

    return {"32": lambda: accuracy(config, sets), "8": lambda: accuracy(eight, sets), "8, even levels": even}


def synthetic(seed: int, num_weights: int = 64 * momentum.BLOCK, num_updates: int = 4000) -> list[dict[str, Any]]:
    random, dice = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
    deviation = torch.randn(num_weights, generator=random).exp()
    mean = 0.1 * deviation * torch.randn(num_weights, generator=random)
    signs = torch.randn(num_weights, generator=random).sign()
    storages = {"8": (momentum.encode, momentum.decode), "8, even levels": (even_encode, even_decode)}
    exact = torch.zeros(num_weights)
    stored = {way: encode(exact, dice) for way, (encode, _) in storages.items()}
    weights = {way: signs.clone() for way in ("32", *storages)}
    flips, lines = dict.fromkeys(weights, 0), []
    for update in range(1, num_updates + 1):
        rate = 10 ** (-2 - 4 * update / num_updates)
        gradient = mean + deviation * torch.randn(num_weights, generator=random)
        exact.lerp_(gradient, rate)
        now = {"32": exact}
        for way, (encode, decode) in storages.items():
            stored[way] = encode(decode(*stored[way]).lerp_(gradient, rate), dice)
            now[way] = decode(*stored[way])
        for way, values in now.items():
            flipping = weights[way] * values > 0
            weights[way][flipping] *= -1
            flips[way] += int(flipping.sum())
        if update % (num_updates // 8) == 0:
            lines += [
                {
                    "seed": seed,
                    "momentum": way,
                    "one_minus_beta1": rate,
                    "error": float((now[way] - exact).norm() / exact.norm()),
                    "no_sign": float((now[way] == 0).float().mean()),
                    "wrong_sign": float((now[way].sign() == -exact.sign()).float().mean()),
                    "weights_that_differ": float((weights[way] != weights["32"]).float().mean()),
                    "wrong_weights": float((weights[way] * mean > 0).float().mean()),
                    "wrong_weights_in_32_bits": float((weights["32"] * mean > 0).float().mean()),
                    "flips": flips[way],
                    "flips_against_32_bits": flips[way] / flips["32"],
                }
                for way in storages
            ]
            flips = dict.fromkeys(weights, 0)
    return lines


def save(result: dict[str, Any]) -> None:
    result |= {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    kept = [r for r in before if (r["recipe"], r["changes"]) != (result["recipe"], result["changes"])]
    RESULTS.write_text(json.dumps([*kept, result], indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--data")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.recipe == "synthetic":
        lines = [line for seed in range(options.seeds) for line in synthetic(seed)]
        for line in lines:
            print(json.dumps(line))
        save({"recipe": "synthetic", "changes": {}, "seeds": options.seeds, "lines": lines})
        return
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
    }
    save(result)


if __name__ == "__main__":
    main()
