"""A time step of a layer of neurons in C (csrc/neurons.c): all of it while an image is in the cache.

Rounded as torch rounds, one operation after another, so that neurons fire exactly where torch's do.
"""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from bsnn.kernels._library import Function, library_for, run
from bsnn.kernels._normed import NormedNeurons
from bsnn.kernels.images import halved_images
from bsnn.kernels.operations import Neuron

_SURROGATES = ("sigmoid", "rectangle", "triangle", "arctan")  # in the order of neurons.c
_TRACES = ("leaky", "none")


class _NeuronTable(ctypes.Structure):
    """`bsnn_neurons` of train.h."""

    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("batch", "height", "width", "channels", "pooled", "surrogate", "quarters")
        ),
        *((name, ctypes.c_float) for name in ("parameter", "leak", "threshold")),
    ]


class Neurons(NormedNeurons):
    """See `operations.NeuronKernel`.

    Args:
        library: The library.
        x: What enters, `[B, C, H, W]` or `[B, C]`.
        neuron: What each of them does.
        pooled: Whether means of two by two pixels are sent on.
    """

    overwrites = True

    def __init__(self, library: ctypes.CDLL, x: Tensor, neuron: Neuron, pooled: bool) -> None:
        batch, channels, *size = x.shape
        height, width = size or (1, 1)
        assert neuron.surrogate is not None
        constants = neuron.parameter, neuron.leak, neuron.threshold
        number = _SURROGATES.index(neuron.surrogate)
        self._library = library
        self._table = _NeuronTable(batch, height, width, channels, pooled, number, 0, *constants)

    def fire(self, x: Tensor, membrane: Tensor, trace: Tensor | None) -> tuple[Tensor, Tensor | None, Sequence[Tensor]]:
        """See `NormedNeurons`."""
        sent, sent_trace = x, trace
        if self._table.pooled:
            sent = halved_images(x)
            sent_trace = None if trace is None else torch.empty_like(sent)
        bits = x.new_empty(self._table.batch, -(-x[0].numel() // 8), dtype=torch.uint8)
        self._run(Function.FIRE, x, membrane, trace, sent, sent_trace, bits)
        for changed in (membrane, trace):
            if changed is not None and not changed.is_inference():
                # So that autograd notices, as it does with torch's own functions.
                torch.autograd.graph.increment_version(changed)
        return sent, sent_trace, [bits]

    def keep(self, current: Tensor) -> Tensor:
        """Currents of binary synapses are whole quarters; 16 bits hold them in half the room."""
        quarters = torch.empty_like(current, dtype=torch.int16)
        self._table.quarters = self._run(Function.QUARTERS, current, quarters)
        return quarters if self._table.quarters else current

    def through(
        self, sent: Tensor, membrane: Tensor, bits: Sequence[Tensor], current: Tensor | None, mean: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `NormedNeurons`."""
        gradient, number = torch.empty_like(membrane), torch.get_num_threads()
        sums = gradient.new_zeros(number, 2, self._table.channels, dtype=torch.float64)
        work = gradient.new_empty(number, 2, self._table.channels)
        self._run(Function.THROUGH_NEURONS, sent, membrane, bits[0], current, mean, gradient, sums, work)
        total, products = sums.sum(0)
        return gradient, total, products

    def through_norm_(self, gradient: Tensor, current: Tensor, scale: Tensor, slope: Tensor, shift: Tensor) -> None:
        """See `NormedNeurons`."""
        self._run(Function.THROUGH_NORM, gradient, current, scale, slope, shift)

    def _run(self, function: Function, *arguments: Tensor | None) -> bool:
        return run(self._library, function, self._table, *arguments)


def neurons(x: Tensor, neuron: Neuron, pooled: bool) -> Neurons | None:
    """See `operations.neurons`; C knows neither NDOT nor a user's own surrogate."""
    library = library_for(x)
    known = neuron.surrogate in _SURROGATES and neuron.trace in _TRACES
    odd = pooled and (x.shape[2] % 2 or x.shape[3] % 2)
    return Neurons(library, x, neuron, pooled) if library is not None and known and not odd else None
