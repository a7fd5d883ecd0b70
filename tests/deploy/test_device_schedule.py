"""The order of rows on a device: no row is read before it is complete, or after its place was taken by another."""

import numpy as np
import pytest
from random_networks import NETWORKS, Builder

import bsnn
from bsnn.deploy.codec import read
from bsnn.deploy.engine.layout import Layout, lay_out
from bsnn.deploy.engine.schedule import Graph, Schedule, schedule
from bsnn.deploy.engine.scratch import Target
from bsnn.deploy.schema import Artifact, Pool

DEVICE = Target(32, small=True)


def over_rows(pool: Pool, number: int, row: int) -> list[int]:
    """The windows of a pool that a row lies in, one by one."""
    tops = [y * pool.stride[0] - pool.padding[0] for y in range(number)]
    return [y for y, top in enumerate(tops) if top <= row < top + pool.kernel[0]]


class Memory:
    """The words of the workspace, each with the value and the row that was written there last."""

    def __init__(self, layout: Layout, graph: Graph) -> None:
        self.layout, self.graph = layout, graph
        self.words = np.full(layout.values_bytes // 4, -1)

    def rows(self, value: int, row: int):
        """Where a row lies, at all its time steps."""
        table = self.layout.values[value]
        for step in range(1 if self.graph.unchanging[value] else self.layout.chunk):
            begin = table.offset + step * table.step + row % table.ring * table.row
            yield slice(begin // 4, (begin + table.row) // 4)

    def write(self, value: int, row: int) -> None:
        for words in self.rows(value, row):
            self.words[words] = value * 65536 + row

    def check(self, value: int, row: int) -> None:
        for words in self.rows(value, row):
            assert (self.words[words] == value * 65536 + row).all(), (value, row)


def replay(artifact: Artifact, graph: Graph, plan: Schedule, layout: Layout) -> None:
    """Runs the tasks on `Memory`; windows are taken from the layers, not from the schedule."""
    memory, begun, complete = Memory(layout, graph), set(), set()
    for task in plan.tasks:
        assert task.first == task.last
        for node in plan.groups[task.group]:
            layer, height = artifact.layers[node.layer], artifact.values[node.made].shape[1]
            if node.made in plan.scattered:
                assert isinstance(layer, Pool)
                for row in over_rows(layer, height, task.first):
                    if (node.made, row) in begun:
                        memory.check(node.made, row)
                    begun.add((node.made, row))
                    memory.write(node.made, row)
                    bottom = row * layer.stride[0] - layer.padding[0] + layer.kernel[0] - 1
                    if task.first == min(bottom, artifact.values[layer.inputs[0]].shape[1] - 1):
                        complete.add((node.made, row))
                continue
            for value, first, last in graph.reads(node, task.first):
                for row in range(first, last + 1):
                    assert (value, row) in complete
                    if value not in plan.local:
                        memory.check(value, row)
            assert (node.made, task.first) not in complete
            complete.add((node.made, task.first))
            if node.made not in plan.local:
                memory.write(node.made, task.first)
    memory.check(len(artifact.values) - 1, 0)
    made = {node.made for group in plan.groups for node in group}
    assert complete == {(value, row) for value in made for row in range(artifact.values[value].shape[1])}


def same_size(seed: int) -> Artifact:
    """A pool that keeps the size, added to what shares its pixels: its windows are not complete there yet."""
    net = Builder(seed, (2, 9, 7))
    spikes = net.lif(net.synapse(0, 8, weights="int16", shift=14, multiplier=2**9))
    twice = net.synapse(spikes, 8)
    first, second = net.lif(twice, leak=50000), net.lif(twice)
    return net.head(net.add(net.max_pool(first, 3, 1, 1), second))


CASES = {**NETWORKS, "a pool of the same size": same_size(3), "digits": read(bsnn.zoo.path("digits"))}


@pytest.mark.parametrize("still", [True, False], ids=["still", "moving"])
@pytest.mark.parametrize("name", CASES)
def test_every_row_is_there_when_it_is_read(name: str, still: bool) -> None:
    artifact, graph = CASES[name], Graph(CASES[name], still)
    replay(artifact, graph, schedule(graph, by_rows=True), lay_out(artifact, still, 2, DEVICE, forgetful=True))


def test_the_digits_by_hand() -> None:
    """Three rows of a value that a 3 × 3 window reads; spikes that are only pooled are never stored."""
    digits = read(bsnn.zoo.path("digits"))
    layout = lay_out(digits, True, 4, DEVICE, forgetful=True)
    kept = {digits.layers[i].name: size for i, size in enumerate(layout.value_bytes[1:]) if size}
    assert kept == {
        "lif1": 3 * 8 * 4 * 4,  # rows, pixels, bytes of 24 bits in a word, time steps
        "pool2": 3 * 4 * (3 * 2 * 4) * 4,  # three planes of 48 bits
        "pool3": 2 * 2 * (3 * 3 * 4) * 4,  # it has two rows only
        "pool": 1 * 1 * (3 * 3 * 4) * 4,
        "classifier": 10 * 4 * 4,
    }
    # Rows of lif1 are dead when the last pool begins to live.
    assert layout.values_bytes == sum(kept.values()) - kept["pool"] - kept["classifier"]
    # Of 96 neurons: spikes of a pixel, membranes, and sums; then rows of weights in 32 bits, each plane's up to 3 more.
    # A count of up to four has at most two bits set. conv4 sees 2 × 2 pixels, so no more taps lie inside.
    pixel = 3 * 4 + 4 * 96 + 4 * 96
    scratch = {digits.layers[layer].name: size for layer, size in zip(layout.layers, layout.op_scratch, strict=True)}
    assert scratch["conv3"] == pixel + 4 * (9 * 48 * 2 + 3 * 3)
    assert scratch["conv4"] == pixel + 4 * (4 * 96 * 2 + 3 * 3)
    assert layout.scratch_bytes == scratch["conv3"]


def test_a_shortcut_keeps_the_rows_that_it_waits_for() -> None:
    """input → stream → 3 × 3 → 3 × 3 → add: the stream is two rows ahead of the sum."""
    net = Builder(1, (1, 12, 4))
    stream = net.synapse(0, 4, weights="int16", shift=14, multiplier=2**9)
    body = net.synapse(net.lif(net.synapse(net.lif(stream), 4)), 4)
    artifact = net.head(net.lif(net.add(body, stream)))
    plan = schedule(Graph(artifact, still=True), by_rows=True)
    assert plan.rings[stream] == 3
    assert [plan.rings[value] for value in (2, 4)] == [3, 3]  # spikes that 3 × 3 windows read
    assert body in plan.local
