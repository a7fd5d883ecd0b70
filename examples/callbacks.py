"""Callbacks: objects that see a training run as it goes on, and can change or end it.

A callback has some of the methods `on_start(trainer)`, `on_update(trainer)` (after the updates of each batch),
`on_epoch(trainer, metrics)` and `on_end(trainer)`. Under torchrun it is called on the first process only, unless it has
`every_process = True`, which one that changes the training needs.
"""

import dataclasses
import tempfile
from typing import Any

import bsnn


def numbers(metrics: Any) -> dict[str, float]:
    """The plain numbers of an epoch."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}


class WeightsAndBiases:
    """Logs every epoch to Weights & Biases (`pip install wandb`)."""

    def on_start(self, trainer: Any) -> None:  # noqa: D102
        import wandb

        self.run = wandb.init(project="bsnn", config=dataclasses.asdict(trainer.config))

    def on_epoch(self, trainer: Any, metrics: Any) -> None:  # noqa: D102
        self.run.log(numbers(metrics), step=metrics["epoch"])


class MLflow:
    """Logs every epoch to MLflow (`pip install mlflow`)."""

    def on_start(self, trainer: Any) -> None:  # noqa: D102
        import mlflow

        self.mlflow = mlflow
        mlflow.log_params(dataclasses.asdict(trainer.config))

    def on_epoch(self, trainer: Any, metrics: Any) -> None:  # noqa: D102
        self.mlflow.log_metrics(numbers(metrics), step=metrics["epoch"])


class StopAtRest:
    """Notes how many weights flip, batch by batch, and ends training when hardly any do."""

    def __init__(self, least: float) -> None:
        self.least = least
        self.ratios: list[float] = []

    def on_update(self, trainer: Any) -> None:
        """Notes the share of the weights that flipped in the last update of the batch."""
        self.ratios.append(trainer.flip.flip_ratio)

    def on_epoch(self, trainer: Any, metrics: Any) -> None:
        """Asks for the end: this epoch is the last one."""
        if metrics["flip_ratio"] < self.least:
            trainer.stop(f"only {metrics['flip_ratio']:.2%} of the weights flipped per update")


def main() -> None:
    """Trains until the weights have come to rest."""
    config = dataclasses.replace(bsnn.recipe("digits"), plan=(16, 32, "pool", 32), epochs=4)
    rest = StopAtRest(least=0.02)
    with tempfile.TemporaryDirectory() as folder:
        # Add WeightsAndBiases() or MLflow() to the list if you use one of them.
        result = bsnn.train.train(config, folder, callbacks=[rest])
    print(f"{rest.ratios[0]:.1%} of the weights flipped in the first batch, {rest.ratios[-1]:.1%} in the last")
    print(f"after {result['epochs']} epochs: {result.get('stopped', 'trained to the end')}")
    print(f"test accuracy {result['test_accuracy']:.1%}")


if __name__ == "__main__":
    main()
