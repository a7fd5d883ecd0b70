"""Numbers of the conversion that decide about precision: pools at the border, ranges of currents, the table's ratio."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import bsnn
from bsnn.deploy._builder import Pending, Signal
from bsnn.deploy.codec import read
from bsnn.deploy.engine.weights import zeros_aligned
from bsnn.deploy.formats._c_text import string
from bsnn.deploy.inspection import ASSUMPTIONS, ENERGY_SOURCE, inspect, inspect_text
from bsnn.deploy.quantize import input_spec, multipliers
from bsnn.deploy.schema import Artifact, AveragePool, BadModel, InputSpec, Lif, Scale, Synapse, Value


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("shape", "pool"), [((8, 8), (3, 2, 1)), ((8, 8), (2, 2, 0)), ((8, 7), (2, 2, 0))])
def test_pooled_spikes_are_divided_as_torch_divides_them(
    shape: tuple[int, int], pool: tuple[int, int, int], ceil: bool, counted: bool, tmp_path: Path
) -> None:
    """Where padding is not counted, or a window reaches beyond the border, fewer places count."""
    pooling = nn.AvgPool2d(*pool, ceil_mode=ceil, count_include_pad=counted)
    features = 2 * pooling(torch.zeros(1, *shape)).numel()
    net = bsnn.Sequential(nn.Conv2d(1, 2, 1), bsnn.LIF(), pooling, nn.Flatten(), nn.Linear(features, 3)).eval()
    nn.init.constant_(net[0].weight, 3.0)  # currents far from the threshold, so that every spike is the same
    nn.init.zeros_(net[0].bias)
    x = torch.rand(4, 1, *shape).round()
    exported = bsnn.export(net, tmp_path / "m.bsnn", input_shape=(1, *shape), time_steps=2)
    outputs = bsnn.load(exported.path).outputs(x.numpy()) * read(exported.path).output_scale
    np.testing.assert_allclose(outputs, bsnn.predict(net, x, 2).numpy(), atol=2e-3)


def test_a_current_without_a_norm_reaches_at_most_its_weights_times_its_input() -> None:
    source = Signal(0, "spikes", (2, 1, 1), 0.5, 4)
    weight = np.array([[1.0, -3.0], [2.0, 0.5]]).reshape(2, 2, 1, 1)
    pending = Pending("w", source, weight, False, {}, np.array([1.0, -2.0]), np.array([0.25, -1.0]))
    assert source.reach == 2.0
    assert pending.strays() == (11.0, 0.0)  # 1·4·2 + 0.25, and 2·2.5·2 + 1
    assert Pending.unscaled("x", source).strays() == (2.0, 0.0)


def test_a_current_behind_a_norm_is_expected_within_eight_deviations() -> None:
    current = Signal(1, "fixed", (1, 1, 1), 2.0**-20, 2**30, mean=0.5, variance=4.0)
    assert current.reach == 16.5
    assert replace(current, variance=1e9).reach == 1024.0  # more does not fit
    assert Signal(1, "fixed", (1, 1, 1), 2.0**-20, 2**30, mean=3.0).reach == 3.0
    assert Signal(1, "fixed", (1, 1, 1), 2.0**-20, 2**30).reach == 0.0
    spread = Pending("w", current, None, False, {}, np.ones(1), np.zeros(1), spread=(0.25, 2.0))
    assert spread.strays() == (0.25, 2.0)


@pytest.mark.parametrize("shape", [(2**16 + 1, 1, 1), (1, 2**16 + 1, 1), (1, 1, 2**16 + 1)])
def test_a_value_too_long_in_one_direction_is_refused(shape: tuple[int, int, int]) -> None:
    spec = InputSpec("image", shape, 0, 1.0, (0.0,), (1.0,), (1,), (0,), 0, {})
    numbers = np.ones(shape[0], np.int32)
    with pytest.raises(BadModel, match="at most 65536 each way"):
        Artifact("long", ("a",), 1, 16, spec, (Scale("s", (0,), 0, numbers, numbers),), 1.0)


@pytest.mark.parametrize("size", [1, 63, 64, 1000])
def test_what_vectors_read_begins_with_a_cache_line(size: int) -> None:
    made = zeros_aligned(size)
    assert (len(made), made.ctypes.data % 64, int(made.sum())) == (size, 0, 0)


@pytest.mark.parametrize(
    ("gain", "shift"), [([0.0], 0), ([1.0, -0.5], 30), ([1.5], 29), ([0.01], 36), ([1e-9], 40), ([2.0**31], 0)]
)
def test_a_multiplier_has_as_many_bits_as_fit(gain: list[float], shift: int) -> None:
    numbers, found = multipliers(np.array(gain))
    assert found == shift
    expected = [min(round(value * 2.0**shift), 2**31 - 1) for value in gain]
    assert numbers.tolist() == expected


def test_a_norm_behind_a_flatten_is_refused(tmp_path: Path) -> None:
    net = bsnn.Sequential(nn.Conv2d(1, 2, 1), bsnn.LIF(), nn.Flatten(), bsnn.BatchNorm1d(32), nn.Linear(32, 2))
    with pytest.raises(bsnn.UserError, match=r"layer 3 \(BatchNorm1d behind a Flatten; put it before\)"):
        bsnn.export(net, tmp_path / "m.bsnn", input_shape=(1, 4, 4))


def test_only_real_inputs_keep_what_rounding_takes_from_the_weights(tmp_path: Path) -> None:
    """Sums of real inputs leave the weights fewer bits; sums of spikes leave them all."""
    net = bsnn.Sequential(nn.Conv2d(1, 4, 3), bsnn.LIF(), nn.Flatten(), nn.Linear(144, 2))
    made = read(bsnn.export(net, tmp_path / "m.bsnn", input_shape=(1, 8, 8)).path)
    assert [layer.name for layer in made.layers] == ["0", "0.rest", "0.sum", "1", "3"]
    assert made.time_steps == 4  # unless something else is said


def test_features_that_do_not_fit_the_input_are_refused(tmp_path: Path) -> None:
    net = bsnn.Sequential(nn.Flatten(), nn.Linear(9, 2))
    with pytest.raises(bsnn.UserError, match=r"layer 1 takes 9 features and is given 16 \(1, 4, 4\)"):
        bsnn.export(net, tmp_path / "m.bsnn", input_shape=(1, 4, 4))


def test_branches_must_all_be_flattened_or_none(tmp_path: Path) -> None:
    branches = bsnn.Concat(nn.Flatten(), nn.AvgPool2d(2))
    net = bsnn.Sequential(nn.Conv2d(1, 2, 1), bsnn.LIF(), branches, nn.Linear(40, 2))
    with pytest.raises(bsnn.UserError, match="Concat of branches that are flattened and others that are not"):
        bsnn.export(net, tmp_path / "m.bsnn", input_shape=(1, 4, 4))


def test_the_range_of_each_kind_of_value() -> None:
    largest = 2**30
    for value, expected in (
        (Value.input((1, 2, 3)), (-32768, 32767, 32768)),
        (Value.fixed((1, 2, 3)), (-largest, largest, largest)),
        (Value.counts((1, 2, 3), 9, "pool"), (0, 9, 9)),
    ):
        assert (value.low, value.high, value.magnitude) == expected
        assert (value.shape, value.size) == ((1, 2, 3), 6)


def test_a_comparison_leaves_the_network_as_it_was(tmp_path: Path) -> None:
    net = bsnn.models.vgg((4,), in_channels=1)
    bsnn.export(net, tmp_path / "m.bsnn", data=bsnn.data.digits("test"), time_steps=1, samples=1)
    assert net.training
    assert not any(module._forward_hooks for module in net.modules())


@pytest.mark.parametrize(("kind", "shown"), [("image", 1), ("event", 3)])
def test_operations_and_energy_by_hand(kind: str, shown: int) -> None:
    """Three time steps; a still image enters the first synapse once."""
    spec = InputSpec(kind, (1, 2, 2), 0, 1.0, (0.0,), (1.0,), (1,), (0,), 0, {})
    geometry = (1, 1), (1, 1), (0, 0), (1, 1), 1
    two, three = np.ones(2, np.int32), np.ones(3, np.int32)
    layers = (
        Synapse("first", (0,), 2, *geometry, "int16", 0, 0, np.ones((1, 2), np.int16), two, two),
        Lif("lif", (1,), 0, 1, 0.5),
        AveragePool("pool", (2,), (2, 2), (2, 2), (0, 0), False, True),
        Synapse("second", (3,), 3, *geometry, "bits", 0, 0, np.zeros((2, 1), np.uint8), three, three),
    )
    result = inspect(Artifact("own", ("a", "b", "c"), 3, 16, spec, layers, 1.0))
    first, neurons, _, second = result["layers"]
    keys = ("weights", "additions", "multiplications", "int8_multiplications")
    # 2 channels of 4 pixels from 1: 8 products and sums, and 8 multiplications for what was BatchNorm.
    assert [first[key] for key in keys] == [2, 8 * shown, 16 * shown, 8]
    assert neurons["firing_rate"] == 0.5
    # 8 neurons at 3 time steps take in a current and compare with the threshold; a leak of 0 multiplies nothing.
    assert [neurons[key] for key in keys] == [0, 2 * 8 * 3, 0, 0]
    # 3 outputs from 2 counts, which are 4 · 0.5 = 2 on average, at 3 time steps.
    assert [second[key] for key in keys] == [6, 3 * 2 * 2 * 3, 3 * 3, 3 * 2]
    additions, products = 8 * shown + 48 + 36, 16 * shown + 9
    assert [result[key] for key in keys] == [8, additions, products, 14]
    assert result["energy_joules"] == pytest.approx(additions * 0.1e-12 + products * 3.1e-12)
    # 14 products and sums, and 8 + 3 outputs to scale, once.
    assert result["int8_energy_joules"] == pytest.approx(14 * 0.3e-12 + 11 * 3.1e-12)
    text = inspect_text(result)
    assert f"({result['energy_joules'] / result['int8_energy_joules']:.2f} times)" in text
    assert all(line in text for line in (ENERGY_SOURCE, *ASSUMPTIONS))


def test_a_leak_that_is_no_power_of_two_is_multiplied() -> None:
    spec = InputSpec("image", (2, 1, 1), 0, 1.0, (0.0, 0.0), (1.0, 1.0), (1, 1), (0, 0), 0, {})
    one = np.ones(2, np.int32)
    # Two more for the layer before, once, because an image does not change.
    for leak, products in ((0, 2), (2**15, 2), (2**15 + 1, 2 + 2 * 4), (2**16, 2)):
        layers = (Scale("scale", (0,), 0, one, one), Lif("lif", (1,), leak, 1, 0.5))
        result = inspect(Artifact("own", ("a", "b"), 4, 16, spec, layers, 1.0))
        assert result["multiplications"] == products
        assert [line["additions"] for line in result["layers"]] == [2, 2 * 2 * 4]


def test_weights_that_are_rounded_in_two_parts_are_one_layer() -> None:
    """What rounding took of the weights is computed, and takes flash; but it is no layer, and no further weights."""
    digits = read(bsnn.zoo.path("digits"))
    names = [layer.name for layer in digits.layers]
    assert names[:3] == ["conv1", "conv1.rest", "conv1.sum"]
    assert digits.groups[:2] == [(0, 1, 2), (3,)]
    result = inspect(digits)
    first = result["layers"][0]
    weights = first["weights"]
    assert [line["name"] for line in result["layers"]] == [names[0], *names[3:]]
    assert first["int8_multiplications"] == weights * 64
    # Both parts, and their sum; two products for what was BatchNorm.
    assert (first["additions"], first["multiplications"]) == (2 * weights * 64 + 64 * 24, 2 * (weights + 24) * 64)
    assert sum(line["bytes"] for line in result["layers"]) == digits.weight_bytes
    assert result["int8_multiplications"] == sum(
        layer.additions(digits.values[layer.inputs[0]], digits.values[i + 1])
        for i, layer in enumerate(digits.layers)
        if isinstance(layer, Synapse) and layer.name != "conv1.rest"
    )


@pytest.mark.parametrize(
    ("kind", "scale", "bounded", "bits"),
    [
        ("image", 255.0, True, 12),  # largest magnitude (1 − 0.1) / 0.125 = 7.2: 32767 / 7.2 is between 2¹² and 2¹³
        ("image", 16.0, True, 12),
        ("image", 255.0, False, 11),  # 8 at most is assumed
        ("event", 51.0, True, 9),  # bytes up to 255 / 51 = 5: (5 − 0.1) / 0.125 = 39.2
    ],
)
def test_an_input_becomes_the_nearest_integers(kind: str, scale: float, bounded: bool, bits: int) -> None:
    mean, std = (0.4, 0.1), (0.25, 0.125)
    spec = input_spec(bsnn.data.DataSpec("own", kind, ("a",), (2, 8, 16), mean, std, scale), bounded=bounded)
    assert (spec.fraction_bits, spec.shape) == (bits, (2, 8, 16))
    highest = 256 if scale != 16 else 17
    raw = (np.arange(256) % highest).astype(np.uint8).reshape(2, 8, 16)
    expected = (raw / scale - np.reshape(mean, (2, 1, 1))) / np.reshape(std, (2, 1, 1)) * 2**bits
    # An input without known bounds may be cut.
    assert np.abs(spec.from_bytes(raw) - np.clip(expected, -32768, 32767)).max() <= 0.51
    reals = (expected / 2**bits).astype(np.float32)
    assert np.abs(spec.from_reals(reals) - np.clip(expected, -32768, 32767)).max() <= 0.51


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a b~", '"a b~"'), ("\x1f\x7f", '"\\037\\177"'), ('"\\?', '"\\042\\134\\077"'), ("é", '"\\303\\251"')],
)
def test_a_name_in_c_is_of_plain_characters(text: str, expected: str) -> None:
    assert string(text) == expected
