"""What drives the result: one thing changed at a time."""

import dataclasses
import math
import statistics
from pathlib import Path
from typing import Any

import torch

from bsnn.optim import TBSO, SigmaBSO
from bsnn.paper._target import Findings, Settings
from bsnn.paper._trained import CIFAR10, DIGITS, check_all, config_at, mean, mean_and_spread, setup, trained
from bsnn.train.config import Config
from bsnn.train.load import loaded_run

_AUGMENTATION, _AUGMENTED = "autoaugment", dataclasses.replace(CIFAR10, time_steps=2)
_NAIVE: dict[str, Any] = {"optimizer": "bso", "one_minus_beta1": 1.0, "beta_schedule": "constant"}
_CORRECTED: dict[str, Any] = {"bias_correction": True}
_SIGMA: dict[str, Any] = {"optimizer": "sigma", "gamma": 2.0}
CHANGES: dict[str, dict[str, Any]] = {
    "as it is: 1 − β1 along a cosine": {},
    "T-BSO, 1 − β1 constant": {"beta_schedule": "constant"},
    "1 − β1 by steps of a tenth": {"beta_schedule": "step", "decay_epochs": 5},
    "1 − β1 by 1/√k": {"beta_schedule": "inverse_sqrt"},
    "γ = 5e-7 along a cosine": {"gamma_schedule": "cosine"},
    "learning rate constant": {"learning_rate_schedule": "constant"},
    "1 − β1 and learning rate constant": {"beta_schedule": "constant", "learning_rate_schedule": "constant"},
    "momentum begins at −1e-6 W": {"initial_momentum": 1e-6},
    "momentum begins at −1e-5 W": {"initial_momentum": 1e-5},
    "naive rule, γ = 1e-4": {**_NAIVE, "gamma": 1e-4},
    "naive rule, γ = 3e-4": {**_NAIVE, "gamma": 3e-4},
    "naive rule, γ = 1e-3": {**_NAIVE, "gamma": 1e-3},
    "BSO, γ = 5e-7": {"optimizer": "bso"},
    "BSO, γ = 5e-6": {"optimizer": "bso", "gamma": 5e-6},
    "BSO, γ = 5e-6 along a cosine": {"optimizer": "bso", "gamma": 5e-6, "gamma_schedule": "cosine"},
    "v bias-corrected, γ = 0.01": {**_CORRECTED, "gamma": 0.01},
    "v bias-corrected, γ = 0.03": {**_CORRECTED, "gamma": 0.03},
    "v bias-corrected, γ = 0.1": {**_CORRECTED, "gamma": 0.1},
    "v bias-corrected, γ = 0.3": {**_CORRECTED, "gamma": 0.3},
    "v bias-corrected, γ = 0.1 along a cosine": {**_CORRECTED, "gamma": 0.1, "gamma_schedule": "cosine"},
    "v bias-corrected, γ = 0.1, 1 − β1 constant": {**_CORRECTED, "gamma": 0.1, "beta_schedule": "constant"},
    "no trace (SLTT)": {"gradient": "sltt"},
    "Sigma-BSO, γ = 2, 1 − β1 constant": {**_SIGMA, "beta_schedule": "constant"},
    "Sigma-BSO, γ = 3, 1 − β1 constant": {**_SIGMA, "gamma": 3.0, "beta_schedule": "constant"},
    "Sigma-BSO, γ = 2": _SIGMA,
}


def measure(settings: Settings) -> Findings:
    """Trains with each change, and follows how large threshold and momentum are."""
    config = config_at(settings, DIGITS, "cifar10-tbso-t4")
    settings = dataclasses.replace(settings, runs=settings.runs / f"{settings.scale}-ablation")
    chosen = dict(list(CHANGES.items())[:2]) if settings.scale == "smoke" else CHANGES
    varied = {f"{number:02d}": dataclasses.replace(config, **fields) for number, fields in enumerate(chosen.values())}
    check_all(settings, varied)
    if settings.scale == "small" and settings.data:
        check_all(settings, {_AUGMENTATION: _AUGMENTED}, points=2)
    data = []
    for (run_name, varied_config), (name, fields) in zip(varied.items(), chosen.items(), strict=True):
        (point,) = trained(settings, run_name, varied_config)
        finished = (run for run, a in zip(point["runs"], point["accuracies"], strict=True) if a is not None)
        sizes = _sizes(settings.runs / run) if (run := next(finished, None)) else _NO_SIZES
        data.append({"change": name, "fields": fields, **point, **sizes})
    augmented = _cifar_augmentation(settings) if settings.scale == "small" and settings.data else []
    findings = Findings("What drives the result", setup(settings, config, "no such table"), data=data + augmented)
    base = mean(data[0]["accuracies"]) or 0.0
    findings.add_table(
        "One thing changed at a time; test accuracy, %",
        ["change", "accuracy", "difference", "threshold / RMS of M"],
        [
            [
                point["change"],
                mean_and_spread(point["accuracies"]),
                _difference(point["accuracies"], base),
                f"{share:.1e}" if (share := point["threshold_over_momentum"]) is not None else None,
            ]
            for point in data
        ],
    )
    if augmented:
        rows = [[point["change"], mean_and_spread(point["accuracies"])] for point in augmented]
        findings.add_table("AutoAugment, CIFAR-10 at the scale of Table 2, T = 2", ["change", "accuracy"], rows)
    findings.notes = [*beyond_noise(data, base), *_notes(data, config)]
    if not augmented and settings.scale == "small":
        findings.notes.append("AutoAugment needs color images: give --data with CIFAR-10.")
    return findings


