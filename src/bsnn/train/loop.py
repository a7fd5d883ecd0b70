"""The loop over epochs: a config to its end, with checkpoints to resume from bit for bit."""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from bsnn.data.loader import Loader
from bsnn.data.resizing import at_size
from bsnn.errors import UserError
from bsnn.kernels import is_available
from bsnn.train.build import load_test_set, load_threshold_set
from bsnn.train.callbacks import Callbacks
from bsnn.train.checkpoint import load
from bsnn.train.config import Config, config_of_run, data_of_run
from bsnn.train.display import Progress, TensorBoard, report
from bsnn.train.distributed import World, joined_world, summed
from bsnn.train.fields import written
from bsnn.train.fit import check_disk, check_image_size, check_memory
from bsnn.train.load import build_trainer
from bsnn.train.measure import measured_as
from bsnn.train.metrics import EpochMetrics, accuracy_on
from bsnn.train.own import NOTHING, Loss, Model, Optimizers, Own
from bsnn.train.rejection import threshold_for
from bsnn.train.run import RunDirectory, saved_config
from bsnn.train.selection import best_epoch, is_finished, is_trained, missing, selected_epoch, why_stopped
from bsnn.train.teacher import place_of_teacher, recipe_of_teacher, with_absolute_teacher
from bsnn.train.trainer import Trainer


def train(
    config: Config,
    out: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    resume: bool = False,
    workers: int = 0,
    checkpoint_minutes: float = 10.0,
    device: str = "auto",
    model: Model | None = None,
    optimizer: Optimizers | None = None,
    loss: Loss | None = None,
    callbacks: Iterable[Any] = (),
) -> dict[str, Any]:
    """Trains to the end of a config and returns the result.

    Args:
        config: What to train, and how.
        out: The run directory.
        data: Folder of the data; None uses what `bsnn.data` has downloaded, or downloads it.
        resume: Go on from the last checkpoint in `out`, if there is one.
        workers: Processes that read files.
        checkpoint_minutes: Also write a checkpoint within an epoch after so many minutes.
        device: What computes: `cpu`, `cuda`, `cuda:N`, `mps`, or `auto`, which is CUDA if it is there, else the CPU.
        model: Your own network instead of `config.model`: a module, or a function that builds one from those of
            `num_classes`, `in_channels`, `neuron`, `config` and the fields of the config that it names.
        optimizer: Your own flip rule instead of `config.optimizer`: a subclass of `FlipOptimizer`; or a function from
            the network to the list of all its optimizers. The config's schedules act on them.
        loss: Your own loss instead of `config.loss`: from the logits of one time step and the labels to the mean over
            the batch. It is divided by the number of time steps, so that the losses of a sequence add up to their mean.
        callbacks: Objects with some of the methods `on_start(trainer)`, `on_update(trainer)` (after the updates of each
            batch), `on_epoch(trainer, metrics)` and `on_end(trainer)`.

    Returns:
        What a person wants to know first: `run`, `epochs`, `test_accuracy` and more, of the selected epoch.

    Raises:
        UserError: If the run cannot start or go on; what was saved before is intact.

    Example:
        >>> class Printer:
        ...     def on_epoch(self, trainer, metrics):
        ...         print(metrics["epoch"], trainer.batches)
        >>> config = bsnn.train.Config(dataset="digits", model="vgg", plan=(4, 4), epochs=1, train_samples=64)
        >>> done = train(config, getfixture("tmp_path") / "run", callbacks=[Printer()])
        1 1
    """
    own, run = Own(model, optimizer, loss), RunDirectory(Path(out))
    config, data = with_absolute_teacher(own.recorded_in(config)), None if data is None else os.fspath(data)
    first, teacher = recipe_of_teacher(config), place_of_teacher(config, run.path)
    if teacher is not None and teacher == run.path.absolute():
        raise UserError(f"teacher: received {teacher}, which is --out too; expected another run, or a recipe.")
    with joined_world(device) as world, run.owned() if world.is_first else contextlib.nullcontext(), _fitting(run):
        _check_precision(config, world)
        shown = [Progress(), TensorBoard(run.path / "tensorboard")]
        told = Callbacks([*shown, *callbacks], world.is_first)
        state, notes = None, []
        # A run whose teacher is still learning has no checkpoint of its own yet.
        begun = config_of_run(run.path) if RunDirectory(run.path / "teacher").checkpoints.newest_first() else None
        if resume or world.restarted:
            state, notes = run.checkpoints.load_newest()
        elif run.checkpoints.newest_first() or begun is not None:
            raise UserError(f"{out} holds a run already; go on with --resume, or choose another --out.")
        if state is not None:
            _check_same(run.path, config, saved_config(state))
            data = data or data_of_run(run.path)
            if is_finished(config, state["history"], state["data"]["kind"]):
                if world.is_first:
                    run.restore(state, data)
                return _result(run, config, state["history"], finished_before=True)
        seconds = {}
        if first is not None and teacher is not None:
            if state is None:
                if begun is not None:
                    _check_same(run.path, config, begun)
                data = data or data_of_run(run.path)
                checked, _ = _prepared(config, data, world, 0, None, own)
                if world.is_first:
                    run.start(config, data, checked.origins)
                report(f"training the teacher first (recipe {config.teacher})")
            options = {"workers": workers, "checkpoint_minutes": checkpoint_minutes, "device": device}
            taught = train(first, teacher, data=data, resume=resume or world.restarted, **options)
            seconds["teacher_seconds"] = taught["train_seconds"]
            if state is None:
                report("the teacher is trained; now what learns from it")
        trainer, more = _prepared(config, data, world, workers, state, own, teacher)
        notes += more
        if state is None:
            notes += check_disk(trainer, run.path, run.checkpoints.keep + 2)
        if world.is_first:
            # Of an earlier epoch, maybe of another stage; it is made anew when the run has ended.
            (run.path / "model.bsnn").unlink(missing_ok=True)
            run.start(config, data, trainer.origins)
            run.write_history(trainer.history)
            run.write_held_out(trainer.split, trainer.held_out_loader.dataset, data)
        for note in notes:
            report(f"warning: {note}")
        _Epochs(trainer, run, told, checkpoint_minutes, data).run()
        return _result(run, config, trainer.history, finished_before=False) | seconds


