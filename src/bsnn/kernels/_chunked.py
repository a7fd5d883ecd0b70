"""A time step of a layer of neurons in torch on a CPU: a few samples at a time.

So what lies between two operations stays in the cache. C (`_neurons`) computes the same to the bit where it can.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from bsnn.kernels._normed import NormedNeurons
from bsnn.kernels.bits import pack, silent
from bsnn.kernels.images import channels_as_rows, halved_images
from bsnn.kernels.operations import Neuron

# Neurons that are worked on at a time: half a megabyte per tensor.
_CHUNK = 1 << 17


class ChunkedNeurons(NormedNeurons):
    """See `operations.NeuronKernel`.

    Args:
        neuron: What each neuron does.
        pooled: Whether means of two by two pixels are sent on.
    """

    overwrites = False

    def __init__(self, neuron: Neuron, pooled: bool) -> None:
        self._neuron = neuron
        self._pooled = pooled

    def fire(self, x: Tensor, membrane: Tensor, trace: Tensor | None) -> tuple[Tensor, Tensor | None, Sequence[Tensor]]:
        """See `NormedNeurons`."""
        neuron, packed = self._neuron, []
        spikes = halved_images(x) if self._pooled else torch.empty_like(x)
        sent_trace = torch.empty_like(spikes) if trace is not None and self._pooled else trace
        work = _workspace(x)
        for chunk in _chunks(x):
            u = channels_as_rows(membrane)[chunk]
            previous = u.clone() if trace is not None and neuron.needs_membrane else u
            u.mul_(neuron.leak).add_(channels_as_rows(x)[chunk])
            fired = work[: len(u)] if self._pooled else channels_as_rows(spikes)[chunk]
            s = torch.ge(u, neuron.threshold, out=fired)
            packed.append(pack(s.bool()))
            u.sub_(s, alpha=neuron.threshold)
            if trace is not None:
                a = channels_as_rows(trace)[chunk]
                a.copy_(neuron.update_trace(a, s, u, previous, neuron.leak))
            if self._pooled:
                for part, target in (
                    (s, spikes),
                    (None if trace is None else channels_as_rows(trace)[chunk], sent_trace),
                ):
                    if part is not None and target is not None:
                        target[chunk] = F.avg_pool2d(part.permute(0, 3, 1, 2), 2)
        return spikes, sent_trace, packed

    def keep(self, current: Tensor) -> Tensor:
        """The current as it is."""
        return current

    def through(
        self, sent: Tensor, membrane: Tensor, bits: Sequence[Tensor], current: Tensor | None, mean: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `NormedNeurons`."""
        neuron, work, gradient = self._neuron, _workspace(membrane), torch.empty_like(membrane)
        sums = products = torch.zeros((), dtype=torch.float64, device=gradient.device)
        for chunk, packed in zip(_chunks(membrane), bits, strict=True):
            m = channels_as_rows(membrane)[chunk]
            # u − V_th: the reset has taken V_th off already where the neuron fired.
            distance = work[: len(m)].copy_(silent(packed, m.numel()).view(m.shape)).mul_(-neuron.threshold).add_(m)
            derivative = neuron.derivative(distance)
            arrived = F.interpolate(sent[chunk] * 0.25, scale_factor=2) if self._pooled else sent[chunk]
            out = channels_as_rows(gradient)[chunk]
            rows = torch.mul(derivative, channels_as_rows(arrived), out=out).flatten(0, -2)
            if current is not None:
                assert mean is not None
                sums = sums + rows.sum(0)
                products = products + (channels_as_rows(current)[chunk].flatten(0, -2) - mean).mul_(rows).sum(0)
        return gradient, sums, products

    def through_norm_(self, gradient: Tensor, current: Tensor, scale: Tensor, slope: Tensor, shift: Tensor) -> None:
        """See `NormedNeurons`."""
        for chunk in _chunks(gradient):
            rows = channels_as_rows(gradient)[chunk]
            rows.mul_(scale).addcmul_(channels_as_rows(current)[chunk], slope).add_(shift)


def _samples(x: Tensor) -> int:
    """In a chunk."""
    return max(1, _CHUNK // max(1, x.shape[1:].numel()))


def _chunks(x: Tensor) -> Iterator[slice]:
    size = _samples(x)
    return (slice(start, start + size) for start in range(0, len(x), size))


def chunk_bytes(x: Tensor) -> list[int]:
    """How many bytes the packed spikes of each chunk of `x` have."""
    return [(len(x[chunk]) * x.shape[1:].numel() + 7) // 8 for chunk in _chunks(x)]


def packed_bytes(x: Tensor) -> int:
    """The sum of `chunk_bytes`, also if the number of samples is a symbol."""
    samples, size = _samples(x), x.shape[1:].numel()
    return x.shape[0] // samples * ((samples * size + 7) // 8) + (x.shape[0] % samples * size + 7) // 8


def _workspace(x: Tensor) -> Tensor:
    """Room for the largest chunk, channels as the last axis."""
    return torch.empty_like(channels_as_rows(x)[next(_chunks(x))])
