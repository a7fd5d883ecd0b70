"""In which order the rows of a network are computed, and how many rows of each value are kept.

A desktop computes layer by layer, all rows of each. A device computes row by row: a row is made only when another one
needs it, so that a few rows of each value are enough. What one pixel hands to the next layer at the same pixel is never
stored, and neither are spikes that are only pooled: each is added to its windows at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bsnn.deploy.schema import Artifact, Lif, Pool, Synapse


class Node(NamedTuple):
    """A layer, with the neurons that are fused with it, and the value that they make."""

    layer: int
    made: int


class Task(NamedTuple):
    """Rows of a group, from `first` to `last` (included)."""

    group: int
    first: int
    last: int


class Graph:
    """Who uses which value.

    Args:
        artifact: The network.
        still: Whether the input is the same at all time steps.
    """

    def __init__(self, artifact: Artifact, still: bool) -> None:
        self.layers, self.values = artifact.layers, artifact.values
        self.unchanging = artifact.unchanging(still)
        self.takers: list[list[int]] = [[] for _ in artifact.values]
        for i, layer in enumerate(artifact.layers):
            for index in layer.inputs:
                self.takers[index].append(i)
        # A synapse whose output only one layer of neurons uses hands its currents over pixel by pixel.
        fused = {
            i: self.takers[i + 1][0]
            for i, layer in enumerate(artifact.layers)
            if isinstance(layer, Synapse)
            and not self.unchanging[i + 1]
            and len(self.takers[i + 1]) == 1
            and isinstance(artifact.layers[self.takers[i + 1][0]], Lif)
        }
        neurons = set(fused.values())
        self.nodes = [Node(i, fused.get(i, i) + 1) for i in range(len(artifact.layers)) if i not in neurons]

    def height(self, value: int) -> int:
        """How many rows a value has."""
        return self.values[value].shape[1]

    def reads(self, node: Node, row: int) -> Iterator[tuple[int, int, int]]:
        """The values that a row of a node reads, other than the input, with the first and the last of their rows."""
        layer = self.layers[node.layer]
        for value in filter(None, layer.inputs):
            if not isinstance(layer, Synapse | Pool):
                yield value, row, row
                continue
            reach = layer.kernel[0] if isinstance(layer, Pool) else layer.dilation[0] * (layer.kernel[0] - 1) + 1
            top = row * layer.stride[0] - layer.padding[0]
            yield value, max(0, top), min(top + reach, self.height(value)) - 1


@dataclass(frozen=True, eq=False)
class Schedule:
    """Groups of nodes that are computed together, pixel by pixel, and the order of their rows."""

    groups: list[list[Node]]
    tasks: list[Task]
    scattered: frozenset[int]
    """Values of pools to whose windows every pixel is added when it is made."""
    local: frozenset[int]
    """Values that live for one pixel."""
    rings: list[int]
    """How many rows of each value are kept; 0 if it is local or never written."""
    lives: list[tuple[int, int]]
    """The tasks that write each value first and read it last."""


def schedule(graph: Graph, by_rows: bool) -> Schedule:
    """Plans the order of rows.

    Args:
        graph: The network.
        by_rows: Row by row, for a device; else layer by layer.
    """
    if not by_rows:
        return _layer_by_layer(graph)
    groups, scattered = _grouped(graph)
    group_of = {layer: i for i, group in enumerate(groups) for node in group for layer in (node.layer, node.made - 1)}
    local = frozenset(
        node.made
        for group in groups
        for node in group
        if node.made not in scattered
        and graph.takers[node.made]
        and all(group_of[taker] == group_of[node.layer] for taker in graph.takers[node.made])
    )
    tasks = _ordered(graph, groups, scattered)
    rings, lives = _kept(graph, groups, tasks, scattered)
    rings = [0 if value in local else ring for value, ring in enumerate(rings)]
    return Schedule(groups, tasks, scattered, local, rings, lives)


def _layer_by_layer(graph: Graph) -> Schedule:
    """Every node is a task of its own, with all its rows."""
    tasks = [Task(i, 0, graph.height(node.made) - 1) for i, node in enumerate(graph.nodes)]
    rings, lives = [0] * len(graph.values), [(0, 0)] * len(graph.values)
    task_of = {layer: i for i, node in enumerate(graph.nodes) for layer in (node.layer, node.made - 1)}
    for i, node in enumerate(graph.nodes):
        rings[node.made] = graph.height(node.made)
        lives[node.made] = i, max((task_of[taker] for taker in graph.takers[node.made]), default=len(tasks))
    return Schedule([[node] for node in graph.nodes], tasks, frozenset(), frozenset(), rings, lives)


def _grouped(graph: Graph) -> tuple[list[list[Node]], frozenset[int]]:
    """Nodes that share their pixels, and the pools that join the group before them."""
    group_of: dict[int, int] = {}  # of each value
    feeds: dict[int, set[int]] = {}  # the groups that each group reads from
    scattered: set[int] = set()

    def before(group: int) -> set[int]:
        """All groups that a group depends on."""
        found, ahead = set(), [group]
        while ahead:
            new = feeds[ahead.pop()] - found
            found |= new
            ahead += new
        return found

    for number, node in enumerate(graph.nodes):
        layer = graph.layers[node.layer]
        taken = [value for value in layer.inputs if value]
        sources = {group_of[value] for value in taken}
        if isinstance(layer, Pool) and _only_pooled(graph, taken[0]) and taken[0] not in scattered:
            same = sources
            scattered.add(node.made)
        elif isinstance(layer, Synapse | Pool):
            same = set()
        else:
            same = sources - {group_of[value] for value in taken if value in scattered}
        # Joining must not make groups wait for each other.
        home = number
        for group in sorted(same, reverse=True):
            if any(group in before(source) for source in sources):
                continue
            if home == number:
                home = group
            else:
                _rename(group_of, feeds, group, home)
                sources = {home if source == group else source for source in sources}
        group_of[node.made] = home
        feeds[home] = feeds.get(home, set()) | (sources - {home})
    groups: dict[int, list[Node]] = {}
    for node in graph.nodes:
        groups.setdefault(group_of[node.made], []).append(node)
    return list(groups.values()), frozenset(scattered)


def _only_pooled(graph: Graph, value: int) -> bool:
    """Whether these are spikes or counts that one pool takes and nobody else."""
    return graph.values[value].kind in ("spikes", "counts") and len(graph.takers[value]) == 1


def _rename(group_of: dict[int, int], feeds: dict[int, set[int]], old: int, new: int) -> None:
    for value, group in group_of.items():
        group_of[value] = new if group == old else group
    feeds[new] |= feeds.pop(old)
    for group, sources in feeds.items():
        feeds[group] = {new if source == old else source for source in sources} - {group}


def _touched(graph: Graph, node: Node, row: int, scattered: frozenset[int]) -> range:
    """The rows of its value that a node writes, or adds to, when its group computes a row."""
    if node.made not in scattered:
        return range(row, row + 1)
    pool = graph.layers[node.layer]
    assert isinstance(pool, Pool)
    shifted = row + pool.padding[0]
    first = 0 if shifted < pool.kernel[0] else (shifted - pool.kernel[0]) // pool.stride[0] + 1
    return range(first, min(shifted // pool.stride[0] + 1, graph.height(node.made)))


def _last_touch(graph: Graph, node: Node, row: int, scattered: frozenset[int]) -> int:
    """The row of its group after which a row of a node's value is complete."""
    if node.made not in scattered:
        return row
    ((_, _, last),) = graph.reads(node, row)
    return last


