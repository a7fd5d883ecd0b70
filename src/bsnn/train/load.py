"""What can be had from a run: its network without its data, its accuracy, or all of it with its data."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bsnn import zoo
from bsnn.data.dataset import Dataset
from bsnn.data.folders import is_split_at_random
from bsnn.data.groups import mixed_groups
from bsnn.data.loader import Loader
from bsnn.data.resizing import at_size
from bsnn.data.spec import DataSpec
from bsnn.errors import UserError
from bsnn.extras import MissingModule
from bsnn.nn.neuron import Stateful
from bsnn.train.build import load_data, load_test_set, network_for
from bsnn.train.checkpoint import Checkpoints, load
from bsnn.train.config import Config, data_of_run
from bsnn.train.display import report
from bsnn.train.distributed import World, first_on_machine, joined_world, summed
from bsnn.train.effects import is_own
from bsnn.train.fields import written
from bsnn.train.initial import take_weights
from bsnn.train.measure import Measurement, measure
from bsnn.train.metrics import EpochMetrics
from bsnn.train.origin import changed_modules, explained, modules_of
from bsnn.train.own import NOTHING, Model, Own
from bsnn.train.run import RunDirectory, saved_config
from bsnn.train.stages import described, stage_at
from bsnn.train.teacher import Teacher, place_of_teacher
from bsnn.train.trainer import Trainer

CheckpointName = Literal["best", "last"]


class TrainedNetwork(NamedTuple):
    """A network as the end of an epoch left it, and what it was trained for."""

    net: Stateful
    """With the weights and statistics of that epoch."""
    config: Config
    """What it was trained with."""
    spec: DataSpec
    """What it takes; of a run that is still in an early stage, what it takes there."""
    metrics: EpochMetrics
    """Of that epoch."""
    time_steps: int
    """T: that of the config, or of the early stage that the epoch belongs to."""


def load_network(
    path: str | os.PathLike[str],
    *,
    checkpoint: CheckpointName | None = None,
    model: Model | None = None,
    for_training: bool = True,
) -> TrainedNetwork:
    """The network of a run, from a checkpoint that ends an epoch. The data is not needed.

    Within an epoch BatchNorm's statistics are those of no network in particular, so such a checkpoint is passed over.

    Args:
        path: The run directory.
        checkpoint: That of the best epoch or the last; by default the one that the run was told to select.
        model: The network, or the function that builds it, of a run that was given one as an object.
        for_training: False leaves out a surrogate and a gradient rule of your own, so that their modules are not
            needed: outputs are the same without them, gradients are not.

    Example:
        >>> config = bsnn.train.Config(dataset="digits", model="vgg", plan=(4, 4), epochs=1, train_samples=64)
        >>> done = bsnn.train.train(config, getfixture("tmp_path") / "run")
        >>> load_network(done["run"]).spec.name
        'digits'
    """
    state = _finished_epoch(_existing(Path(path)), checkpoint)
    config, spec, own = saved_config(state), DataSpec.from_json(state["data"]), Own(model)
    built = config
    if not for_training:
        unneeded = {"surrogate": "sigmoid", "gradient": "sltt"}
        built = dataclasses.replace(config, **{k: v for k, v in unneeded.items() if is_own(getattr(config, k))})
    with _explaining(state):
        net = network_for(own.recorded_in(built), spec, own)
    for note in changed_modules(state["origins"][-1], modules_of(built)):
        report(f"warning: {note}")
    take_weights(net, state, f"{path}: the run holds another network than {config.model} builds now")
    line = state["history"][-1]
    stage = stage_at(config, line["epoch"] - 1)
    if stage.end < config.epochs:
        report(
            f"warning: {path} has finished {line['epoch']} of {config.epochs} epochs; its network is that of "
            f"{described(config)[stage.number - 1]}"
        )
    return TrainedNetwork(net, config, stage.spec_of(spec), line, stage.config.time_steps)


def samples_for(trained: TrainedNetwork, data: str | None, *, held_out: bool = False) -> Dataset:
    """The test set of a network, with images of the size that it was measured on.

    Args:
        trained: The network.
        data: Folder of the data.
        held_out: Take the samples that each epoch was measured on, which may be held-out training samples.
    """
    config = trained.config
    samples = load_data(config, data)[1] if held_out else load_test_set(config, data)
    return at_size(samples, stage_at(config, trained.metrics["epoch"] - 1).shrunk_to)


@contextlib.contextmanager
def _explaining(state: dict[str, Any]) -> Iterator[None]:
    """Says where a module that is missing now was found in training."""
    try:
        yield
    except MissingModule as error:
        raise explained(error, state["origins"][-1]) from error


def _finished_epoch(run: RunDirectory, checkpoint: CheckpointName | None) -> dict[str, Any]:
    """The state at the end of the best or the last epoch."""
    state, notes = run.checkpoints.load_newest(lambda state: state["place"][1] == 0)
    for note in notes:
        report(f"warning: {note}")
    if state is None:
        raise UserError(
            f"{run.path} has no checkpoint of a finished epoch; expected the folder of a run. If it is one, train on "
            "with --resume until an epoch has ended."
        )
    config = saved_config(state)
    if (checkpoint or ("last" if config.select == "last" else "best")) == "last":
        return state
    if not run.checkpoints.best.exists():
        raise UserError(
            f"{run.path} has no best checkpoint, because nothing was held out to choose it by; expected a run with "
            "--validation-samples (or --select test). Take the last: --checkpoint last."
        )
    best = load(run.checkpoints.best)
    # What was measured when the run had ended is not in the checkpoint of that epoch.
    best["history"][-1:] = [line for line in state["history"] if line["epoch"] == best["history"][-1]["epoch"]]
    return best


def _existing(path: Path) -> RunDirectory:
    if not path.exists():
        raise UserError(f"{path}: there is no such run or file; expected the folder of a run, or a model file.")
    return RunDirectory(path)


def build_trainer(
    config: Config,
    data: str | None,
    world: World,
    workers: int,
    state: dict[str, Any] | None,
    own: Own = NOTHING,
    teacher: Path | None = None,
) -> tuple[Trainer, list[str]]:
    """The trainer of a config with its data and its teacher, at its start or where `state` was saved, and warnings."""
    with first_on_machine(world):
        sets = load_data(config, data)
    source = _source_state(Path(config.init_from)) if config.init_from and state is None else None
    with _explaining(state) if state is not None else contextlib.nullcontext():
        teaching, notes = (None, []) if teacher is None else _teacher(teacher, config)
        trainer = Trainer(config, *sets, world, workers, source, own, teaching)
    notes += [] if state is None else trainer.load_state(state)
    notes += [] if source is None else _changes_of_network(source, config)
    if state is None and config.dataset == "folder" and not config.group and is_split_at_random(Path(data or "")):
        notes += [note for note in [mixed_groups(*sets)] if note]
    if summed([trainer.batches], world) != [trainer.batches * world.size]:
        raise UserError("the processes found different checkpoints; expected an --out that all machines share.")
    return trainer, notes


def _source_state(path: Path) -> dict[str, Any]:
    """The state of a run directory's last checkpoint, or of a checkpoint file, to start another run from."""
    if (path.suffix == ".bsnn" and path.is_file()) or (str(path) in zoo.names() and not path.exists()):
        shipped = str(path) in zoo.names()
        source = f"that `{zoo.card(str(path))['command']}` makes" if shipped else "that it was exported from"
        raise UserError(
            f"init_from: {path} is a deployed model, whose BatchNorm is folded and whose momentum is gone; expected a "
            f"run directory or a checkpoint. Give the run {source}."
        )
    if not path.exists():
        raise UserError(f"init_from: {path} does not exist; expected a run directory or a checkpoint. Train it first.")
    state = Checkpoints(path / "checkpoints").load_newest()[0] if path.is_dir() else load(path)
    if state is None:
        raise UserError(f"init_from: {path} has no checkpoint; expected a run that has finished an epoch.")
    return state


