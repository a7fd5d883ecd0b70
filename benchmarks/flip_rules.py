"""Thresholds that mean something: flip rules with and without annealing, over rates of the momentum.

    python benchmarks/flip_rules.py [--seeds 0 1 2]

A narrow network on 400 digits, 15 epochs, T = 2; accuracy on 600 other training images, so that the test set has no
part in the choice. Writes results/flip_rules.json after each seed.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bsnn.nn.bits import BinaryParameter
from bsnn.optim import TBSO
from bsnn.optim.base import FlipRule
from bsnn.paper.recipes import recipe
from bsnn.train.build import load_data
from bsnn.train.config import Config
from bsnn.train.trainer import Trainer

RESULTS = Path(__file__).parent / "results" / "flip_rules.json"
BASE = dataclasses.replace(
    recipe("digits"), width=0.5, train_samples=400, validation_samples=600, batch_size=32, time_steps=2
)
SHOWN = ("train_samples", "validation_samples", "epochs", "time_steps", "width")
RATES = (1e-3, 1e-2, 5e-2)


class Share(TBSO):
    """Flips the share γ of a layer's weights, those with the largest W·M, as far as it is above 0."""

    def rule(self, group: dict[str, Any], parameter: BinaryParameter, t: int | None) -> FlipRule:
        """See `FlipOptimizer.rule`."""

        def flips(signs: Tensor, momentum: Tensor) -> Tensor:
            pressure, count = signs * momentum, int(group["gamma"] * momentum.numel())
            threshold = pressure.topk(count).values[-1].clamp(min=0) if count else torch.inf
            return (pressure >= threshold) & (pressure > 0)

        return flips


CONSTANT = {"beta_schedule": "constant"}
RULES: dict[str, dict[str, Any]] = {
    "T-BSO, 1 − β1 annealed": {},
    "T-BSO": CONSTANT,
    "T-BSO, v of recent gradients (1 − β2 = 0.01), γ = 0.1": {**CONSTANT, "one_minus_beta2": 1e-2, "gamma": 0.1},
    "T-BSO, bias-corrected v, γ = 0.1": {**CONSTANT, "gamma": 0.1, "bias_correction": True},
    "the largest W·M, 5 % of the weights, annealed": {
        **CONSTANT, "optimizer": "__main__:Share", "gamma": 0.05, "gamma_schedule": "cosine"
    },
    "Sigma-BSO, γ = 2": {**CONSTANT, "optimizer": "sigma", "gamma": 2.0},
    "Sigma-BSO, γ = 3": {**CONSTANT, "optimizer": "sigma", "gamma": 3.0},
}  # fmt: skip


def accuracy(config: Config) -> float:
    trainer = Trainer(config, *load_data(config, None))
    for epoch in range(config.epochs):
        trainer.train_epoch()
        trainer.epoch, trainer.batch = epoch + 1, 0  # measured at the end only
    trainer.estimate_statistics()
    return trainer.evaluate().accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    found: dict[tuple[str, float], list[float]] = {(name, rate): [] for name in RULES for rate in RATES}
    for number, seed in enumerate(seeds):
        for name, rate in found:
            config = dataclasses.replace(BASE, seed=seed, one_minus_beta1=rate, **RULES[name])
            found[name, rate].append(accuracy(config))
            print(f"seed {seed}, 1 − β1 = {rate:g}, {name}: {found[name, rate][-1]:.4f}", flush=True)
        result = {
            "command": "python benchmarks/flip_rules.py --seeds " + " ".join(map(str, seeds[: number + 1])),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread",
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "setup": {name: getattr(BASE, name) for name in SHOWN},
            "rates": RATES,
            "rules": {
                name: [
                    {
                        "mean": statistics.mean(found[name, rate]),
                        "standard_deviation": statistics.stdev(found[name, rate]) if number else None,
                        "accuracies": found[name, rate],
                    }
                    for rate in RATES
                ]
                for name in RULES
            },
        }
        RESULTS.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
