"""`bsnn.export`: writes a trained network as a model file, which needs no data, and compares both if there is some."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from torch import nn

from bsnn.atomic import check_writable
from bsnn.data.dataset import Dataset
from bsnn.data.spec import DataSpec
from bsnn.deploy.codec import write
from bsnn.deploy.comparison import Changes, compare
from bsnn.deploy.deployed import Deployed
from bsnn.deploy.lowering import lower
from bsnn.deploy.quantize import input_spec
from bsnn.deploy.schema import Lif
from bsnn.deploy.verification import verify
from bsnn.errors import UserError
from bsnn.kernels.torch_internals import uncompiled


class Exported(NamedTuple):
    """A model file, what the conversion changed if there was data to compare on, and the network as a torch module."""

    path: str
    bytes: int
    changes: Changes | None
    module: Deployed


def export(
    net: nn.Module,
    path: str | os.PathLike[str],
    *,
    spec: DataSpec | None = None,
    data: Dataset | None = None,
    input_shape: Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
    time_steps: int = 4,
    name: str | None = None,
    samples: int = 256,
    firing_rates: Mapping[str, float] | None = None,
    reject_below: float | None = None,
) -> Exported:
    """Writes a trained network as a model file, which runs without torch.

    `spec`, `data` or `input_shape` says what the network takes. With `input_shape` alone, inputs have to be normalized
    by whoever calls the network.

    Args:
        net: A network of our layers; its statistics are taken as in evaluation.
        path: Where to write.
        spec: Shape, classes and normalization of its data; by default those of `data`.
        data: Samples on which to compare the network before and after; without them firing rates are not measured.
        input_shape: Of one sample at one time step, such as `(3, 32, 32)`.
        classes: Names of the outputs; by default those of the data, else numbers.
        time_steps: T, how often a still input is shown; events bring their own.
        name: What the network is called; by default what the data is called.
        samples: How many of `data` to compare on, spread evenly over its classes.
        firing_rates: Of the layers of neurons, by name; by default those that the comparison measures.
        reject_below: Inputs are none of the classes if the largest logit lies less than this above the mean of all, of
            logits' means over time; by default every input has a class.

    Example:
        >>> net = bsnn.models.vgg((8, 8), in_channels=1)
        >>> exported = export(net, getfixture("tmp_path") / "model.bsnn", input_shape=(1, 8, 8))
        >>> bsnn.load(exported.path).predict(torch.zeros(2, 1, 8, 8).numpy()).shape
        (2,)
    """
    check_writable(Path(path))
    net = uncompiled(net)
    known = spec or (None if data is None else DataSpec.of(data))
    if known is None:
        taken = input_spec(_unnormalized(input_shape), bounded=False)
    else:
        _check_fit(known, data, input_shape)
        taken = input_spec(known, bounded=True)
        classes, name = classes or known.classes or None, name or known.name
        time_steps = known.shape[0] if known.kind == "event" else time_steps
    features = known is None and len(tuple(input_shape or ())) == 1
    described = {"name": name or "network", "classes": classes, "time_steps": time_steps}
    lowered = lower(net, taken, features=features, **described)
    verify(net, lowered, taken.shape[:1] if features else taken.shape)
    changes = None if data is None else compare(net, lowered, data, samples)
    rates = firing_rates or (changes.firing_rates if changes else {})
    layers = (replace(x, firing_rate=rates.get(x.name)) if isinstance(x, Lif) else x for x in lowered.artifact.layers)
    artifact = replace(lowered.artifact, layers=tuple(layers))
    if reject_below is not None:
        artifact = artifact.rejecting(reject_below)
    return Exported(os.fspath(path), write(path, artifact), changes, Deployed(artifact))


def _unnormalized(input_shape: Sequence[int] | None) -> DataSpec:
    """Data of which nothing but the shape is known."""
    shape = tuple(input_shape or ())
    if not 1 <= len(shape) <= 3 or min(shape) < 1:
        raise UserError(
            f"export: received input_shape={input_shape}; expected that of one sample, such as "
            "input_shape=(3, 32, 32), or what the network was trained for (spec=... or data=...)."
        )
    shape = shape + (1,) * (3 - len(shape))
    return DataSpec("network", "image", (), shape, (0.0,) * shape[0], (1.0,) * shape[0], 1.0)


def _check_fit(spec: DataSpec, data: Dataset | None, input_shape: Sequence[int] | None) -> None:
    """Refuses arguments that contradict each other."""
    if input_shape is not None and tuple(input_shape) != tuple(spec.shape[-3:]):
        raise UserError(
            f"export: received input_shape={tuple(input_shape)}, and samples of {spec.name} have shape "
            f"{tuple(spec.shape[-3:])}; expected the same, or no input_shape."
        )
    if data is not None and (tuple(data.shape), data.kind) != (tuple(spec.shape), spec.kind):
        raise UserError(
            f"export: received data of kind {data.kind} and shape {tuple(data.shape)}, and a spec of {spec.kind} and "
            f"{tuple(spec.shape)}; expected samples of what the network was trained for."
        )
