"""Training runs: a recipe to its end, epoch by epoch, with checkpoints to resume from bit for bit."""

import contextlib
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from bsnn.deploy.convert import Exported, export
from bsnn.errors import UserError
from bsnn.online.ledger import predict_memory
from bsnn.train.checkpoint import writing
from bsnn.train.config import Config, written
from bsnn.train.distributed import World, first_on_machine, joined_world, summed
from bsnn.train.run import RunDirectory, saved_config
from bsnn.train.trainer import Trainer, load_data, peak_bytes_of_process, source_state


def train(
    config: Config,
    out: Path,
    *,
    data: str | None = None,
    resume: bool = False,
    workers: int = 0,
    checkpoint_minutes: float = 10.0,
) -> dict[str, Any]:
    """Runs a recipe to its end and returns its result.

    Args:
        config: The recipe.
        out: The run directory.
        data: Folder of the data; None uses what `bsnn.data` has downloaded, or downloads it.
        resume: Go on from the last checkpoint in `out`, if there is one.
        workers: Processes that read files.
        checkpoint_minutes: Also write a checkpoint within an epoch after so many minutes.

    Raises:
        UserError: If the run cannot start or go on; what was saved before is intact.
    """
    run = RunDirectory(out)
    with joined_world() as world, run.owned() if world.is_first else contextlib.nullcontext(), _fitting():
        state, notes = None, []
        if resume or world.restarted:
            state, notes = run.checkpoints.load_newest()
        elif run.checkpoints.newest_first():
            raise UserError(f"{out} holds a run already; go on with --resume, or choose another --out.")
        display = _Display(world)
        for note in notes:
            display.report(f"warning: {note}")
        if state is not None:
            _check_same(out, config, saved_config(state))
            if state["place"][0] >= config.epochs:
                return _result(run, state["history"], finished_before=True)
            data = data or run.data()
        trainer = _trainer(config, data, world, workers, state)
        if world.is_first:
            run.start(config, data)
            run.write_history(trainer.history)
        for note in memory_notes(trainer):
            display.report(f"warning: {note}")
        with display.shown(trainer, run.path / "tensorboard"):
            _run_epochs(trainer, run, display, checkpoint_minutes)
        if world.is_first:
            try:
                _export(trainer, run.path / "model.bsnn")
            except UserError as error:  # a network without a deployed form is still a finished run
                display.report(f"warning: there is no model.bsnn ({error})")
        return _result(run, trainer.history, finished_before=False)


def _trainer(config: Config, data: str | None, world: World, workers: int, state: dict[str, Any] | None) -> Trainer:
    with first_on_machine(world):
        sets = load_data(config, data)
    source = source_state(Path(config.init_from)) if config.init_from and state is None else None
    trainer = Trainer(config, *sets, world, workers, source)
    if state is not None:
        trainer.load_state(state)
    if summed([trainer.update], world) != [trainer.update * world.size]:
        raise UserError("the processes found different checkpoints; expected an --out that all machines share.")
    return trainer


def memory_notes(trainer: Trainer) -> list[str]:
    """A warning if an online run will not fit into the memory that is free, before it starts."""
    if trainer.config.gradient == "bptt" or trainer.flip is None or trainer.world.device.type != "cpu":
        return []
    batch = trainer.config.batch_size // trainer.world.size
    sample = torch.zeros(1, *trainer.shape[-3:])
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


def _run_epochs(trainer: Trainer, run: RunDirectory, display: "_Display", checkpoint_minutes: float) -> None:
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


def _result(run: RunDirectory, history: list[dict[str, Any]], finished_before: bool) -> dict[str, Any]:
    return {
        "run": str(run.path),
        "finished_before": finished_before,
        "epochs": len(history),
        "test_accuracy": history[-1]["test_accuracy"],
        "best_test_accuracy": max(line["test_accuracy"] for line in history),
        "train_seconds": sum(line["seconds"] for line in history),
        "peak_bytes": max(line["peak_bytes"] for line in history),
    }


class _Display:
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

    def after_epoch(self, line: dict[str, Any], epochs: int) -> None:
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


def _log(writer: Any, line: dict[str, Any]) -> None:
    for name, value in line.items():
        if isinstance(value, dict):
            for layer, number in value.items():
                writer.add_scalar(f"{name}/{layer}", number, line["epoch"])
        elif isinstance(value, int | float) and name != "epoch":
            writer.add_scalar(name, value, line["epoch"])
    writer.flush()


def _export(trainer: Trainer, path: Path) -> Exported:
    steps = trainer.config.time_steps
    return export(trainer.net, path, data=trainer.test_loader.dataset, time_steps=steps)


@contextlib.contextmanager
def loaded_run(path: Path, data: str | None = None) -> Iterator[Trainer]:
    """A run as its last checkpoint left it, ready to be measured.

    Args:
        path: The run directory.
        data: Folder of the data; None takes the one that the run was trained from.

    Raises:
        UserError: If the run has no checkpoint, or its data is not there.
    """
    if not path.exists():
        raise UserError(f"{path}: there is no such run or file; expected the folder of a run, or a model file.")
    with joined_world() as world:
        run = RunDirectory(path)
        state, notes = run.checkpoints.load_newest()
        if state is None:
            raise UserError(f"{path} has no checkpoint; expected the folder of a run that has finished an epoch.")
        for note in notes:
            _Display(world).report(f"warning: {note}")
        trainer = _trainer(saved_config(state), data or run.data(), world, 0, state)
        # At the end of an epoch the statistics were just estimated, and the recorded accuracy is of these.
        if trainer.batch:
            trainer.estimate_statistics()
        yield trainer


def evaluate_run(path: Path, data: str | None = None) -> dict[str, Any]:
    """Accuracy of a run's last checkpoint on its test set; arguments and errors are those of `loaded_run`."""
    with loaded_run(path, data) as trainer:
        return {"epoch": trainer.epoch, **trainer.evaluate()}


def export_run(path: Path, out: Path, data: str | None = None) -> dict[str, Any]:
    """Writes the model file of a run's last checkpoint, and says what the conversion changed.

    Args:
        path: The run directory.
        out: The model file.
        data: Folder of the data; None takes the one that the run was trained from.
    """
    with loaded_run(path, data) as trainer:
        exported = _export(trainer, out)
    changes = exported.changes
    assert changes is not None
    return {
        "path": exported.path,
        "bytes": exported.bytes,
        "samples": changes.samples,
        "spikes_changed": changes.spikes,
        "currents_cut": changes.currents_cut,
        "predictions_changed": changes.predictions,
        "accuracy_before": changes.accuracy_before,
        "accuracy_after": changes.accuracy_after,
    }