def _notes(data: list[dict[str, Any]], config: Config) -> list[str]:
    settled = [
        f"{point['change'].removesuffix(', 1 − β1 constant')}: {mean_and_spread(point['accuracies'])}"
        for point in data
        if point["change"].endswith("1 − β1 constant")
    ]
    floors = [f"{p['momentum_over_noise']:.2f} ({p['change']})" for p in data if p["momentum_over_noise"] is not None]
    return [
        f"Without annealing 1 − β1: {'; '.join(settled)}. A threshold of the momentum's size (last column) holds back "
        "what its noise would flip; the paper's γ holds back nothing.",
        "The last column is measured at the end of the first run, median over layers and time steps: how far the "
        "threshold reaches into the momentum."
        + (f" The momentum's root mean square over that of pure noise is {', '.join(floors)}." if floors else ""),
        "The naive rule of Section 4.1 is BSO without momentum: a weight flips when its raw gradient is over γ. With "
        "bias correction γ is in units of the gradient's root mean square, of which the momentum's noise floor is "
        f"sqrt((1 − β1)/2), {math.sqrt(config.one_minus_beta1 / 2):.2f} before annealing. Sigma-BSO, which is not the "
        "paper's, has its γ in standard deviations of that noise.",
    ]


_NO_SIZES = {"threshold_over_momentum": None, "momentum_over_noise": None}


def _sizes(run: Path) -> dict[str, float | None]:
    """How large threshold and momentum are at the end of a run."""
    shares, floors = [], []
    with loaded_run(run) as trainer:
        assert trainer.flip is not None
        for group in trainer.flip.param_groups:
            for parameter in group["params"]:
                state = trainer.flip.state[parameter]
                momentum = state["momentum"].double().square().mean().sqrt()
                unit = torch.ones(1)
                if isinstance(trainer.flip, TBSO):
                    unit = torch.sqrt(trainer.flip.second_moment(parameter) + group["eps"])
                elif isinstance(trainer.flip, SigmaBSO):
                    unit = state["noise"].sqrt()
                    floors.append(float(momentum / unit))
                shares += (group["gamma"] * unit / momentum).flatten().tolist()
    return {
        "threshold_over_momentum": statistics.median(shares),
        "momentum_over_noise": statistics.median(floors) if floors else None,
    }


def beyond_noise(data: list[dict[str, Any]], base: float) -> list[str]:
    """Which changes do more than seeds do."""
    spreads = [
        statistics.stdev(p["accuracies"]) for p in data if len(p["accuracies"]) > 1 and None not in p["accuracies"]
    ]
    if not spreads:
        return []
    # Twice the standard error of the difference of two means.
    least = 2 * statistics.median(spreads) * math.sqrt(2 / len(data[0]["accuracies"]))
    beyond = [p for p in data[1:] if (value := mean(p["accuracies"])) is None or abs(value - base) > least]
    named = [f"{p['change']} ({_difference(p['accuracies'], base) or 'diverged'})" for p in beyond]
    return [
        f"The median standard deviation over seeds is {100 * statistics.median(spreads):.2f} points, so differences "
        f"under {100 * least:.2f} are not told from noise; all are against the one first row, and of twenty one is "
        f"beyond by chance. Beyond are: {'; '.join(named) or 'none'}."
    ]


def _cifar_augmentation(settings: Settings) -> list[dict[str, Any]]:
    points = trained(settings, _AUGMENTATION, _AUGMENTED, {"autoaugment": (False, True)})
    names = {False: "crop and flip", True: "crop, flip and AutoAugment"}
    return [{"change": names[point["autoaugment"]], **point} for point in points]


def _difference(accuracies: list[float | None], base: float) -> str | None:
    value = mean(accuracies)
    return None if value is None else f"{100 * (value - base):+z.2f}"
