"""What a deployed network takes on a device of 32 bits: constants and code in flash, memory in RAM."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from bsnn.deploy.camera import why_no_events
from bsnn.deploy.engine import tables
from bsnn.deploy.engine.layout import Layout, lay_out
from bsnn.deploy.engine.scratch import Target
from bsnn.deploy.engine.tables import OpTable, TaskTable, ValueTable, contents
from bsnn.deploy.engine.weights import Weights, all_weights, counts
from bsnn.deploy.listening import SMOOTHING
from bsnn.deploy.schema import Artifact, InputSpec, Synapse
from bsnn.deploy.sound import Sound, find_sound

_WORD_BITS = 32
_WORD_BYTES = 4
_MODEL_BYTES = 24  # of the table that points to the others

CODE_BYTES: dict[int | None, int] = {
    None: 2450,
    tables.COUNT: 2880,
    tables.DENSE: 940,
    tables.LIF: 80,
    tables.POOL: 290,
    tables.SCATTER: 410,
    tables.POOL_FIXED: 1220,
    tables.ADD: 300,
    tables.CONCAT: 290,
    tables.SCALE: 90,
}
"""Bytes of code for a Cortex-M4 (arm-none-eabi-gcc 12.2, -Os), `memcpy`, `memset` and division included: of what every
network has (None), and what each op adds. Fitted to 42 builds of engine.c with some ops each; the sum is 0 to 4 %
above what was built."""
SOUND_CODE_BYTES = 2060
"""The same of sound.c and listen.c."""
REJECT_CODE_BYTES = 108
"""The same of `bsnn_rejects`, at most, which model.c has if the model file has a threshold."""
EVENTS_CODE_BYTES = 980
"""The same of events.c, with the division in 64 bits that it needs."""
_LISTEN_CONSTANT_BYTES, _LISTEN_STATE_BYTES = 40, 16
_EVENTS_STATE_BYTES = 16


@dataclass(frozen=True, eq=False)
class Device:
    """A network as it lies on a device.

    Example:
        >>> from bsnn.deploy.codec import read
        >>> found = on_device(read(bsnn.zoo.path("digits")))
        >>> found.ram_bytes < 10_000, found.flash_bytes < 40_000
        (True, True)
    """

    artifact: Artifact
    target: Target
    layout: Layout
    by_steps: bool
    """Whether one time step is computed after another, with all membranes kept: for long inputs that takes less."""
    weights: dict[int, Weights]
    """What each layer reads that has numbers of its own."""
    sound: Sound | None
    """The front end of a network that takes sounds."""

    @property
    def frames(self) -> int:
        """How many frames an input has: one that is shown at all time steps, or one for each."""
        return self.artifact.time_steps if self.artifact.input.kind == "event" else 1

    @property
    def input_bytes(self) -> int:
        """Of one whole input, which the caller provides."""
        return self.frames * self.artifact.values[0].size * (1 if takes_bytes(self.artifact.input) else 2)

    @property
    def membrane_bytes(self) -> int:
        """Of all membranes, which a stream keeps."""
        return sum(4 * self.artifact.values[i + 1].size for i in self.artifact.lifs)

    @property
    def workspace_bytes(self) -> int:
        """Of values between layers, and scratch."""
        return self.layout.values_bytes + self.layout.scratch_bytes

    @property
    def ram_bytes(self) -> int:
        """All memory of a prediction, with its input, and the front end that makes it from samples or events."""
        membranes = self.by_steps * self.membrane_bytes
        return self.input_bytes + self.workspace_bytes + membranes + self.front_ram_bytes

    @property
    def stream_ram_bytes(self) -> int:
        """Memory of a stream, with one frame of input, and the front end for sounds; `events.c` takes all frames."""
        return self.input_bytes // self.frames + self.workspace_bytes + self.membrane_bytes + self.sound_ram_bytes

    @property
    def front_ram_bytes(self) -> int:
        """Memory of the front end, if the C export has one: for sounds, or for the events of a camera."""
        return self.sound_ram_bytes + self.sums_events * _EVENTS_STATE_BYTES

    @property
    def front_flash_bytes(self) -> int:
        """Constants and code of the front end."""
        return self.sound_flash_bytes + self.sums_events * EVENTS_CODE_BYTES

    @property
    def sums_events(self) -> bool:
        """Whether the C export has events.c."""
        return self.artifact.input.kind == "event" and why_no_events(self.artifact.input) is None

    @property
    def sound_ram_bytes(self) -> int:
        """Memory of the front end for sounds, and of listening, which keeps some shares of all classes."""
        shares = _aligned(2 * SMOOTHING * len(self.artifact.classes))
        return self.sound.ram_bytes + shares + _LISTEN_STATE_BYTES if self.sound else 0

    @property
    def sound_constant_bytes(self) -> int:
        """Constants of the front end for sounds and of listening."""
        return self.sound.constant_bytes + _LISTEN_CONSTANT_BYTES if self.sound else 0

    @property
    def sound_flash_bytes(self) -> int:
        """Constants and code of the front end for sounds and of listening."""
        return self.sound_constant_bytes + SOUND_CODE_BYTES if self.sound else 0

    @property
    def ops(self) -> frozenset[int]:
        """Which ops the network has."""
        return frozenset(op.op for op in self.layout.ops)

    @cached_property
    def _layer_constants(self) -> list[int]:
        """Bytes of constants of each layer: its numbers, and the tables of its ops and its value."""
        found = [_table_bytes(value) for value in self.layout.values[1:]]
        for op, layer in zip(self.layout.ops, self.layout.layers, strict=True):
            found[layer] += _table_bytes(op)
        for layer, numbers in self.weights.items():
            found[layer] += sum(_aligned(a.nbytes) for a in (numbers.weight, numbers.multiplier, numbers.offset))
        return found

    @property
    def constant_bytes(self) -> int:
        """All constants: those of the layers, the tables of the whole, and the names of the classes."""
        whole = _MODEL_BYTES + _table_bytes(self.layout.values[0]) + sum(map(_table_bytes, self.layout.tasks))
        names = _aligned(sum(len(name.encode()) + 1 for name in self.artifact.classes))
        pointers = _WORD_BYTES * len(self.artifact.classes)
        bytes_table = 2 * of_byte(self.artifact.input).size if takes_bytes(self.artifact.input) else 0
        return sum(self._layer_constants) + whole + names + pointers + bytes_table + self.sound_constant_bytes

    @property
    def code_bytes(self) -> int:
        """The code, as measured (`CODE_BYTES`) for the ops that the network has, its threshold and its front end."""
        code = CODE_BYTES[None] + sum(CODE_BYTES[op] for op in self.ops)
        rejects = self.artifact.reject_below is not None
        return code + rejects * REJECT_CODE_BYTES + self.front_flash_bytes - self.sound_constant_bytes

    @property
    def flash_bytes(self) -> int:
        """Constants and code."""
        return self.constant_bytes + self.code_bytes

    def by_layer(self) -> list[dict[str, Any]]:
        """Of each layer of the trained network: what is kept of its output, scratch at one pixel, and constants."""
        scratch = dict(zip(self.layout.layers, self.layout.op_scratch, strict=True))
        return [
            {
                "name": self.artifact.layers[group[0]].name,
                "ram_bytes": sum(self.layout.value_bytes[i + 1] for i in group),
                "scratch_bytes": max(scratch.get(i, 0) for i in group),
                "flash_bytes": sum(self._layer_constants[i] for i in group),
            }
            for group in self.artifact.groups
        ]

    def figures(self) -> dict[str, int | bool]:
        """What a device takes in all: bytes of flash and RAM, and of their parts."""
        return {
            "flash_bytes": self.flash_bytes,
            "constant_bytes": self.constant_bytes,
            "code_bytes": self.code_bytes,
            "ram_bytes": self.ram_bytes,
            "input_bytes": self.input_bytes,
            "value_bytes": self.layout.values_bytes,
            "scratch_bytes": self.layout.scratch_bytes,
            "membrane_bytes": self.membrane_bytes,
            "stream_ram_bytes": self.stream_ram_bytes,
            "by_steps": self.by_steps,
            "front_flash_bytes": self.front_flash_bytes,
            "front_ram_bytes": self.front_ram_bytes,
        }


def on_device(artifact: Artifact) -> Device:
    """Lays out a network for a device: all time steps of a row at once, unless one step after another takes less."""
    numbers = all_weights(artifact, small=True)
    target, still = _target(artifact, numbers), artifact.input.kind != "event"
    heard = find_sound(artifact.input)
    whole = lay_out(artifact, still, artifact.time_steps, target, True)
    at_once = Device(artifact, target, whole, False, numbers, heard)
    by_steps = Device(artifact, target, lay_out(artifact, still, 1, target), True, numbers, heard)
    return min(at_once, by_steps, key=lambda device: device.ram_bytes)


def _target(artifact: Artifact, numbers: dict[int, Weights]) -> Target:
    """Lists of 16 bits, if that holds where each row of one-bit weights begins, in units that divide all rows."""
    listed = [
        numbers[i]
        for i, layer in enumerate(artifact.layers)
        if isinstance(layer, Synapse) and counts(layer, artifact.values[layer.inputs[0]])
    ]
    for shift in range(4):  # what processors shift an index by when they load
        if all(found.weight.nbytes >> shift < 2**16 and found.row % (1 << shift) == 0 for found in listed):
            return Target(_WORD_BITS, True, 16, shift)
    return Target(_WORD_BITS, True)


def takes_bytes(spec: InputSpec) -> bool:
    """Whether an input is bytes, whose meaning the model knows; else it is 16-bit integers."""
    return spec.divisor != 1


def of_byte(spec: InputSpec) -> np.ndarray:
    """The network's integer for each byte, `[C, 256]`, int16."""
    return spec.from_bytes(np.tile(np.arange(256, dtype=np.uint8), (spec.shape[0], 1, 1)))[:, 0]


def _table_bytes(table: OpTable | ValueTable | TaskTable) -> int:
    """Bytes on a device, where integers, sizes and pointers are one word each, and tasks are of half words."""
    fields = contents(table).values()
    number = sum(len(field) if isinstance(field, list) else 1 for field in fields)
    return number * (2 if isinstance(table, TaskTable) else _WORD_BYTES)


def _aligned(size: int) -> int:
    return -(-size // _WORD_BYTES) * _WORD_BYTES
