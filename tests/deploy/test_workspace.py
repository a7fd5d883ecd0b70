"""How much memory the engine takes for the digits on a desktop: each value by hand, and the sums."""

from typing import Literal

import numpy as np
import pytest

import bsnn
from bsnn.deploy.codec import read
from bsnn.deploy.engine.layout import lay_out
from bsnn.deploy.engine.scratch import Target
from bsnn.deploy.schema import Artifact, InputSpec, Lif, Scale, Synapse


@pytest.fixture(scope="module")
def digits() -> Artifact:
    return read(bsnn.zoo.path("digits"))


@pytest.mark.parametrize("word_bits", [32, 64])
@pytest.mark.parametrize("still", [True, False])
def test_bytes_of_a_time_step_by_hand(digits: Artifact, still: bool, word_bits: Literal[32, 64]) -> None:
    def spikes(channels: int, pixels: int, planes: int = 1) -> int:
        """Each pixel has whole words for its channels, per plane of bits; all is rounded up to a cache line."""
        words = -(-channels // word_bits)
        return -(-pixels * planes * words * word_bits // 8 // 64) * 64

    # The first convolution and its norm see a still image once; what is fused with its neurons is never written.
    first = 0 if still else 24 * 64 * 4
    assert [value.step for value in lay_out(digits, still, 4, Target(word_bits)).values] == [
        0,  # the input is the caller's
        first, first, first, spikes(24, 64),
        0, spikes(48, 64), spikes(48, 16, planes=3),
        0, spikes(96, 16), spikes(96, 4, planes=3),
        0, spikes(96, 4), spikes(96, 1, planes=3),
        64,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("still", "time_steps", "chunk", "values", "scratch"),
    [
        (True, 1, 1, 18_496, 20_032),
        (True, 4, 4, 18_688, 53_504),
        (True, 99, 16, 23_552, 187_392),
        (False, 1, 1, 18_496, 20_032),
        (False, 4, 4, 73_984, 53_504),
    ],
)
def test_the_workspace_does_not_grow_unnoticed(
    digits: Artifact, still: bool, time_steps: int, chunk: int, values: int, scratch: int
) -> None:
    made = lay_out(digits, still, time_steps)
    assert (made.chunk, made.values_bytes, made.scratch_bytes) == (chunk, values, scratch)


@pytest.mark.parametrize(("kernel", "rows"), [((3, 1), 3), ((1, 3), 1), ((7, 1), 5)])
def test_the_room_for_a_window_is_as_high_as_it_is(kernel: tuple[int, int], rows: int) -> None:
    """A window on 5 by 4 pixels of 2 channels; of one that is higher than the input, only 5 rows lie in it."""
    one, three, two = np.ones(1, np.int32), np.ones(3, np.int32), np.ones(2, np.int32)
    padding = (kernel[0] // 2, kernel[1] // 2)
    bits, dense = np.zeros((kernel[0] * kernel[1] * 2, 1), np.uint8), np.ones((5 * 4 * 3, 1), np.int16)
    spec = InputSpec("image", (2, 5, 4), 0, 1.0, (0.0,) * 2, (1.0,) * 2, (1,) * 2, (0,) * 2, 0, {})
    layers = (
        Scale("currents", (0,), 0, two, two),
        Lif("lif", (1,), 0, 1),
        Synapse("w", (2,), 3, kernel, (1, 1), padding, (1, 1), 1, "bits", 0, 0, bits, three, three),
        Synapse("out", (3,), 1, (5, 4), (1, 1), (0, 0), (1, 1), 1, "int16", 16, 0, dense, one, one),
    )
    made = lay_out(Artifact("own", ("a",), 2, 16, spec, layers, 1.0), False, 2)
    op = made.ops[made.layers.index(2)]
    assert op.row_capacity == -(-(rows * 4 * 2 + 2 + 64) // 16) * 16
    assert op.list_capacity == 4 * 2 + 2 + 64
