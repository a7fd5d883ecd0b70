"""What a deployed network takes on a device of 32 bits: constants in flash, memory in RAM."""

from typing import NamedTuple

from bsnn.deploy.engine.layout import Layout, lay_out
from bsnn.deploy.engine.tables import contents
from bsnn.deploy.engine.weights import Weights, weights
from bsnn.deploy.schema import Artifact, Scale, Synapse

WORD_BITS = 32
_WORD_BYTES = 4


class Footprint(NamedTuple):
    """Bytes on a device, beyond the code itself."""

    flash: int
    """Weights and tables."""
    membranes: int
    values: int
    """What lies between layers."""
    scratch: int

    @property
    def ram(self) -> int:
        """All memory, which is static."""
        return self.membranes + self.values + self.scratch


def device_layout(artifact: Artifact) -> Layout:
    """The tables of a network that is shown a still input, one time step at a time."""
    return lay_out(artifact, True, 1, WORD_BITS)


def device_weights(artifact: Artifact) -> dict[int, Weights]:
    """What the engine reads of each layer that has numbers of its own."""
    return {
        i: weights(layer, artifact.values[layer.inputs[0]])
        for i, layer in enumerate(artifact.layers)
        if isinstance(layer, Synapse | Scale)
    }


def footprint(artifact: Artifact) -> Footprint:
    """Counts the bytes of a network.

    Example:
        >>> from bsnn.deploy.codec import read
        >>> found = footprint(read(bsnn.zoo.path("digits")))
        >>> found.flash < 256 * 1024, found.ram < 64 * 1024
        (True, True)
    """
    layout = device_layout(artifact)
    constants = sum(
        array.nbytes
        for numbers in device_weights(artifact).values()
        for array in (numbers.weight, numbers.multiplier, numbers.offset)
    )
    # Integers, sizes and pointers are one word each on a device.
    numbers = [number for table in (*layout.ops, *layout.values) for number in contents(table).values()]
    words = sum(len(number) if isinstance(number, list) else 1 for number in numbers)
    membranes = sum(4 * artifact.values[i + 1].size for i in artifact.lifs)
    return Footprint(constants + _WORD_BYTES * words, membranes, layout.values_bytes, layout.scratch_bytes)
