"""What layers of a deployed network make of values: shapes as torch's, ranges by hand, and what does not fit."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bsnn.deploy.schema import Add, AveragePool, BadModel, Concat, Layer, Lif, MaxPool, Scale, Synapse, Value

FIXED, INPUT = Value.fixed((4, 6, 7)), Value.input((4, 6, 7))
SPIKES, COUNTS = Value("spikes", (4, 6, 7), 0, 1), Value.counts((4, 6, 7), 9, "pool")


def synapse(
    out: int = 6, kernel=(3, 2), stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups: int = 1, **changes: Any
) -> Synapse:
    weight = np.ones((kernel[0] * kernel[1] * 4, out // groups), np.int16)
    numbers = np.ones(out, np.int32)
    settings = {"weights": "int16", "input_shift": 0, "shift": 0, "weight": weight, **changes}
    return Synapse(
        "w", (0,), out, kernel, stride, padding, dilation, groups, **settings, multiplier=numbers, offset=numbers
    )


@pytest.mark.parametrize(
    "geometry",
    [
        {},
        {"kernel": (6, 7)},
        {"stride": (2, 3), "padding": (2, 1)},
        {"kernel": (2, 3), "dilation": (3, 2), "padding": (1, 0)},
        {"groups": 2, "stride": (3, 1)},
    ],
)
def test_a_synapse_makes_the_shape_that_torch_makes(geometry: dict[str, Any]) -> None:
    layer = synapse(**geometry)
    x, weight = torch.zeros(1, 4, 6, 7), torch.zeros(6, 4 // layer.groups, *layer.kernel)
    made = F.conv2d(x, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
    value = layer.output([SPIKES])
    assert (value.kind, value.shape) == ("fixed", tuple(made.shape[1:]))
    assert layer.num_weights(SPIKES) == weight.numel()
    assert layer.additions(SPIKES, value) == made.numel() * weight[0].numel()
    assert layer.dense().shape == tuple(weight.shape)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [((2, 2), (2, 2), (0, 0)), ((3, 2), (2, 3), (1, 1)), ((2, 4), (4, 4), (1, 2))]
)
def test_a_pool_makes_the_shape_that_torch_makes(kernel: Any, stride: Any, padding: Any, ceil: bool) -> None:
    made = tuple(F.avg_pool2d(torch.zeros(4, 6, 7), kernel, stride, padding, ceil).shape)
    average = AveragePool("a", (0,), kernel, stride, padding, ceil, True)
    largest = MaxPool("m", (0,), kernel, stride, padding, ceil)
    assert average.output([COUNTS]) == Value("counts", made, 0, 9 * kernel[0] * kernel[1])
    assert average.output([FIXED]) == Value.fixed(made)
    assert largest.output([COUNTS]) == Value("counts", made, 0, 9)
    assert average.additions(COUNTS, largest.output([COUNTS])) == np.prod(made) * kernel[0] * kernel[1]


def test_values_side_by_side_and_added() -> None:
    assert Add("a", (0, 1)).output([SPIKES, COUNTS]) == Value("counts", (4, 6, 7), 0, 10)
    assert Add("a", (0, 1)).output([FIXED, FIXED]) == FIXED
    assert Concat("c", (0, 1)).output([SPIKES, SPIKES]) == Value("spikes", (8, 6, 7), 0, 1)
    assert Concat("c", (0, 1, 2)).output([SPIKES, COUNTS, SPIKES]) == Value("counts", (12, 6, 7), 0, 9)
    assert Lif("l", (0,), 0, 1).output([FIXED]) == SPIKES


def test_the_largest_sum_by_hand() -> None:
    weight = np.zeros((6 * 4, 3), np.int16)
    weight[:2, 1] = 5, -7  # group 0, both in output 1
    weight[2, 0] = 40  # group 1
    layer = synapse(groups=2, weight=weight)
    assert layer.largest_sum(COUNTS) == 40 * 9
    assert layer.largest_sum(INPUT) == 40 * 32768
    weight[4, 1] = -30  # the next tap of output 1
    assert layer.largest_sum(COUNTS) == 42 * 9
    shifted = synapse(input_shift=20)
    assert shifted.largest_input(FIXED) == 1025  # 2³⁰ / 2²⁰, and one for the rounding
    assert synapse(input_shift=2).largest_input(FIXED) == 32768
    bits = synapse(weights="bits", weight=np.zeros((6 * 4, 1), np.uint8))
    assert bits.largest_sum(COUNTS) == 6 * 4 * 9


@pytest.mark.parametrize(
    ("layer", "values", "message"),
    [
        (synapse(kernel=(7, 1)), [SPIKES], r"a kernel that reaches over \[7, 1\] does not fit into \[6, 7\]"),
        (synapse(kernel=(1, 3), dilation=(1, 4)), [SPIKES], r"reaches over \[1, 9\] does not fit"),
        (synapse(kernel=(3, 3), padding=(3, 0)), [SPIKES], "is not below the reach"),
        (synapse(groups=3), [SPIKES], "3 groups do not divide 4 and 6 channels"),
        (synapse(input_shift=1), [SPIKES], "only fixed values are shifted"),
        (synapse(weight=np.ones((24, 5), np.int16)), [SPIKES], r"weights are \(24, 5\); expected \(24, 6\)"),
        (synapse(weight=np.full((24, 6), 2**11, np.int16)), [INPUT], "a sum can reach 1610612736"),
        (MaxPool("m", (0,), (7, 1), (1, 1), (0, 0), False), [SPIKES], r"a window of \(7, 1\) does not fit"),
        (MaxPool("m", (0,), (2, 2), (1, 1), (0, 2), False), [SPIKES], "is not below the reach"),
        (MaxPool("m", (0,), (2, 2), (1, 1), (0, 0), False), [INPUT], "given input"),
        (Lif("l", (0,), 0, 1), [SPIKES], "given spikes"),
        (Add("a", (0, 1)), [SPIKES, FIXED], "both fixed or neither"),
        (Add("a", (0, 1)), [SPIKES, Value("spikes", (4, 7, 6), 0, 1)], "expected the same shape"),
        (Concat("c", (0, 1)), [SPIKES, FIXED], "expected one kind"),
        (Concat("c", (0, 1)), [SPIKES, Value("spikes", (4, 7, 6), 0, 1)], "the same height and width"),
        (Scale("s", (0,), 0, np.ones(3, np.int32), np.ones(3, np.int32)), [SPIKES], "3 multipliers for 4 channels"),
    ],
)
def test_what_does_not_fit_is_refused(layer: Layer, values: list[Value], message: str) -> None:
    with pytest.raises(BadModel, match=message):
        layer.output(values)


def test_padding_ends_where_it_is_far_beyond_the_input() -> None:
    most = 6 + 7
    assert synapse(kernel=(most + 1, 1), padding=(most, 0)).output([SPIKES]).shape == (6, most + 6, 7)
    with pytest.raises(BadModel, match="is far beyond an input"):
        synapse(kernel=(most + 2, 1), padding=(most + 1, 0)).output([SPIKES])
