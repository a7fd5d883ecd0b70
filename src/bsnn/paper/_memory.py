"""What training holds, counted tensor by tensor, for Table 1 and Figure 4."""

import dataclasses
from typing import Any

import numpy as np
from torch import Tensor

from bsnn.data.dataset import ArrayDataset
from bsnn.kernels.memory import peak_bytes
from bsnn.nn.bits import BinaryParameter
from bsnn.paper._target import Settings
from bsnn.paper.recipes import recipe
from bsnn.train.config import Config
from bsnn.train.trainer import Trainer

METHODS: dict[str, dict[str, Any]] = {
    "BPTT": {"weights": "latent", "gradient": "bptt", "sgd_momentum": 0.9},
    "OTTT": {"weights": "latent", "gradient": "ottt", "sgd_momentum": 0.9},
    "BSO": {"optimizer": "bso"},
    "T-BSO": {"optimizer": "tbso"},
}


def memory(settings: Settings, method: str, time_steps: int) -> dict[str, Any]:
    """What a method holds in two updates from nothing: some optimizers make their momentum at the end of the first."""
    width, batch_size = _size(settings)
    config = dataclasses.replace(
        recipe("cifar10-tbso-t4"), width=width, time_steps=time_steps, batch_size=batch_size, **METHODS[method]
    )
    weights = kept = 0

    def update() -> None:
        nonlocal weights, kept
        trainer = Trainer(config, *_samples(config))
        trainer.train_epoch()
        weights = sum(p.bits.nbytes if isinstance(p, BinaryParameter) else p.nbytes for p in trainer.net.parameters())
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


def setup(settings: Settings) -> str:
    """What is measured in words, and what the paper measured."""
    width, batch_size = _size(settings)
    return (
        f"VGG-11 of width {width:g}, batches of {batch_size} images of 32 × 32, two updates (scale {settings.scale}); "
        "every tensor that is made counts from its birth to its death. The paper: VGG-11 of width 1 on CIFAR-10, a "
        "GPU's memory."
    )


def bytes_of_v(points: dict[tuple[str, int], dict[str, Any]], time_steps: int) -> int:
    """What T-BSO keeps and BSO does not."""
    tbso, bso = (points[method, time_steps]["optimizer_bytes"] for method in ("T-BSO", "BSO"))
    return tbso - bso


def megabytes(number: int) -> str:
    """A number of bytes as a cell of a table."""
    return f"{number / 1e6:.2f}"
