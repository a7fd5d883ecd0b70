"""Where a deployed network's values and scratch lie, as tables of csrc/engine.h.

The C99 export writes the same tables as constants.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from bsnn.deploy.engine import tables
from bsnn.deploy.engine.schedule import Graph, Node, Schedule, schedule
from bsnn.deploy.engine.scratch import DESKTOP, Target, expanded, lay_scratch, lists_of_a_step
from bsnn.deploy.engine.tables import KINDS, OpTable, TaskTable, ValueTable
from bsnn.deploy.engine.weights import counts, windows_of
from bsnn.deploy.schema import Add, Artifact, AveragePool, Concat, Lif, MaxPool, Pool, Scale, Synapse, Value

MAX_CHUNK = 16
"""Time steps that a layer computes before the next one, at most; a device computes all."""

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
    tasks: list[TaskTable]
    chunk: int
    value_bytes: list[int]
    """Bytes of each value; those that do not live at the same time share their place."""
    values_bytes: int
    op_scratch: list[int]
    """Bytes of scratch of the group that each op belongs to."""
    scratch_bytes: int


def lay_out(
    artifact: Artifact, still: bool, time_steps: int, target: Target = DESKTOP, forgetful: bool = False
) -> Layout:
    """Lays out the tables and the workspace of a network.

    Args:
        artifact: The network.
        still: Whether the input is the same at all time steps.
        time_steps: How many are computed before the next task; fewer on a desktop if their values would be large.
        target: What the C is built for.
        forgetful: Whether `membranes` of the call may be null; then scratch holds them.
    """
    graph = Graph(artifact, still)
    plan = schedule(graph, target.small)
    values = [
        _value_table(value, ring, i in plan.local, target)
        for i, (value, ring) in enumerate(zip(artifact.values, plan.rings, strict=True))
    ]
    sizes = [target.aligned(table.row * ring) for table, ring in zip(values, plan.rings, strict=True)]
    chunk = time_steps if target.small else _chunk(artifact, values, sum(sizes), time_steps)
    for table, size, same in zip(values, sizes, graph.unchanging, strict=True):
        table.step = 0 if same else size
    value_bytes = [size * (1 if same else chunk) for size, same in zip(sizes, graph.unchanging, strict=True)]
    values_bytes = _place(values, value_bytes, plan.lives if target.small else _lives(graph, plan))
    highs = [value.high for value in artifact.values]
    ops, layers, scratch = [], [], []
    for group in plan.groups:
        made = [(op, node.layer) for node in group for op in _ops(artifact, graph, plan, node, target.vector)]
        scratch.append(lay_scratch([op for op, _ in made], values, highs, chunk, target, forgetful))
        ops.append([op for op, _ in made])
        layers += [layer for _, layer in made]
    firsts = list(accumulate(map(len, ops), initial=0))
    tasks = [TaskTable(firsts[task.group], len(ops[task.group]), task.first, task.last) for task in plan.tasks]
    output = target.aligned(4 * expanded(len(artifact.classes), target))
    return Layout(
        [op for group in ops for op in group],
        layers,
        values,
        tasks,
        chunk,
        value_bytes,
        values_bytes,
        [size for size, group in zip(scratch, ops, strict=True) for _ in group],
        max(output, *scratch),
    )


def _chunk(artifact: Artifact, values: Sequence[ValueTable], values_bytes: int, time_steps: int) -> int:
    """How many time steps of a desktop fit."""
    lists = max(
        (
            lists_of_a_step(values[layer.inputs[0]], layer.kernel[0], layer.dilation[0], layer.groups).bytes
            for layer in artifact.layers
            if isinstance(layer, Synapse) and counts(layer, artifact.values[layer.inputs[0]])
        ),
        default=0,
    )
    return max(1, min(time_steps, MAX_CHUNK, _CHUNK_BYTES // max(1, values_bytes + lists)))


def _lives(graph: Graph, plan: Schedule) -> list[tuple[int, int]]:
    """The lives of values on a desktop: what all chunks share is never overwritten, and neither is the output.

    A thread may still read that when others begin with the next image.
    """
    last, lives = len(plan.tasks), list(plan.lives)
    for value, (same, takers) in enumerate(zip(graph.unchanging, graph.takers, strict=True)):
        if not takers or (same and not all(graph.unchanging[taker + 1] for taker in takers)):
            lives[value] = 0, last
    return lives


def _ops(artifact: Artifact, graph: Graph, plan: Schedule, node: Node, vector: int) -> list[OpTable]:
    """The ops of a node: one for each input of a `Concat`, else one, with the neurons that are fused with it."""
    ops, channel, layer = [], 0, artifact.layers[node.layer]
    for index in layer.inputs if isinstance(layer, Concat) else layer.inputs[:1]:
        op = OpTable(still=graph.unchanging[node.made], input=index, output=node.made, groups=1, windows=1, neurons=-1)
        lif = artifact.layers[node.made - 1]
        if isinstance(lif, Lif):
            op.op, op.neurons = tables.LIF, artifact.lifs.index(node.made - 1)
            op.leak, op.threshold = lif.leak, lif.threshold
        if isinstance(layer, Synapse):
            op.op = tables.COUNT if counts(layer, artifact.values[index]) else tables.DENSE
            op.groups, op.input_shift, op.shift = layer.groups, layer.input_shift, layer.shift
            op.dilation, op.windows = layer.dilation, windows_of(layer, artifact.values[index], vector)
        elif isinstance(layer, Scale):
            op.op, op.shift = tables.SCALE, layer.shift
        elif isinstance(layer, Add):
            op.op, op.other = tables.ADD, layer.inputs[1]
        elif isinstance(layer, Concat):
            op.op, op.other = tables.CONCAT, channel
            channel += artifact.values[index].shape[0]
        elif isinstance(layer, Pool):
            bits = tables.SCATTER if node.made in plan.scattered else tables.POOL
            op.op = tables.POOL_FIXED if artifact.values[index].kind == "fixed" else bits
            op.largest = isinstance(layer, MaxPool)
            op.count_padding = isinstance(layer, AveragePool) and layer.count_padding
        if isinstance(layer, Synapse | Pool):
            op.kernel, op.stride, op.padding = layer.kernel, layer.stride, layer.padding
        ops.append(op)
    return ops


def _value_table(value: Value, ring: int, local: bool, target: Target) -> ValueTable:
    channels, height, width = value.shape
    table = ValueTable(KINDS[value.kind], channels, height, width, ring=max(1, ring), local=local, pixel=4 * channels)
    if table.kind == KINDS["spikes"]:
        table.planes, table.words = max(1, value.high.bit_length()), -(-channels // target.word_bits)
        table.pixel = table.planes * table.words * target.word_bits // 8
    table.row = width * table.pixel
    return table


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
