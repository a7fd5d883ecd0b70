"""A deployed network in the memory of WebAssembly: the tables of csrc/engine.h with words of 32 bits, and the call.

The engine is compiled once, for all networks, and reads all that it computes from these tables. One call computes one
time step.
"""

from dataclasses import dataclass

import numpy as np

from bsnn.deploy.engine.layout import lay_out
from bsnn.deploy.engine.tables import CallTable, ModelTable, OpTable, TaskTable, ValueTable, contents
from bsnn.deploy.engine.webassembly import STACK_BYTES
from bsnn.deploy.engine.weights import ALIGNMENT, all_weights
from bsnn.deploy.footprint import of_byte, takes_bytes
from bsnn.deploy.schema import Artifact
from bsnn.errors import UserError

BASE = STACK_BYTES + 65536
"""Where the image begins; the engine's own stack and data lie before it."""
_LARGEST = 2**31


@dataclass(frozen=True, eq=False)
class Memory:
    """What lies where; all numbers but sizes are addresses."""

    image: bytes
    """Constants, from `BASE` on; what follows them begins as zeros."""
    size: int
    call: int
    input: int
    """One frame `[H, W, C]`: bytes if the network takes them, else 16-bit integers."""
    outputs: int
    """64-bit integers; a call adds to them."""
    membranes: int
    membrane_bytes: int
    records: list[int]
    """The spikes of each layer of neurons at the last time step, `[H, W, C]`, a byte for each."""


def lay_memory(artifact: Artifact) -> Memory:
    """Places a network in memory, so that each call of `bsnn_run` computes one time step."""
    image, numbers = _Image(), all_weights(artifact)
    layout = lay_out(artifact, still=True, time_steps=1)
    for op, layer in zip(layout.ops, layout.layers, strict=True):
        if layer in numbers:
            found = numbers[layer]
            op.row, op.wide = found.row, found.wide
            op.weight, op.multiplier, op.offset = map(image.put, (found.weight, found.multiplier, found.offset))
    model = ModelTable(
        num_tasks=len(layout.tasks),
        output=len(layout.values) - 1,
        frame=artifact.values[0].size,
        tasks=image.put(_packed(*layout.tasks)),
        ops=image.put(_packed(*layout.ops)),
        values=image.put(_packed(*layout.values)),
    )
    call = CallTable(
        model=image.put(_packed(model)),
        of_byte=image.put(of_byte(artifact.input)) if takes_bytes(artifact.input) else None,
        num_frames=1,
        batch=1,
        time_steps=1,
        chunk=1,
        values_bytes=layout.values_bytes,
        scratch_bytes=layout.scratch_bytes,
        threads=1,
    )
    sizes = [artifact.values[i + 1].size for i in artifact.lifs]
    pointers = [image.put(np.zeros(max(1, len(sizes)), np.uint32)) for _ in range(2)]
    place = image.put(_packed(call))
    zeros = _Zeros(BASE + len(image.content))
    call.frames = frames = zeros.take(2 * artifact.values[0].size)
    call.outputs = outputs = zeros.take(8 * len(artifact.classes))
    call.workspace = zeros.take(layout.values_bytes + layout.scratch_bytes)
    membranes = zeros.take(4 * sum(sizes))
    records = [zeros.take(size) for size in sizes]
    call.membranes, call.records = pointers
    starts = [membranes + 4 * sum(sizes[:i]) for i in range(len(sizes))]
    for at, table in zip((*pointers, place), (starts, records, _packed(call)), strict=True):
        image.replace(at, np.asarray(table, np.uint32))
    if zeros.end > _LARGEST:
        raise UserError(f"{artifact.name}: needs {zeros.end:,} bytes of memory; a page has at most {_LARGEST:,}.")
    return Memory(bytes(image.content), zeros.end, place, frames, outputs, membranes, 4 * sum(sizes), records)


class _Image:
    """Constants, one after another."""

    def __init__(self) -> None:
        self.content = bytearray()

    def put(self, numbers: np.ndarray) -> int:
        """Appends numbers, and returns where they are."""
        self.content += bytes(-len(self.content) % ALIGNMENT)
        at = BASE + len(self.content)
        self.content += numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()
        return at

    def replace(self, at: int, numbers: np.ndarray) -> None:
        """Writes numbers over those that are there."""
        content = numbers.astype("<u4").tobytes()
        self.content[at - BASE : at - BASE + len(content)] = content


class _Zeros:
    """Memory that is not part of the image."""

    def __init__(self, end: int) -> None:
        self.end = end

    def take(self, size: int) -> int:
        """Reserves some bytes, and returns where they are."""
        at = -(-self.end // ALIGNMENT) * ALIGNMENT
        self.end = at + size
        return at


def _packed(*tables: OpTable | ValueTable | TaskTable | ModelTable | CallTable) -> np.ndarray:
    """Tables as WebAssembly has them: integers, sizes and pointers are one word each, and tasks are of half words."""
    kind = np.uint16 if isinstance(tables[0], TaskTable) else np.uint32
    fields = (field for table in tables for field in contents(table).values())
    words = [word for field in fields for word in (field if isinstance(field, list) else [field])]
    return np.array(words, np.int64).astype(kind)
