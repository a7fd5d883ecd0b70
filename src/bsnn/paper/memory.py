"""Table 1 and Figure 4: what training holds, counted tensor by tensor (`bsnn.kernels.memory`), as T grows."""

import dataclasses
from typing import Any

import numpy as np
from torch import Tensor

from bsnn.data.dataset import ArrayDataset
from bsnn.kernels.memory import peak_bytes
from bsnn.nn.bits import BinaryParameter
from bsnn.paper.recipes import recipe
from bsnn.paper.target import Outcome, Settings
from bsnn.train.config import Config
from bsnn.train.trainer import Trainer

_METHODS: dict[str, dict[str, Any]] = {
    "BPTT": {"weights": "latent", "gradient": "bptt", "sgd_momentum": 0.9},
    "OTTT": {"weights": "latent", "gradient": "ottt", "sgd_momentum": 0.9},
    "BSO": {"optimizer": "bso"},
    "T-BSO": {"optimizer": "tbso"},
}
_PAPER_TABLE_1 = {
    "BPTT": ("O(n²L)", "O(n²L + nLT)"),
    "OTTT": ("O(n²L)", "O(n²L + nL)"),
    "BSO": ("O(n²L/32)", "O(n²L + nL)"),
    "T-BSO": ("O(n²L/32)", "O(n²L + LT + nL)"),
}
_PAPER_GIGABYTES = {"BPTT": (2.86, 58.18), "BSO": (2.9, 2.9), "T-BSO": (3.1, 3.1)}


def _measure(method: str, time_steps: int, width: float, batch_size: int) -> dict[str, Any]:
    """Two updates from nothing: some optimizers make their momentum at the end of the first."""
    config = dataclasses.replace(
        recipe("cifar10-tbso-t4"), width=width, time_steps=time_steps, batch_size=batch_size, **_METHODS[method]
    )
    weights = kept = 0

    def update() -> None:
        nonlocal weights, kept
        trainer = Trainer(config, *_samples(config))
        trainer.train_epoch()
        for parameter in trainer.net.parameters():
            weights += parameter.bits.nbytes if isinstance(parameter, BinaryParameter) else parameter.nbytes
        states = [entry for optimizer in trainer.optimizers for entry in optimizer.state.values()]
        kept = sum(value.nbytes for entry in states for value in entry.values() if isinstance(value, Tensor))

    peak = peak_bytes(update)
    return {
        "method": method,
        "time_steps": time_steps,
        "peak_bytes": peak,
        "weight_bytes": weights,
        "optimizer_bytes": kept,
        "activation_bytes": peak - weights - kept,
    }


def _samples(config: Config) -> tuple[ArrayDataset, ArrayDataset]:
    """Two batches; what is in them does not matter."""
    labels = np.arange(2 * config.batch_size) % 10
    samples = np.zeros((2 * config.batch_size, 3, 32, 32), np.uint8)
    classes = tuple("0123456789")
    data = ArrayDataset("zeros", "image", classes, labels, samples, (0.5,) * 3, (0.25,) * 3, 255.0)
    return data, data


def _size(settings: Settings) -> tuple[float, int]:
    return {"smoke": (0.1, 2), "small": (0.25, 16), "paper": (1.0, 128)}[settings.scale]


def _words(settings: Settings) -> str:
    width, batch_size = _size(settings)
    return (
        f"VGG-11 of width {width:g}, batches of {batch_size} images of 32 × 32, two updates (scale {settings.scale}); "
        "every tensor that is made counts from its birth to its death. The paper: VGG-11 of width 1 on CIFAR-10, a "
        "GPU's memory."
    )


def table1(settings: Settings) -> Outcome:
    """Memory complexity of training methods, and what it comes to."""
    width, batch_size = _size(settings)
    steps = (1, 2) if settings.scale == "smoke" else (1, 8)
    points = {(m, t): _measure(m, t, width, batch_size) for m in _METHODS for t in steps}
    outcome = Outcome("Table 1: memory of training", _words(settings), data=list(points.values()))
    rows = []
    for method, (weights, state) in _PAPER_TABLE_1.items():
        first, last = (points[method, t] for t in steps)
        held = [point["peak_bytes"] - point["weight_bytes"] for point in (first, last)]
        rows.append(
            [
                method,
                weights,
                _megabytes(first["weight_bytes"]),
                state,
                *map(_megabytes, held),
                f"{held[1] / held[0]:.2f}",
            ]
        )
    columns = ["method", "weights, paper", "weights, MB", "state, paper", *(f"state at T = {t}, MB" for t in steps)]
    outcome.add_table("n neurons a layer, L layers, T time steps", [*columns, "growth"], rows)
    v_bytes = _bytes_of_v(points, steps[-1])
    outcome.notes = [
        "Weights count the real-valued first convolution and classifier too; BPTT and OTTT hold latent weights. State "
        "is everything else at the peak: momentum, gradients, activations, traces.",
        "The paper gives orders and no numbers, and ours follow them: only BPTT's state grows with T. T-BSO's term LT, "
        f"a v for each layer and time step, is {v_bytes:,} bytes here at T = {steps[-1]}.",
    ]
    return outcome


def figure4(settings: Settings) -> Outcome:
    """Memory against the number of time steps."""
    width, batch_size = _size(settings)
    steps = (1, 2) if settings.scale == "smoke" else (1, 5, 10, 15, 20, 25, 30, 35)
    methods = [method for method in _METHODS if method != "OTTT"]
    points = {(m, t): _measure(m, t, width, batch_size) for m in methods for t in steps}
    outcome = Outcome("Figure 4: memory against time steps", _words(settings), data=list(points.values()))
    rows = []
    for method in methods:
        first, last = points[method, steps[0]], points[method, steps[-1]]
        paper = _PAPER_GIGABYTES[method]
        rows.append(
            [
                method,
                f"{paper[0]} → {paper[1]} GB",
                f"{paper[1] / paper[0]:.1f}",
                f"{_megabytes(first['peak_bytes'])} → {_megabytes(last['peak_bytes'])} MB",
                f"{last['peak_bytes'] / first['peak_bytes']:.2f}",
                f"{last['activation_bytes'] / first['activation_bytes']:.2f}",
            ]
        )
        lines = [[t, points[method, t]["peak_bytes"] / 1e6] for t in steps]
        outcome.figures = outcome.figures or [
            {"kind": "lines", "title": "peak memory, MB", "lines": {}, "x_label": "time steps"}
        ]
        outcome.figures[0]["lines"][method] = lines
    columns = [
        "method",
        "paper, T = 1 → 35",
        "growth",
        f"ours, T = {steps[0]} → {steps[-1]}",
        "growth",
        "of activations",
    ]
    outcome.add_table("Peak memory of training", columns, rows)
    v_bytes = _bytes_of_v(points, steps[-1])
    outcome.notes = [
        "What is to be compared is the growth. Activations are all but weights and the optimizers' state: gradients "
        "and transients are among them. A GPU's memory, the paper's measure, also holds the driver's and libraries' "
        "own, which does not grow with T; we count tensors alone.",
        f"T-BSO keeps {v_bytes:,} bytes more than BSO at T = {steps[-1]}, its v; in the paper they are 0.2 GB apart, "
        "which v cannot be.",
    ]
    return outcome


def _bytes_of_v(points: dict[tuple[str, int], dict[str, Any]], time_steps: int) -> int:
    """What T-BSO keeps and BSO does not."""
    ours, plain = (points[method, time_steps]["optimizer_bytes"] for method in ("T-BSO", "BSO"))
    return ours - plain


def _megabytes(number: int) -> str:
    return f"{number / 1e6:.2f}"