def check_ready(config: Config, data: str | None = None) -> None:
    """Refuses a config that could not be trained to its end: its data, its memory or a stage of it. Trains nothing.

    Args:
        config: What is to be trained.
        data: Folder of the data; None uses what `bsnn.data` has downloaded, or downloads it.

    Raises:
        UserError: As `train` would raise it before the first epoch.

    Example:
        >>> check_ready(bsnn.train.Config(dataset="digits", model="vgg", plan=(4, 4), train_samples=64))
    """
    with joined_world() as world, _fitting():
        if (first := recipe_of_teacher(config)) is not None:
            _prepared(first, data, world, 0, None, NOTHING)
        there = None if first is not None else place_of_teacher(config, Path())
        _prepared(config, data, world, 0, None, NOTHING, there)


def _prepared(
    config: Config,
    data: str | None,
    world: World,
    workers: int,
    state: dict[str, Any] | None,
    own: Own,
    teacher: Path | None = None,
) -> tuple[Trainer, list[str]]:
    """The trainer of a config after all that can be checked before an epoch, and warnings."""
    check_image_size(config, world)
    trainer, notes = build_trainer(config, data, world, workers, state, own, teacher)
    if world.device.type == "cpu" and not is_available("cpu"):
        notes.append(
            "the kernels in C are missing, so training takes about twice as long; install bsnn again where there is "
            "a C compiler"
        )
    warnings, trainer.keeps_memory = check_memory(trainer)
    return trainer, notes + warnings


def _check_precision(config: Config, world: World) -> None:
    if config.precision == "tf32" and world.device.type != "cuda":
        raise UserError(
            f"precision: received tf32 with device {world.device.type}, which does not have it; expected fp32 or bf16, "
            "or --device cuda."
        )


def _check_same(out: Path, config: Config, saved: Config) -> None:
    pairs = ((f.name.replace("_", "-"), getattr(saved, f.name), getattr(config, f.name)) for f in fields(Config))
    changed = [f"--{name} {written(before)} (now {written(now)})" for name, before, now in pairs if before != now]
    if changed:
        raise UserError(
            f"{out}: the run there was started with {', '.join(changed)}; leave that out, or choose another --out."
        )