def _changes_of_network(source: dict[str, Any], config: Config) -> list[str]:
    """A warning if a network computes something else with the weights of another run than that run did."""
    try:
        other = saved_config(source)
    except UserError:  # of another version; the weights fit
        return []
    names = ["model", "neuron"]
    # Numbers of channels are those of the weights.
    words = [[item if isinstance(item, str) else "" for item in run.plan] for run in (other, config)]
    if words[0] != words[1]:
        names.insert(1, "plan")
    if config.neuron != "plif":  # which brings along what it has learned
        names += ["leak", "threshold"]
    changes = [
        f"--{name} {written(getattr(other, name))} (now {written(getattr(config, name))})"
        for name in names
        if getattr(other, name) != getattr(config, name)
    ]
    return [f"init_from: {config.init_from} was trained with {', '.join(changes)}; its weights fit"] if changes else []


def _teacher(path: Path, config: Config) -> tuple[Teacher, list[str]]:
    """The network of a run, as the teacher of another, and warnings."""
    if path.is_file():
        raise UserError(f"teacher: {path} is a file; expected the folder of a run, or a recipe.")
    if not path.exists():
        raise UserError(
            f"teacher: there is no run {path}, and no recipe {path.name} for two CPU cores; expected the folder of a "
            "run, or such a recipe (`bsnn recipes`)."
        )
    try:
        trained = load_network(path, for_training=False)
    except UserError as error:
        raise UserError(f"teacher: {error}") from error
    notes, other = [], trained.config
    if trained.metrics["epoch"] < other.epochs and "stopped" not in trained.metrics and other.select == "last":
        notes.append(f"the teacher {path} has finished {trained.metrics['epoch']} of {other.epochs} epochs")
    split = ("dataset", "train_samples", "validation_samples", "group")
    if config.validation_samples and any(getattr(other, name) != getattr(config, name) for name in split):
        notes.append(
            f"the teacher {path} was trained with another --train-samples, --validation-samples or --group, so it may "
            "have learned samples that are held out here, which makes validation look better than it is"
        )
    return Teacher(trained.net, trained.spec, trained.time_steps, config.teacher_share, other.precision), notes


