"""Where training meets deployment: the model file of a run."""

from pathlib import Path
from typing import Any

from bsnn.deploy.export import export
from bsnn.train.build import load_test_set
from bsnn.train.config import data_of_run
from bsnn.train.load import CheckpointName, load_network


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
        data=load_test_set(trained.config, data or data_of_run(path)) if compare else None,
        time_steps=trained.config.time_steps,
        firing_rates=trained.metrics.get("firing_rates", {}),
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
