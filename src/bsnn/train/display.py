"""What a person sees of a training run: a progress bar on a terminal, lines on standard error, TensorBoard."""

import contextlib
import sys
import warnings
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bsnn.atomic import writing
from bsnn.train.distributed import World
from bsnn.train.metrics import EpochMetrics
from bsnn.train.trainer import Trainer, peak_bytes_of_process


class Display:
    """What a person sees of a run: a progress bar on a terminal, lines, TensorBoard; of the first process only."""

    def __init__(self, world: World) -> None:
        self.world = world

    @contextlib.contextmanager
    def shown(self, trainer: Trainer, folder: Path) -> Any:
        """Shows bar and TensorBoard while it lasts."""
        total = trainer.config.epochs * len(trainer.train_loader)
        # `disable=None` is tqdm's word for: only on a terminal.
        disable = None if self.world.is_first else True
        self.folder = folder
        self.writer = _tensorboard(folder, trainer.epoch) if self.world.is_first else None
        with tqdm(total=total, initial=trainer.update, unit="batch", disable=disable) as self.bar:
            try:
                yield
            finally:
                if self.writer is not None:
                    with contextlib.suppress(OSError):
                        self.writer.close()

    def report(self, text: str) -> None:
        """Says something on standard error, above the bar."""
        if self.world.is_first:
            tqdm.write(f"bsnn: {text}", file=sys.stderr)

    def after_batch(self, trainer: Trainer) -> None:
        """Moves the bar."""
        self.bar.update()
        if self.bar.disable:
            return
        accuracy, memory = trainer.tally.correct / trainer.tally.seen, peak_bytes_of_process(self.world.device) / 1e9
        flips = f", {trainer.flip.flip_ratio:.2%} flips" if trainer.flip else ""
        text = f"epoch {trainer.epoch + 1}, accuracy {accuracy:.3f}{flips}, {memory:.2f} GB"
        self.bar.set_description(text, refresh=False)

    def after_epoch(self, line: EpochMetrics, epochs: int) -> None:
        """Says how an epoch went, and what a person should know about it."""
        if self.writer is not None:
            with writing(self.folder):
                _log(self.writer, line)
        flips = f", flips {line['flip_ratio']:.3%}" if "flip_ratio" in line else ""
        self.report(
            f"epoch {line['epoch']}/{epochs}: test accuracy {line['test_accuracy']:.4f}, train accuracy "
            f"{line['train_accuracy']:.4f}, loss {line['train_loss']:.4f}{flips}, {line['seconds']:.0f} s"
        )
        for warning in line["warnings"]:
            self.report(f"warning: {warning}")


def _tensorboard(folder: Path, epoch: int) -> Any:
    with warnings.catch_warnings(), writing(folder):
        warnings.simplefilter("ignore")  # TensorBoard's own imports warn
        from torch.utils.tensorboard import SummaryWriter

        return SummaryWriter(str(folder), purge_step=epoch + 1)


def _log(writer: Any, line: EpochMetrics) -> None:
    for name, value in line.items():
        if isinstance(value, dict):
            for layer, number in value.items():
                writer.add_scalar(f"{name}/{layer}", number, line["epoch"])
        elif isinstance(value, int | float) and name != "epoch":
            writer.add_scalar(name, value, line["epoch"])
    writer.flush()