@contextlib.contextmanager
def _fitting(run: RunDirectory | None = None) -> Iterator[None]:
    """Words a lack of memory for the user."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # On the CPU, torch has no error of its own for this.
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        intact = " What was saved is intact." if run is not None and run.checkpoints.newest_first() else ""
        raise UserError(
            "training does not fit into memory; lower --batch-size or --width, or set --momentum-bits 8." + intact
        ) from error


class _Epochs:
    """The epochs of a run that are still to come, and the test at its end."""

    def __init__(
        self, trainer: Trainer, run: RunDirectory, callbacks: Callbacks, checkpoint_minutes: float, data: str | None
    ) -> None:
        self.trainer, self.directory, self.callbacks, self.data = trainer, run, callbacks, data
        self.config, self.world = trainer.config, trainer.world
        self.save_seconds, self.saved_at = 60 * checkpoint_minutes, time.monotonic()

    def run(self) -> None:
        trainer = self.trainer
        try:
            self.callbacks.on_start(trainer)
            while not is_trained(self.config, trainer.history):
                trainer.train_epoch(self.after_batch)
                self.end_epoch(trainer.finish_epoch())
            if not is_finished(self.config, trainer.history, trainer.spec.kind):
                self.conclude()
        finally:
            self.callbacks.on_end(trainer)

    def save(self, best: bool = False) -> None:
        state = self.trainer.state()
        if self.world.is_first:
            self.directory.checkpoints.save(self.trainer.batches, state, best=best)
        self.saved_at = time.monotonic()

    def after_batch(self) -> None:
        self.callbacks.on_update(self.trainer)
        # All processes must save together, so the clock of the first one decides.
        due = self.world.is_first and time.monotonic() - self.saved_at > self.save_seconds
        if summed([due], self.world)[0] and self.trainer.batch < len(self.trainer.train_loader):
            self.save()

    def end_epoch(self, line: EpochMetrics) -> None:
        trainer, patience = self.trainer, self.config.early_stopping
        last_stage = trainer.stage.end == self.config.epochs
        best = best_epoch(self.config, trainer.history)
        # An epoch that was not measured may have been a better one.
        measured = accuracy_on(trainer.split, line) is not None
        if patience and last_stage and best and measured and line["epoch"] - best["epoch"] >= patience:
            trainer.stop(f"no better {trainer.split} accuracy than that of epoch {best['epoch']} for {patience} epochs")
        try:
            self.callbacks.on_epoch(trainer, line)
        finally:
            # What a callback asks for on one process holds for all; an error of one costs no epoch.
            if summed([bool(trainer.stop_reason)], self.world)[0] and line["epoch"] < self.config.epochs:
                line["stopped"] = trainer.stop_reason or "another process stopped it"
                if "firing_rates" not in line:
                    trainer.measure_into(line)
            self.keep(best=best_epoch(self.config, trainer.history) is line)

    def keep(self, best: bool = False) -> None:
        """Writes metrics, then the checkpoint: what a killed run has logged after it is written again."""
        if self.world.is_first:
            self.directory.write_history(self.trainer.history)
        self.save(best)

    def conclude(self) -> None:
        """Measures the selected epoch on what nothing has looked at before."""
        trainer, line = self.trainer, selected_epoch(self.config, self.trainer.history)
        last = {name: tensor.clone() for name, tensor in trainer.net.state_dict().items()}
        if line is not trainer.history[-1]:
            trainer.net.load_state_dict(load(self.directory.checkpoints.best)["net"])
        todo = missing(self.config, line, trainer.spec.kind)
        if "test_accuracy" in todo:
            self.test(line)
        if "reject_below" in todo:
            samples = trainer.held_out_loader.dataset
            if not self.config.validation_samples:
                samples = load_threshold_set(self.config, self.data)
            steps, size = trainer.stage.config.time_steps, self.config.batch_size
            line["reject_below"] = threshold_for(trainer.net, samples, self.config.reject, steps, self.world, size)
        trainer.net.load_state_dict(last)
        self.keep()

    def test(self, line: EpochMetrics) -> None:
        """Measures the network as it is on the test set."""
        trainer, held_out = self.trainer, self.trainer.held_out_loader
        share = {"rank": held_out.rank, "world_size": held_out.world_size, "device": held_out.device}
        # A run that was stopped in an early stage is measured with the images of that stage.
        test_set = at_size(load_test_set(self.config, self.data), trainer.stage.shrunk_to)
        if self.world.is_first:
            self.directory.write_held_out("test", test_set, self.data)
        found = trainer.evaluate(Loader(test_set, held_out.batch_size, workers=held_out.workers, **share))
        line |= measured_as("test", found)


def _result(run: RunDirectory, config: Config, history: list[EpochMetrics], finished_before: bool) -> dict[str, Any]:
    line, reason = selected_epoch(config, history), why_stopped(history)
    validation = accuracy_on("validation", line)
    return {
        "run": str(run.path),
        "finished_before": finished_before,
        "epochs": len(history),
        "selected_epoch": line["epoch"],
        "selected_by": config.select,
        "test_accuracy": line.get("test_accuracy"),
        **({} if validation is None else {"validation_accuracy": validation}),
        "train_seconds": sum(line["seconds"] for line in history),
        "peak_bytes": max(line["peak_bytes"] for line in history),
        **({} if reason is None else {"stopped": reason}),
    }
