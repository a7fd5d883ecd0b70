"""What a person sees of a training run: a progress bar on a terminal, lines on standard error, TensorBoard."""

import contextlib
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bsnn.atomic import writing
from bsnn.train.measure import peak_bytes_of_process
from bsnn.train.metrics import EpochMetrics, accuracy_on
from bsnn.train.stages import described
from bsnn.train.trainer import Trainer


def report(text: str) -> None:
    """Says something on standard error, above the progress bar; under torchrun, of the first process only."""
    if os.environ.get("RANK", "0") == "0":
        tqdm.write(f"bsnn: {text}", file=sys.stderr)


class Progress:
    """A callback that shows a progress bar on a terminal, and a line per epoch."""

    def on_start(self, trainer: Trainer) -> None:
        """Shows the bar."""
        for line in described(trainer.config):
            report(line)
        if trainer.teacher is not None and trainer.config.teacher_answers == "once":
            report(f"asking the teacher about {trainer.num_samples:,} samples before the first update")
        # `disable=None` is tqdm's word for: only on a terminal.
        self.bar = tqdm(total=trainer.total_batches, initial=trainer.batches, unit="batch", disable=None)

    def on_update(self, trainer: Trainer) -> None:
        """Moves the bar."""
        self.bar.update()
        if self.bar.disable:
            return
        accuracy, memory = trainer.tally.accuracy, peak_bytes_of_process(trainer.world.device) / 1e9
        flips = f", {trainer.flip.flip_ratio:.2%} flips" if trainer.flip else ""
        text = f"epoch {trainer.epoch + 1}, accuracy {accuracy:.3f}{flips}, {memory:.2f} GB"
        self.bar.set_description(text, refresh=False)

    def on_epoch(self, trainer: Trainer, metrics: EpochMetrics) -> None:
        """Says how an epoch went, and what a person should know about it."""
        accuracy = accuracy_on(trainer.split, metrics)
        measured = "" if accuracy is None else f"{trainer.split} accuracy {accuracy:.4f}, "
        flips = f", flips {metrics['flip_ratio']:.3%}" if "flip_ratio" in metrics else ""
        stage = f", stage {metrics['stage']}" if "stage" in metrics else ""
        report(
            f"epoch {metrics['epoch']}/{trainer.config.epochs}{stage}: {measured}train accuracy "
            f"{metrics['train_accuracy']:.4f}, loss {metrics['train_loss']:.4f}{flips}, {metrics['seconds']:.0f} s"
        )
        for warning in metrics["warnings"]:
            report(f"warning: {warning}")

    def on_end(self, trainer: Trainer) -> None:
        """Takes the bar away."""
        self.bar.close()


class TensorBoard:
    """A callback that writes every number of an epoch for TensorBoard.

    Args:
        folder: Where to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_start(self, trainer: Trainer) -> None:
        """Opens the files; what a run wrote before it was stopped and will write again is hidden."""
        with warnings.catch_warnings(), writing(self.folder):
            warnings.simplefilter("ignore")  # TensorBoard's own imports warn
            from torch.utils.tensorboard import SummaryWriter

            self.writer: Any = SummaryWriter(str(self.folder), purge_step=trainer.epoch + 1)

    def on_epoch(self, trainer: Trainer, metrics: EpochMetrics) -> None:
        """Writes the numbers."""
        with writing(self.folder):
            for name, value in metrics.items():
                if isinstance(value, dict):
                    for layer, number in value.items():
                        self.writer.add_scalar(f"{name}/{layer}", number, metrics["epoch"])
                elif isinstance(value, int | float) and name != "epoch":
                    self.writer.add_scalar(name, value, metrics["epoch"])
            self.writer.flush()

    def on_end(self, trainer: Trainer) -> None:
        """Closes the files."""
        with contextlib.suppress(OSError):
            self.writer.close()
