"""Where a deployed network's values and scratch lie, as tables of csrc/engine.h.

The C99 export writes the same tables as constants.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bsnn.deploy.engine import tables
from bsnn.deploy.engine.tables import KINDS, OpTable, ValueTable
from bsnn.deploy.engine.weights import ALIGNMENT, counts
from bsnn.deploy.schema import Add, Artifact, AveragePool, Concat, Layer, Lif, MaxPool, Pool, Scale, Synapse, Value

MAX_CHUNK = 16
"""Time steps that a layer computes before the next one, at most."""

_SLACK = 32  # elements that vectors may write beyond the last one
_CHUNK_BYTES = 2**22


@dataclass(frozen=True, eq=False)
class Layout:
    """The tables of a network, and how much workspace it needs.

    The workspace is `values_bytes` for the values of `chunk` time steps, then `scratch_bytes` for each thread.
    """

    ops: list[OpTable]
    """Their pointers are null; see `layers` and `weights.Weights`."""
    layers: list[int]
    """The layer whose weights and numbers each op uses."""
    values: list[ValueTable]
    chunk: int
    values_bytes: int
    scratch_bytes: int


def lay_out(
    artifact: Artifact, still: bool, time_steps: int, word_bits: Literal[32, 64] = 64, forgetful: bool = False
) -> Layout:
    """Lays out the tables and the workspace of a network.

    Args:
        artifact: The network.
        still: Whether the input is the same at all time steps.
        time_steps: How many at most are computed layer by layer; fewer if the values of so many would be large.
        word_bits: `BSNN_WORD_BITS` of the C.
        forgetful: Whether `membranes` of the call may be null; then scratch holds those of one row.
    """
    graph = _Graph(artifact, still)
    values = [_value_table(value, word_bits) for value in artifact.values]
    sizes = [_step_bytes(table, word_bits) for table in values]
    sizes[0] = 0
    for i in graph.fused:
        sizes[i + 1] = 0
    lists = max(
        (
            _lists_of_a_step(values[layer.inputs[0]], layer.kernel[0], layer.dilation[0], layer.groups).bytes
            for layer in artifact.layers
            if isinstance(layer, Synapse) and counts(layer, artifact.values[layer.inputs[0]])
        ),
        default=0,
    )
    chunk = max(1, min(time_steps, MAX_CHUNK, _CHUNK_BYTES // max(1, sum(sizes) + lists)))
    for table, size, same in zip(values, sizes, graph.unchanging, strict=True):
        table.step = 0 if same else size
    whole = [size * (1 if same else chunk) for size, same in zip(sizes, graph.unchanging, strict=True)]
    values_bytes = _place(values, whole, graph.lives())
    ops, layers = [], []
    scratch_bytes = _aligned(4 * (len(artifact.classes) + _SLACK))
    for i, layer in enumerate(artifact.layers):
        if isinstance(layer, Lif) and layer.inputs[0] - 1 in graph.fused:
            continue
        for op in _ops(artifact, graph, i, layer):
            size = _lay_scratch(op, values[op.input], values[op.output], chunk, word_bits, forgetful)
            scratch_bytes = max(scratch_bytes, size)
            ops.append(op)
            layers.append(i)
    return Layout(ops, layers, values, chunk, values_bytes, scratch_bytes)


class _Graph:
    """Who uses which value, and when.

    Args:
        artifact: The network.
        still: Whether the input is the same at all time steps.
    """

    def __init__(self, artifact: Artifact, still: bool) -> None:
        self._layers = artifact.layers
        self.unchanging = artifact.unchanging(still)
        self.takers: list[list[int]] = [[] for _ in artifact.values]
        for i, layer in enumerate(artifact.layers):
            for index in layer.inputs:
                self.takers[index].append(i)
        # A synapse whose output only one layer of neurons uses hands its currents over pixel by pixel.
        self.fused = {
            i
            for i, layer in enumerate(artifact.layers)
            if isinstance(layer, Synapse)
            and not self.unchanging[i + 1]
            and len(self.takers[i + 1]) == 1
            and isinstance(artifact.layers[self.takers[i + 1][0]], Lif)
        }

    def lives(self) -> list[tuple[int, int]]:
        """When each value is written and last read; what all chunks share, and the output, are never overwritten."""
        last = len(self._layers)
        lives = [(0, last)]
        for i, layer in enumerate(self._layers):
            begin = layer.inputs[0] - 1 if isinstance(layer, Lif) and layer.inputs[0] - 1 in self.fused else i
            shared = self.unchanging[i + 1] and not all(self.unchanging[taker + 1] for taker in self.takers[i + 1])
            lives.append((0, last) if i + 1 == last or shared else (begin, max(self.takers[i + 1])))
        return lives


def _ops(artifact: Artifact, graph: _Graph, i: int, layer: Layer) -> list[OpTable]:
    """The ops of one layer: one for each input of a `Concat`, else one, with the neurons that are fused with it."""
    ops, channel = [], 0
    for index in layer.inputs if isinstance(layer, Concat) else layer.inputs[:1]:
        op = OpTable(still=graph.unchanging[i + 1], input=index, output=i + 1, groups=1, neurons=-1)
        lif_at = graph.takers[i + 1][0] if i in graph.fused else i
        lif = artifact.layers[lif_at]
        if isinstance(lif, Lif):
            op.op, op.output = tables.LIF, lif_at + 1
            op.neurons, op.leak, op.threshold = artifact.lifs.index(lif_at), lif.leak, lif.threshold
        if isinstance(layer, Synapse):
            op.op = tables.COUNT if counts(layer, artifact.values[index]) else tables.DENSE
            op.groups, op.input_shift, op.shift = layer.groups, layer.input_shift, layer.shift
            op.dilation = layer.dilation
        elif isinstance(layer, Scale):
            op.op, op.shift = tables.SCALE, layer.shift
        elif isinstance(layer, Add):
            op.op, op.other = tables.ADD, layer.inputs[1]
        elif isinstance(layer, Concat):
            op.op, op.other = tables.CONCAT, channel
            channel += artifact.values[index].shape[0]
        elif isinstance(layer, AveragePool | MaxPool):
            op.op = tables.MAX_POOL if isinstance(layer, MaxPool) else tables.AVERAGE_POOL
            op.count_padding = isinstance(layer, AveragePool) and layer.count_padding
        if isinstance(layer, Synapse | Pool):
            op.kernel, op.stride, op.padding = layer.kernel, layer.stride, layer.padding
        ops.append(op)
    return ops


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _value_table(value: Value, word_bits: int) -> ValueTable:
    channels, height, width = value.shape
    bits = KINDS[value.kind] == 1
    return ValueTable(
        kind=KINDS[value.kind],
        channels=channels,
        height=height,
        width=width,
        planes=max(1, value.high.bit_length()) if bits else 0,
        words=-(-channels // word_bits) if bits else 0,
    )


def _step_bytes(table: ValueTable, word_bits: int) -> int:
    """Bytes of a value at one time step."""
    pixel = table.planes * table.words * word_bits // 8 if table.kind == KINDS["spikes"] else 4 * table.channels
    return _aligned(table.height * table.width * pixel)


def _place(values: Sequence[ValueTable], sizes: Sequence[int], lives: Sequence[tuple[int, int]]) -> int:
    """Gives every value its place; values that do not live at the same time may share it. Returns the bytes of all."""
    placed: list[tuple[int, int, int]] = []
    for i in sorted(range(len(values)), key=lambda i: -sizes[i]):
        (begin, end), offset = lives[i], 0
        for start, stop, other in sorted(placed):
            if sizes[i] and lives[other][0] <= end and begin <= lives[other][1]:
                if offset + sizes[i] <= start:
                    break
                offset = max(offset, stop)
        values[i].offset = offset
        placed.append((offset, offset + sizes[i], i))
    return max(stop for _, stop, _ in placed)


class _Lists(NamedTuple):
    """The lists of channels that fire, of the rows of the input that one row of windows covers."""

    rows: int
    capacity: int
    """Channels of one row of the input, and what vectors write beyond."""
    ends: int

    @property
    def bytes(self) -> int:
        return 4 * self.rows * (self.capacity + self.ends)


def _lists_of_a_step(taken: ValueTable, kernel: int, dilation: int, groups: int) -> _Lists:
    across = taken.width * taken.planes
    return _Lists(
        min(dilation * (kernel - 1) + 1, taken.height),
        across * taken.channels + taken.channels // groups + _SLACK,
        across * groups + 1 + taken.planes,
    )


def _lay_scratch(op: OpTable, taken: ValueTable, made: ValueTable, chunk: int, word_bits: int, forgetful: bool) -> int:
    """Gives the parts of an op's scratch their places, and returns the bytes of all."""
    taps, part = op.kernel[0] * op.kernel[1], taken.channels // op.groups
    parts = {"sums": 4 * (max(taken.channels, made.channels) + _SLACK)}
    if op.neurons >= 0:
        parts |= {"spikes": made.words * word_bits, "membrane": 4 * made.width * made.channels * forgetful}
    if op.op == tables.COUNT:
        lists = _lists_of_a_step(taken, op.kernel[0], op.dilation[0], op.groups)
        op.list_capacity = lists.capacity
        # No more rows of a window than the input has lie in it.
        within = min(op.kernel[0], taken.height)
        op.row_capacity = within * taken.width * taken.planes * taken.channels + part + _SLACK
        parts["lists"] = 4 * chunk * lists.rows * lists.capacity
        parts["ends"] = 4 * chunk * lists.rows * lists.ends
        parts["rows"] = 4 * op.row_capacity
        parts["row_ends"] = 4 * (lists.ends - taken.planes)
        parts["rest"] = 4 * (op.kernel[1] + 1) * _SLACK
    elif op.op == tables.DENSE:
        op.row_capacity = taps * part + 1
        parts["lists"] = 2 * taps * taken.channels
        parts["ends"] = 4 * (taken.channels + _SLACK)
        parts["rows"] = 6 * op.row_capacity
    offset = 0
    for name, size in parts.items():
        setattr(op, name, offset)
        offset += _aligned(size)
    return offset