def _ordered(graph: Graph, groups: list[list[Node]], scattered: frozenset[int]) -> list[Task]:
    """Every row as late as possible: when the first row that reads it is next."""
    maker = {node.made: (i, node) for i, group in enumerate(groups) for node in group}
    heights = [next(graph.height(n.made) for n in group if n.made not in scattered) for group in groups]
    done, tasks = [0] * len(groups), []

    def missing(group: int) -> int | None:
        """A group whose next row is needed for the next row of this one."""
        for node in groups[group]:
            if node.made in scattered:
                continue
            for value, _, last in graph.reads(node, done[group]):
                other, source = maker[value]
                if other != group and done[other] <= _last_touch(graph, source, last, scattered):
                    return other
        return None

    for goal, height in reversed(list(enumerate(heights))):  # rows that nobody reads come last
        waiting = [goal] * (height - done[goal])
        while waiting:
            if done[waiting[-1]] == heights[waiting[-1]]:
                waiting.pop()
                continue
            source = missing(waiting[-1])
            if source is not None:
                waiting.append(source)
                continue
            group = waiting.pop()
            tasks.append(Task(group, done[group], done[group]))
            done[group] += 1
    return tasks


def _kept(
    graph: Graph, groups: list[list[Node]], tasks: list[Task], scattered: frozenset[int]
) -> tuple[list[int], list[tuple[int, int]]]:
    """How many rows of each value are kept, and when it lives: what the tasks write and read, replayed."""
    births: list[list[int]] = [[] for _ in graph.values]
    ends: list[list[int]] = [[] for _ in graph.values]  # the last task that writes or reads a row
    for time, task in enumerate(tasks):
        for node in groups[task.group]:
            for value, first, last in () if node.made in scattered else graph.reads(node, task.first):
                ends[value][first : last + 1] = [time] * (last + 1 - first)
            for made in _touched(graph, node, task.first, scattered):
                if made == len(births[node.made]):
                    births[node.made].append(time)
                    ends[node.made].append(time)
                ends[node.made][made] = time
    rings, lives = [], []
    for born, end in zip(births, ends, strict=True):
        oldest = ring = 0
        for row, time in enumerate(born):
            while end[oldest] < time:
                oldest += 1
            ring = max(ring, row - oldest + 1)
        rings.append(ring)
        lives.append((min(born, default=0), max(end, default=0)))
    lives[-1] = lives[-1][0], len(tasks)  # the output is read at the end
    return rings, lives
