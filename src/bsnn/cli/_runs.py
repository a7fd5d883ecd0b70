"""Where training meets deployment: the model file of a run, and whether there will be one."""

import copy
from pathlib import Path
from typing import Any

import torch

from bsnn.data.spec import DataSpec
from bsnn.deploy.export import export
from bsnn.deploy.lowering import Lowered, lower
from bsnn.deploy.quantize import input_spec
from bsnn.errors import UserError
from bsnn.nn.neuron import Stateful
from bsnn.train.config import data_of_run
from bsnn.train.display import report
from bsnn.train.load import CheckpointName, load_network, samples_for
from bsnn.train.trainer import Trainer


class DeploymentNotice:
    """A callback that says before the first epoch if there will be no model file, and why; and at the end, if not then.

    Attributes:
        told: The reasons that were given.
    """

    def __init__(self) -> None:
        self.told: set[str] = set()

    def on_start(self, trainer: Trainer) -> None:
        """Tries the conversion on the network as it is."""
        # On the CPU, where the conversion computes; it may draw random numbers, which are the training's.
        net = trainer.net if trainer.world.device.type == "cpu" else copy.deepcopy(trainer.net).cpu()
        try:
            with torch.random.fork_rng(devices=[]):
                lowered(net, trainer.spec, trainer.config.time_steps)
        except UserError as error:
            self.tell(error)

    def tell(self, error: UserError) -> None:
        """Says once why there is no model file."""
        reason = str(error).removeprefix("export: ")
        if reason not in self.told:
            report(
                f"warning: the run will have no model.bsnn, so predict, inspect and export will not take it, only "
                f"evaluate and report: {reason}"
            )
        self.told.add(reason)


def check_exportable(path: Path) -> None:
    """Refuses a run that no model file can be made of.

    Args:
        path: The run directory.
    """
    trained = load_network(path, for_training=False)
    lowered(trained.net, trained.spec, trained.time_steps)


def lowered(net: Stateful, spec: DataSpec, time_steps: int) -> Lowered:
    """The deployed form of a network for such data."""
    taken = input_spec(spec, bounded=True)
    return lower(net, taken, name=spec.name, classes=spec.classes, time_steps=time_steps)


def export_run(
    path: Path,
    out: Path,
    *,
    compare: bool = False,
    data: str | None = None,
    checkpoint: CheckpointName | None = None,
) -> dict[str, Any]:
    """Writes the model file of a run, from the end of an epoch. The data is needed only to compare.

    Args:
        path: The run directory.
        out: The model file.
        compare: Whether to compare the network before and after on test samples.
        data: Folder of the data; None takes the one that the run was trained from.
        checkpoint: That of the best epoch or the last; by default the one that the run was told to select.
    """
    trained = load_network(path, checkpoint=checkpoint, for_training=False)
    exported = export(
        trained.net,
        out,
        spec=trained.spec,
        data=samples_for(trained, data or data_of_run(path)) if compare else None,
        time_steps=trained.time_steps,
        firing_rates=trained.metrics.get("firing_rates", {}),
        reject_below=trained.metrics.get("reject_below"),
    )
    result: dict[str, Any] = {"path": exported.path, "bytes": exported.bytes}
    if exported.changes is not None:
        changes = exported.changes
        result |= {
            "samples": changes.samples,
            "spikes_changed": changes.spikes,
            "currents_cut": changes.currents_cut,
            "predictions_changed": changes.predictions,
            "accuracy_before": changes.accuracy_before,
            "accuracy_after": changes.accuracy_after,
        }
    return result
