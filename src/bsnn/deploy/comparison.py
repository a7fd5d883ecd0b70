"""What the conversion changed: the trained network and the deployed one, side by side on the same samples."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bsnn.data.dataset import Dataset
from bsnn.data.loader import Loader
from bsnn.data.subset import spread_over_classes
from bsnn.deploy.engine import Engine
from bsnn.deploy.lowering import Lowered
from bsnn.deploy.schema import Synapse
from bsnn.errors import UserError
from bsnn.nn.neuron import evaluating
from bsnn.online.evaluate import predict

_BATCH = 32


class Changes(NamedTuple):
    """What the conversion changed, on some samples."""

    samples: int
    spikes: dict[str, float]
    """Share of the neurons and time steps whose spike changed, by layer."""
    currents_cut: dict[str, float]
    """Share of the currents that were larger than the 16 bits that a synapse takes, by synapse that takes currents."""
    predictions: int
    """Samples whose class changed."""
    accuracy_before: float
    accuracy_after: float
    firing_rates: dict[str, float]
    """Of the deployed network."""


class Watch:
    """What the layers of the trained network take and make.

    Args:
        lowered: The deployed network.
    """

    def __init__(self, lowered: Lowered) -> None:
        artifact = lowered.artifact
        synapses = [layer for layer in artifact.layers if isinstance(layer, Synapse)]
        self.lifs = [artifact.layers[i].name for i in artifact.lifs]
        self.spikes: dict[str, list[Tensor]] = {}
        """By layer, of one batch, one entry per time step."""
        self._limits = {
            layer.name: 32767 * 2.0 ** (layer.input_shift - artifact.fraction_bits)
            for layer in synapses
            if artifact.values[layer.inputs[0]].kind == "fixed"
        }
        self._cut, self._currents = Counter[str](), Counter[str]()

    def __call__(self, name: str, entering: Any, leaving: Any) -> None:
        """What `watching` calls."""
        if name in self.lifs:
            self.spikes.setdefault(name, []).append(spikes_of(leaving))
        elif name in self._limits:
            current = spikes_of(entering)
            self._cut[name] += int((current.abs() > self._limits[name]).sum())
            self._currents[name] += current.numel()

    def currents_cut(self) -> dict[str, float]:
        """See `Changes`."""
        return {name: self._cut[name] / number for name, number in self._currents.items()}


@torch.no_grad()
def compare(net: nn.Module, lowered: Lowered, data: Dataset, samples: int) -> Changes:
    """What the conversion changed.

    Args:
        net: The trained network.
        lowered: The deployed one.
        data: Where samples come from.
        samples: How many to compare on, spread evenly over the classes.
    """
    if samples < 1:
        raise UserError(f"samples: received {samples}; expected at least 1 to compare on.")
    artifact = lowered.artifact
    engine, device = Engine(artifact), next(net.parameters(), torch.empty(0)).device
    watch = Watch(lowered)
    changed, fired, chances = Counter[str](), Counter[str](), Counter[str]()
    count = moved = right_before = right_after = 0
    with evaluating(net), watching(lowered.modules, watch):
        for inputs, labels in Loader(spread_over_classes(data, samples), _BATCH).ordered():
            watch.spikes.clear()
            still = None if data.kind == "event" else artifact.time_steps
            before = predict(net, inputs.to(device), still).argmax(1).cpu().numpy()
            record: dict[str, np.ndarray] = {}
            after = engine.outputs(inputs.numpy(), record, normalized=True).argmax(1)
            for name, theirs in record.items():
                fired[name] += int(theirs.sum())
                chances[name] += theirs.size
                if name not in watch.spikes:  # a layer that only the deployed network has
                    continue
                ours = torch.stack(watch.spikes[name]).cpu().numpy().reshape(theirs.shape)
                changed[name] += int((ours != theirs).sum())
            count += len(labels)
            moved += int((before != after).sum())
            right_before += int((before == labels.numpy()).sum())
            right_after += int((after == labels.numpy()).sum())
    shares, rates = ({name: part[name] / chances[name] for name in watch.lifs} for part in (changed, fired))
    return Changes(count, shares, watch.currents_cut(), moved, right_before / count, right_after / count, rates)


def spikes_of(value: Any) -> Tensor:
    """The spikes, or the current, in what a layer takes or returns."""
    while isinstance(value, tuple):  # an activity, or an output and a state
        value = value[0]
    return value


@contextmanager
def watching(modules: Mapping[str, nn.Module], watch: Callable[[str, Any, Any], None]) -> Iterator[None]:
    """Calls `watch(name, input, output)` after each of these layers; a module that is used twice has two names."""
    uses: dict[nn.Module, list[str]] = {}
    for name, module in modules.items():  # in the order in which they are computed
        uses.setdefault(module, []).append(name)

    def hook(of: list[str]) -> Callable[[nn.Module, Any, Any], None]:
        turns = itertools.cycle(of)
        return lambda _module, inputs, output: watch(next(turns), inputs[0], output)

    handles = [module.register_forward_hook(hook(of)) for module, of in uses.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
