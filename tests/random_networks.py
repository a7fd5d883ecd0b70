"""Random deployed networks: every op, odd sizes, strides, gaps and groups."""

import itertools
from dataclasses import replace

import numpy as np

from bsnn.deploy.schema import (
    Add,
    Artifact,
    AveragePool,
    Concat,
    InputSpec,
    Layer,
    Lif,
    MaxPool,
    Scale,
    Synapse,
    Value,
)


class Builder:
    """A random network, layer by layer; each method returns the number of the value that it makes."""

    def __init__(self, seed: int, shape: tuple[int, int, int]) -> None:
        self.random = np.random.default_rng(seed)
        self.layers: list[Layer] = []
        self.values = [Value("input", shape, -32768, 32767)]
        self.input = InputSpec("image", shape, 8, 1.0, (0.0,) * shape[0], (1.0,) * shape[0], (1,), (0,), 0, {})

    def _push(self, layer: Layer) -> int:
        self.layers.append(layer)
        self.values.append(layer.output([self.values[i] for i in layer.inputs]))
        return len(self.layers)

    def _name(self) -> str:
        return f"layer{len(self.layers)}"

    def synapse(
        self, taken, out, kernel=3, stride=1, padding=1, dilation=1, groups=1, weights="bits", input_shift=0, shift=2,
        multiplier=2**13,
    ):  # fmt: skip
        """Currents that make some neurons fire, and not all."""
        pairs = [v if isinstance(v, tuple) else (v, v) for v in (kernel, stride, padding, dilation)]
        value = self.values[taken]
        rows, outs = pairs[0][0] * pairs[0][1] * value.shape[0], out // groups
        if weights == "bits":
            bits = self.random.integers(0, 2, (rows, outs), dtype=np.uint8)
            weight = np.packbits(bits, axis=1, bitorder="little")
        else:
            weight = self.random.integers(-300, 301, (rows, outs)).astype(np.int16)
        scale = (self.random.integers(multiplier // 2, multiplier, out) * self.random.choice((-1, 1), out)).astype(
            np.int32
        )
        offset = self.random.integers(-(2**11), 2**12, out).astype(np.int32)
        layer = Synapse(
            self._name(), (taken,), out, *pairs, groups, weights, input_shift, shift, weight, scale, offset
        )  # fmt: skip
        return self._push(layer)

    def lif(self, taken, leak=32768, threshold=2**13):
        return self._push(Lif(self._name(), (taken,), leak, threshold))

    def average_pool(self, taken, kernel=2, stride=2, padding=0, ceil=False, count_padding=True):
        pairs = (kernel, kernel), (stride, stride), (padding, padding)
        return self._push(AveragePool(self._name(), (taken,), *pairs, ceil, count_padding))

    def max_pool(self, taken, kernel=2, stride=2, padding=0, ceil=False):
        return self._push(MaxPool(self._name(), (taken,), (kernel,) * 2, (stride,) * 2, (padding,) * 2, ceil))

    def add(self, first, second):
        return self._push(Add(self._name(), (first, second)))

    def concat(self, *taken):
        return self._push(Concat(self._name(), taken))

    def scale(self, taken, shift=4, multiplier=40):
        channels = self.values[taken].shape[0]
        numbers = self.random.integers(-multiplier, multiplier + 1, (2, channels)).astype(np.int32)
        return self._push(Scale(self._name(), (taken,), shift, numbers[0], numbers[1] * 100))

    def head(self, taken, classes=3, weights="int16"):
        """The classifier: all of a value at once."""
        _, height, width = self.values[taken].shape
        fixed = self.values[taken].kind == "fixed"
        self.synapse(
            taken, classes, (height, width), padding=0, weights=weights, input_shift=8 if fixed else 0, multiplier=2**10
        )  # fmt: skip
        return Artifact(
            "random", tuple(map(str, range(classes))), 3, 12, self.input, tuple(self.layers), 1.0
        )  # fmt: skip


def chain(seed, channels, **options):
    """Input → real synapse → neurons → one synapse with `options` → neurons → classifier."""
    entering, leaving = channels
    net = Builder(seed, (2, 7, 6))
    first = net.lif(net.synapse(0, entering, weights="int16", shift=14, multiplier=2**9))
    return net.head(net.lif(net.synapse(first, leaving, **options)))


def pooled(seed):
    """Counts of several planes, pooled by sum and by maximum, with padding and odd sizes."""
    net = Builder(seed, (3, 11, 9))
    spikes = net.lif(net.synapse(0, 70, weights="int16", shift=14, multiplier=2**9), leak=50000)
    sums = net.average_pool(spikes, 3, 2, 1, ceil=True)
    largest = net.max_pool(net.average_pool(sums, 2, 1), 2, 2, 1)
    more = net.lif(net.synapse(largest, 33), leak=0)
    return net.head(net.average_pool(more, 2, 2, ceil=True))


def residual(seed):
    """The stream of a residual network: fixed values that are added, pooled and scaled; two users of one value."""
    net = Builder(seed, (3, 8, 8))
    stream = net.synapse(0, 40, weights="int16", shift=14, multiplier=2**9)
    spikes = net.lif(stream, leak=65536)
    body = net.synapse(net.lif(net.synapse(spikes, 40, stride=2)), 40)
    shortcut = net.average_pool(net.scale(stream), 3, 2, 1, count_padding=False)
    joined = net.add(body, net.max_pool(net.add(shortcut, net.synapse(spikes, 40, 1, 2, 0, weights="int16")), 3, 1, 1))
    both = net.add(net.lif(joined), net.max_pool(spikes))
    third = net.synapse(net.scale(both, multiplier=2**30, shift=20), 24, 3, input_shift=9)
    return net.head(net.concat(joined, third), weights="bits")


def joined(seed):
    """Spikes and counts side by side, across the borders of words."""
    net = Builder(seed, (1, 6, 6))
    first = net.lif(net.synapse(0, 65, weights="int16", shift=14, multiplier=2**9))
    second = net.lif(net.synapse(first, 24))
    both = net.add(first, first)
    together = net.concat(second, both, first, second)
    return net.head(net.average_pool(net.lif(net.synapse(net.max_pool(together), 130)), 3, 3), weights="bits")


def spiking_output(seed):
    """Neurons as the last layer, bits over the input itself, and products beyond 32 bits."""
    net = Builder(seed, (5, 4, 4))
    first = net.lif(net.synapse(0, 16, weights="bits", shift=20, multiplier=2**19))
    net.lif(net.synapse(first, 7, 4, padding=0, shift=18, multiplier=2**30))
    return Artifact("random", tuple("abcdefg"), 3, 12, net.input, tuple(net.layers), 1.0)


def averaged(seed):
    """Averages of fixed values whose windows reach over all borders, padding counted."""
    net = Builder(seed, (2, 5, 6))
    stream = net.synapse(0, 9, weights="int16", shift=14, multiplier=2**9)
    return net.head(net.lif(net.average_pool(stream, 3, 1, 1), threshold=2**11))


def of_sounds(seed, bands=32, frames=32, **decode):
    """Spectrograms of one second, normalized."""
    net = Builder(seed, (1, bands, frames))
    net.input = replace(net.input, kind="sound", fraction_bits=14, mean=(0.5,), std=(0.25,), decode=decode)
    return net.head(net.lif(net.synapse(0, 8, stride=4, weights="int16", shift=14, multiplier=2**6)))


NETWORKS = {
    **{f"channels {a} to {b}": chain(1, (a, b)) for a, b in itertools.pairwise((1, 3, 24, 65, 130, 300, 530, 8))},
    "groups": chain(2, (36, 60), groups=4),
    "depthwise": chain(3, (65, 130), groups=65),
    "wide groups": chain(4, (130, 1040), groups=2),
    "strides": chain(5, (24, 40), stride=(2, 3), padding=(1, 0)),
    "gaps": chain(6, (24, 40), kernel=1, stride=4, padding=0),
    "dilation": chain(7, (24, 40), dilation=(2, 1), padding=(2, 2), kernel=(3, 4)),
    "64-bit products": chain(8, (24, 70), multiplier=2**31 - 1, shift=19),
    "large currents": chain(9, (24, 70), multiplier=2**31 - 1, shift=0),
    "whole shift": chain(10, (24, 70), multiplier=2**12, shift=0),
    "pooled": pooled(11),
    "residual": residual(12),
    "joined": joined(13),
    "spiking output": spiking_output(14),
    "averaged": averaged(15),
}
