"""What can be had from a run: its network without its data, or all of it with its data."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bsnn.data.spec import DataSpec
from bsnn.errors import UserError
from bsnn.nn.network import ImageNetwork
from bsnn.train.build import load_data, network_for
from bsnn.train.checkpoint import Checkpoints, load
from bsnn.train.config import Config
from bsnn.train.display import Display
from bsnn.train.distributed import World, first_on_machine, joined_world, summed
from bsnn.train.metrics import EpochMetrics
from bsnn.train.run import RunDirectory, saved_config
from bsnn.train.trainer import Trainer


class TrainedNetwork(NamedTuple):
    """A network as the end of an epoch left it, and what it was trained for."""

    net: ImageNetwork
    config: Config
    spec: DataSpec
    metrics: EpochMetrics
    """Of its last epoch."""


def load_network(path: Path) -> TrainedNetwork:
    """The network of a run, from its newest checkpoint that ends an epoch. The data is not needed.

    Within an epoch BatchNorm's statistics are those of no network in particular, so such a checkpoint is passed over.

    Args:
        path: The run directory.

    Example:
        >>> config = bsnn.train.Config(dataset="digits", model="vgg", plan=(4, 4), epochs=1, train_samples=64)
        >>> done = bsnn.train.train(config, getfixture("tmp_path") / "run")
        >>> load_network(Path(done["run"])).spec.name
        'digits'
    """
    state, notes = _existing(path).checkpoints.load_newest(lambda state: state["place"][1] == 0)
    for note in notes:
        Display(World()).report(f"warning: {note}")
    if state is None:
        raise UserError(f"{path} has no checkpoint of a finished epoch; train on with --resume until one has ended.")
    config, spec = saved_config(state), DataSpec.from_json(state["data"])
    net = network_for(config, spec)
    net.load_state_dict(state["net"])
    return TrainedNetwork(net, config, spec, state["history"][-1])


def _existing(path: Path) -> RunDirectory:
    if not path.exists():
        raise UserError(f"{path}: there is no such run or file; expected the folder of a run, or a model file.")
    return RunDirectory(path)


def build_trainer(
    config: Config, data: str | None, world: World, workers: int, state: dict[str, Any] | None
) -> Trainer:
    """The trainer of a config with its data, at its start or where `state` was saved."""
    with first_on_machine(world):
        sets = load_data(config, data)
    source = _source_state(Path(config.init_from)) if config.init_from and state is None else None
    trainer = Trainer(config, *sets, world, workers, source)
    if state is not None:
        trainer.load_state(state)
    if summed([trainer.update], world) != [trainer.update * world.size]:
        raise UserError("the processes found different checkpoints; expected an --out that all machines share.")
    return trainer


def _source_state(path: Path) -> dict[str, Any]:
    """The state of a run directory's last checkpoint, or of a checkpoint file, to start another run from."""
    if not path.exists():
        raise UserError(f"init_from: {path} does not exist; expected a run directory or a checkpoint. Train it first.")
    state = Checkpoints(path / "checkpoints").load_newest()[0] if path.is_dir() else load(path)
    if state is None:
        raise UserError(f"init_from: {path} has no checkpoint; expected a run that has finished an epoch.")
    return state


@contextlib.contextmanager
def loaded_run(path: Path, data: str | None = None) -> Iterator[Trainer]:
    """A run as its last checkpoint left it, ready to be measured on its data.

    Args:
        path: The run directory.
        data: Folder of the data; None takes the one that the run was trained from.

    Raises:
        UserError: If the run has no checkpoint, or its data is not there.
    """
    run = _existing(path)
    with joined_world() as world:
        state, notes = run.checkpoints.load_newest()
        if state is None:
            raise UserError(f"{path} has no checkpoint; expected the folder of a run that has finished an epoch.")
        for note in notes:
            Display(world).report(f"warning: {note}")
        trainer = build_trainer(saved_config(state), data or run.data(), world, 0, state)
        # At the end of an epoch the statistics were just estimated, and the recorded accuracy is of these.
        if trainer.batch:
            trainer.estimate_statistics()
        yield trainer


def evaluate_run(path: Path, data: str | None = None) -> dict[str, Any]:
    """Accuracy of a run's last checkpoint on its test set; arguments and errors are those of `loaded_run`."""
    with loaded_run(path, data) as trainer:
        found = trainer.evaluate()
        del found["confusion"]
        return {"epoch": trainer.epoch, **found}