@contextlib.contextmanager
def loaded_run(path: Path, data: str | None = None) -> Iterator[Trainer]:
    """A run as the last epoch that it has finished left it: its network, optimizers and data.

    Args:
        path: The run directory.
        data: Folder of the data; None takes the one that the run was trained from.

    Raises:
        UserError: If the run has no such checkpoint, or its data is not there.
    """
    with joined_world() as world:
        state = _finished_epoch(_existing(path), "last")
        config = saved_config(state)
        teacher = place_of_teacher(config, path)
        yield build_trainer(config, data or data_of_run(path), world, 0, state, teacher=teacher)[0]


def measure_run(
    path: Path,
    data: str | None = None,
    *,
    held_out: bool = False,
    checkpoint: CheckpointName | None = None,
    model: Model | None = None,
) -> tuple[TrainedNetwork, Measurement]:
    """A run's network, and what it makes of the test set.

    Args:
        path: The run directory.
        data: Folder of the data; None takes the one that the run was trained from.
        held_out: Measure on the samples that each epoch was measured on, which may be held-out training samples.
        checkpoint: As for `load_network`.
        model: As for `load_network`.
    """
    trained = load_network(path, checkpoint=checkpoint, model=model, for_training=False)
    config, data = trained.config, data or data_of_run(path)
    with joined_world() as world:
        with first_on_machine(world):
            samples = samples_for(trained, data, held_out=held_out)
        if (tuple(samples.classes), samples.shape[-3:]) != (trained.spec.classes, trained.spec.shape[-3:]):
            raise UserError(
                f"data: received {len(samples.classes)} classes of shape {samples.shape[-3:]}; expected the "
                f"{len(trained.spec.classes)} of shape {trained.spec.shape[-3:]} that the run was trained on."
            )
        share = {"rank": world.rank, "world_size": world.size, "device": world.device}
        loader = Loader(samples, max(config.batch_size // world.size, 1), **share)
        frames = None if samples.kind == "event" else trained.time_steps
        return trained, measure(trained.net.to(world.device), loader, frames, world)


def evaluate_run(
    path: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    checkpoint: CheckpointName | None = None,
    model: Model | None = None,
) -> dict[str, Any]:
    """Accuracy of a run on its test set.

    Args:
        path: The run directory.
        data: Folder of the data; None takes the one that the run was trained from.
        checkpoint: That of the best epoch or the last; by default the one that the run was told to select.
        model: The network, or the function that builds it, of a run that was given one as an object.
    """
    folder = None if data is None else os.fspath(data)
    trained, found = measure_run(Path(path), folder, checkpoint=checkpoint, model=model)
    return {
        "epoch": trained.metrics["epoch"],
        "test_accuracy": found.accuracy,
        "test_loss": found.loss,
        "samples": found.samples,
        "firing_rates": found.firing_rates,
        **{key: trained.metrics[key] for key in ("reject_below",) if key in trained.metrics},
    }
