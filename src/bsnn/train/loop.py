"""The loop over epochs: a config to its end, with checkpoints to resume from bit for bit."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from bsnn.errors import UserError
from bsnn.online.ledger import predict_memory
from bsnn.train.config import Config, written
from bsnn.train.display import Display
from bsnn.train.distributed import joined_world, summed
from bsnn.train.load import build_trainer
from bsnn.train.metrics import EpochMetrics
from bsnn.train.run import RunDirectory, saved_config
from bsnn.train.trainer import Trainer


def train(
    config: Config,
    out: Path,
    *,
    data: str | None = None,
    resume: bool = False,
    workers: int = 0,
    checkpoint_minutes: float = 10.0,
    device: str = "auto",
) -> dict[str, Any]:
    """Trains to the end of a config and returns the result.

    Args:
        config: What to train, and how.
        out: The run directory.
        data: Folder of the data; None uses what `bsnn.data` has downloaded, or downloads it.
        resume: Go on from the last checkpoint in `out`, if there is one.
        workers: Processes that read files.
        checkpoint_minutes: Also write a checkpoint within an epoch after so many minutes.
        device: What computes: `cpu`, `cuda`, `cuda:N`, or `auto`, which is CUDA if it is there.

    Raises:
        UserError: If the run cannot start or go on; what was saved before is intact.
    """
    run = RunDirectory(out)
    with joined_world(device) as world, run.owned() if world.is_first else contextlib.nullcontext(), _fitting():
        state, notes = None, []
        if resume or world.restarted:
            state, notes = run.checkpoints.load_newest()
        elif run.checkpoints.newest_first():
            raise UserError(f"{out} holds a run already; go on with --resume, or choose another --out.")
        display = Display(world)
        for note in notes:
            display.report(f"warning: {note}")
        if state is not None:
            _check_same(out, config, saved_config(state))
            if state["place"][0] >= config.epochs:
                if world.is_first:
                    run.restore(config, data or run.data(), state["history"])
                return _result(run, state["history"], finished_before=True)
            data = data or run.data()
        trainer = build_trainer(config, data, world, workers, state)
        if world.is_first:
            run.start(config, data)
            run.write_history(trainer.history)
        for note in memory_notes(trainer):
            display.report(f"warning: {note}")
        with display.shown(trainer, run.path / "tensorboard"):
            _run_epochs(trainer, run, display, checkpoint_minutes)
        return _result(run, trainer.history, finished_before=False)


def memory_notes(trainer: Trainer) -> list[str]:
    """A warning if an online run will not fit into the memory that is free, before it starts."""
    if trainer.config.gradient == "bptt" or trainer.flip is None or trainer.world.device.type != "cpu":
        return []
    batch = trainer.config.batch_size // trainer.world.size
    sample = torch.zeros(1, *trainer.spec.shape[-3:])
    needed = predict_memory(trainer.net, sample, batch, momentum_bits=trainer.config.momentum_bits)["total"]
    free = free_bytes()
    if free is None or needed < free:
        return []
    return [
        f"training needs about {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free; lower --batch-size or --width, "
        "or set --momentum-bits 8"
    ]


def free_bytes() -> int | None:
    """Memory that new processes can have, if the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None


def _check_same(out: Path, config: Config, saved: Config) -> None:
    pairs = ((f.name.replace("_", "-"), getattr(saved, f.name), getattr(config, f.name)) for f in fields(Config))
    changed = [f"--{name} {written(before)} (now {written(now)})" for name, before, now in pairs if before != now]
    if changed:
        raise UserError(
            f"{out}: the run there was started with {', '.join(changed)}; give the same again, or choose another --out."
        )


@contextlib.contextmanager
def _fitting() -> Iterator[None]:
    """Words a lack of memory for the user."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # On the CPU, torch has no error of its own for this.
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        raise UserError(
            "training does not fit into memory; lower --batch-size or --width, or set --momentum-bits 8. What was "
            "saved is intact."
        ) from error


def _run_epochs(trainer: Trainer, run: RunDirectory, display: Display, checkpoint_minutes: float) -> None:
    world, saved_at = trainer.world, time.monotonic()

    def save(best: bool = False) -> None:
        nonlocal saved_at
        state = trainer.state()
        if world.is_first:
            run.checkpoints.save(trainer.update, state, best=best)
        saved_at = time.monotonic()

    def after_batch() -> None:
        display.after_batch(trainer)
        # All processes must save together, so the clock of the first one decides.
        due = world.is_first and time.monotonic() - saved_at > 60 * checkpoint_minutes
        if summed([due], world)[0] and trainer.batch < len(trainer.train_loader):
            save()

    while trainer.epoch < trainer.config.epochs:
        best = max((line["test_accuracy"] for line in trainer.history), default=-1.0)
        trainer.train_epoch(after_batch)
        line = trainer.finish_epoch()
        # The checkpoint last: what a killed run has logged after it is written again.
        if world.is_first:
            run.write_history(trainer.history)
        display.after_epoch(line, trainer.config.epochs)
        save(best=line["test_accuracy"] > best)


def _result(run: RunDirectory, history: list[EpochMetrics], finished_before: bool) -> dict[str, Any]:
    return {
        "run": str(run.path),
        "finished_before": finished_before,
        "epochs": len(history),
        "test_accuracy": history[-1]["test_accuracy"],
        "best_test_accuracy": max(line["test_accuracy"] for line in history),
        "train_seconds": sum(line["seconds"] for line in history),
        "peak_bytes": max(line["peak_bytes"] for line in history),
    }
