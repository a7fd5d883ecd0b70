"""The engine from outside: inputs, streaming, the ops by hand; and that torch is not needed."""

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bsnn
from bsnn.deploy.engine import Engine
from bsnn.deploy.engine.plain import Plain
from bsnn.deploy.schema import (
    Add,
    Artifact,
    AveragePool,
    BadModel,
    Concat,
    InputSpec,
    Lif,
    MaxPool,
    Scale,
    Synapse,
)

ONE = 2**16


def made(*layers, shape=(1, 1, 1), classes=1, time_steps=3) -> Artifact:
    channels = shape[0]
    spec = InputSpec(
        "image", shape, 0, 1.0, (0.0,) * channels, (1.0,) * channels, (1,) * channels, (0,) * channels, 0, {}
    )
    return Artifact("own", tuple(map(str, range(classes))), time_steps, 16, spec, layers, 1.0)


def scale(name, value, multiplier=(1,), offset=(0,), shift=0):
    return Scale(name, (value,), shift, np.array(multiplier, np.int32), np.array(offset, np.int32))


def run(network: Artifact, x) -> list:
    return Engine(network, kernel="numpy").outputs(np.array(x, np.int16), normalized=True).tolist()


def test_a_membrane_by_hand() -> None:
    # 3, leak one half: u = 3 → below 5, m = 3; u = round(1.5) + 3 = 5 → spike, m = 0; u = 3. Halves round up.
    network = made(scale("in", 0), Lif("lif", (1,), ONE // 2, 5))
    record: dict[str, np.ndarray] = {}
    total = Engine(network, kernel="numpy").outputs(np.array([[[[3]]]], np.int16), record, normalized=True)
    assert record["lif"].ravel().tolist() == [0, 1, 0]
    assert total.tolist() == [[1]]


def test_membranes_and_currents_saturate() -> None:
    network = made(scale("in", 0, [2**30]), Lif("lif", (1,), ONE, 2**30), time_steps=4)
    record: dict[str, np.ndarray] = {}
    Engine(network, kernel="numpy").outputs(np.array([[[[-9]]], [[[9]]]], np.int16), record, normalized=True)
    assert record["lif"][:, 0].ravel().tolist() == [0, 0, 0, 0]
    assert record["lif"][:, 1].ravel().tolist() == [1, 1, 1, 1]
    assert run(made(scale("in", 0, [2**30]), time_steps=1), [[[[-9]]]]) == [[-(2**30)]]


@pytest.mark.parametrize("kernel", ["numpy", "auto"])
def test_a_sum_of_two_currents_saturates(kernel) -> None:
    network = made(scale("a", 0, [2**30]), scale("b", 0, [2**30]), Add("sum", (1, 2)), time_steps=1)
    outputs = Engine(network, kernel).outputs(np.array([[[[9]]], [[[-9]]]], np.int16), normalized=True)
    assert outputs.tolist() == [[2**30], [-(2**30)]]


@pytest.mark.parametrize(("x", "expected"), [(5, 3), (-5, -2), (6, 3), (7, 4), (-7, -3), (-6, -3)])
def test_a_shift_rounds_halves_up(x: int, expected: int) -> None:
    assert run(made(scale("in", 0, shift=1), time_steps=1), [[[[x]]]]) == [[expected]]


def test_averages_of_fixed_values_round_and_count_places() -> None:
    for ceil, count_padding, padding, expected in (
        (True, True, (0, 0), [[3, 5], [8, 9]]),  # (1 + 2 + 4 + 5) / 4, (3 + 6) / 2, (7 + 8) / 2, 9
        (False, True, (1, 1), [[0, 1], [3, 7]]),  # 1/4, 5/4, 11/4, 28/4
        (False, False, (1, 1), [[1, 3], [6, 7]]),  # 1, 5/2, 11/2, 28/4
    ):
        pool = AveragePool("pool", (1,), (2, 2), (2, 2), padding, ceil, count_padding)
        network = made(scale("in", 0), pool, MaxPool("top", (2,), (2, 2), (2, 2), (0, 0), False), shape=(1, 3, 3))
        plain = Plain(network)
        values = np.arange(1, 10, dtype=np.int32).reshape(1, 3, 3, 1)
        assert plain._apply(1, pool, [values])[0, :, :, 0].tolist() == expected


def test_joining_and_adding() -> None:
    first, second = scale("a", 0, [1, 1]), scale("b", 0, [10, 10])
    network = made(first, second, Add("sum", (1, 2)), Concat("both", (3, 1)), shape=(2, 1, 1), classes=4, time_steps=1)
    assert run(network, [[[[1]], [[2]]]]) == [[11, 22, 1, 2]]


def test_a_synapse_by_hand_with_groups_and_bits() -> None:
    # Channel 0 reaches outputs 0 and 1 by +1 and −1, channel 1 outputs 2 and 3 by −1 and −1.
    weight = np.array([[0b01], [0b00]], np.uint8)
    shape = (1, 1), (1, 1), (0, 0), (1, 1)
    numbers = np.array([1, 2, 3, 4], np.int32), np.array([0, 0, 0, 7], np.int32)
    layer = Synapse("w", (0,), 4, *shape, 2, "bits", 0, 0, weight, *numbers)
    network = made(layer, shape=(2, 1, 1), classes=4, time_steps=1)
    assert run(network, [[[[5]], [[6]]]]) == [[5, -10, -18, -17]]


def everything(value: int, shape: torch.Size) -> Synapse:
    """Every number of a value `[B, C, H, W]` as an output of its own, in the order of pixels, then of channels."""
    _, _, *sides = shape
    number = shape[1:].numel()
    numbers = np.eye(number, dtype=np.int16), np.ones(number, np.int32), np.zeros(number, np.int32)
    return Synapse("all", (value,), number, tuple(sides), (1, 1), (0, 0), (1, 1), 1, "int16", 0, 0, *numbers)


@pytest.mark.parametrize("kernel", ["numpy", "auto"])
@pytest.mark.parametrize(
    ("taps", "stride", "padding", "dilation", "groups", "outs"),
    [
        ((3, 2), (1, 2), (2, 0), (1, 1), 1, 5),
        ((2, 3), (3, 1), (0, 2), (1, 2), 2, 6),
        ((1, 4), (2, 3), (0, 3), (2, 1), 1, 9),
        ((3, 3), (2, 1), (2, 1), (3, 2), 4, 12),
    ],
)
def test_convolutions_of_all_geometries(kernel, taps, stride, padding, dilation, groups, outs) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-9, 10, (outs, 4 // groups, *taps), generator=generator)
    x = torch.randint(-50, 50, (2, 4, 9, 11), generator=generator)
    sums = torch.nn.functional.conv2d(x.double(), weight.double(), None, stride, padding, dilation, groups)
    # Rows by tap, then by input channel over all groups; columns are the outputs of a group.
    grouped = weight.view(groups, outs // groups, 4 // groups, *taps)
    rows = grouped.permute(3, 4, 0, 2, 1).reshape(-1, outs // groups).numpy().astype(np.int16)
    numbers = np.ones(outs, np.int32), np.zeros(outs, np.int32)
    layer = Synapse("w", (0,), outs, taps, stride, padding, dilation, groups, "int16", 0, 0, rows, *numbers)
    last = everything(1, sums.shape)
    network = made(layer, last, shape=(4, 9, 11), classes=last.out, time_steps=1)
    outputs = Engine(network, kernel).outputs(x.numpy().astype(np.int16), normalized=True)
    assert outputs.reshape(2, *sums.shape[2:], outs).tolist() == sums.permute(0, 2, 3, 1).long().tolist()


@pytest.mark.parametrize("kernel", ["numpy", "auto"])
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(
    ("window", "stride", "padding"), [((3, 2), (1, 2), (1, 0)), ((2, 4), (3, 1), (0, 2)), ((2, 3), (2, 3), (1, 1))]
)
def test_pools_of_all_geometries(kernel, ceil: bool, window, stride, padding) -> None:
    x = torch.randint(-50, 50, (2, 3, 7, 10), generator=torch.Generator().manual_seed(0))
    largest = torch.nn.functional.max_pool2d(x.double(), window, stride, padding, ceil_mode=ceil)
    fired = (x > 0).double()
    spikes = torch.nn.functional.avg_pool2d(fired, window, stride, padding, ceil, divisor_override=1)
    currents = scale("in", 0, (1, 1, 1), (0, 0, 0))
    for layers, expected in (
        ([MaxPool("pool", (1,), window, stride, padding, ceil)], largest),
        ([Lif("lif", (1,), 0, 1), AveragePool("pool", (2,), window, stride, padding, ceil, False)], spikes),
    ):
        last = everything(1 + len(layers), expected.shape)
        network = made(currents, *layers, last, shape=(3, 7, 10), classes=last.out, time_steps=1)
        outputs = Engine(network, kernel).outputs(x.numpy().astype(np.int16), normalized=True)
        assert outputs.reshape(2, *expected.shape[2:], 3).tolist() == expected.permute(0, 2, 3, 1).long().tolist()


def networks() -> list:
    nn = torch.nn
    mixed = bsnn.Sequential(
        bsnn.BinaryConv2d(2, 8, 3, padding=1),
        bsnn.BatchNorm2d(8),
        nn.MaxPool2d(3, 2, 1),
        bsnn.LIF(leak=0.8, threshold=0.6),
        bsnn.Concat(
            bsnn.Sequential(
                bsnn.BinaryConv2d(8, 6, (3, 2), 1, (1, 0), 1, 2), bsnn.BatchNorm2d(6), nn.AvgPool2d((1, 1)), bsnn.LIF()
            ),
            bsnn.Sequential(bsnn.BinaryConv2d(8, 4, (1, 2)), bsnn.LIF()),
        ),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.Flatten(),
        bsnn.BinaryLinear(10 * 3 * 2, 24),
        bsnn.BatchNorm1d(24),
        bsnn.LIF(),
        nn.Linear(24, 5),
    )
    return [
        (bsnn.models.vgg((24, "pool", 70), in_channels=2), (2, 10, 10)),
        (bsnn.models.resnet18(num_classes=7, in_channels=2, width=0.125, stem=32), (2, 12, 12)),
        (bsnn.models.resnet18(num_classes=7, in_channels=2, width=0.0625), (2, 37, 37)),
        (mixed, (2, 10, 10)),
        (bsnn.Sequential(nn.Linear(9, 20), bsnn.LIF(), bsnn.BinaryLinear(20, 12), bsnn.LIF(), nn.Linear(12, 3)), (9,)),
        (bsnn.models.vgg((8, 16, "pool", 16), in_channels=2, weights="real"), (2, 8, 8)),
        (bsnn.models.vgg((8, 16, "pool", 16), in_channels=2, weights="latent"), (2, 8, 8)),
    ]


@pytest.mark.filterwarnings("ignore::bsnn.BackendWarning")  # of the hooks below
@pytest.mark.parametrize("number", range(7))
def test_numpy_and_torch_give_the_same_integers_and_are_near_the_trained_network(number: int, tmp_path: Path) -> None:
    torch.manual_seed(number)
    net, shape = networks()[number]
    x = torch.randn(6, *shape)
    with bsnn.estimating_statistics(net):
        bsnn.predict(net, x, 3)
    net.eval()
    exported = bsnn.export(net, tmp_path / "model.bsnn", input_shape=shape, time_steps=3)
    engine = bsnn.load(exported.path, kernel="numpy")
    record: dict[str, np.ndarray] = {}
    outputs = engine.outputs(x.numpy(), record)

    module, state, ours, total = exported.module, None, None, 0
    seen: list[np.ndarray] = []
    for neurons in module.children():
        neurons.register_forward_hook(lambda _module, _inputs, output: seen.append(output[0].spikes.numpy()))
    for t in range(3):
        seen.clear()
        frame, state = module(module.integers(x), state)
        step, ours = engine.step(x.numpy(), ours)
        total = total + frame
        assert np.array_equal(np.asarray(frame), step)
        for (name, spikes), theirs, neurons, membrane in zip(record.items(), seen, state, ours.membranes, strict=True):
            assert np.array_equal(theirs, spikes[t]), name
            assert np.array_equal(neurons.membrane.numpy(), np.moveaxis(membrane, -1, 1)), name
    assert np.array_equal(np.asarray(total), outputs)
    if number == 4:  # shallow enough that single spikes do not spread
        real = bsnn.predict(net, x, 3).numpy()
        np.testing.assert_allclose(outputs * engine.artifact.output_scale, real, atol=0.02 * np.abs(real).max())

    first = next(module for module in net.modules() if isinstance(module, bsnn.LIF))
    spikes: list[torch.Tensor] = []
    with first.register_forward_hook(lambda _module, _inputs, output: spikes.append(output[0].spikes)):
        bsnn.predict(net, x, 3)
    ours = next(iter(record.values()))
    assert (torch.stack(spikes).numpy().reshape(ours.shape) != ours).mean() < 2e-3, "rounding changes few spikes"


@pytest.mark.parametrize("kernel", ["numpy", "auto"])
def test_a_synapse_cuts_what_it_takes_to_16_bits(kernel) -> None:
    shape = (1, 1), (1, 1), (0, 0), (1, 1)
    one = np.ones(1, np.int32)
    layer = Synapse("w", (1,), 1, *shape, 1, "int16", 0, 0, np.full((1, 1), 3, np.int16), one, 0 * one)
    network = made(scale("in", 0, [1000]), layer, time_steps=1)
    assert Engine(network, kernel).outputs(np.full((1, 1, 1, 1), 100, np.int16), normalized=True).tolist() == [
        [3 * 32767]
    ]


def test_a_network_without_neurons_runs_everywhere(tmp_path: Path) -> None:
    net = bsnn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    exported = bsnn.export(net, tmp_path / "m.bsnn", input_shape=(1, 8, 8))
    x = np.random.default_rng(0).normal(size=(2, 1, 8, 8)).astype(np.float32)
    results = [bsnn.load(exported.path, kernel).step(x)[0].tolist() for kernel in ("numpy", "auto")]
    assert results[0] == results[1]


def predict_in_child(engine: Engine, images: np.ndarray, queue) -> None:
    queue.put(engine.predict(images).tolist())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_predicts() -> None:
    engine, images = bsnn.load("digits", threads=2), bsnn.data.digits("test").samples[:4]
    expected = engine.predict(images).tolist()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=predict_in_child, args=(engine, images, queue), daemon=True)
    child.start()
    assert queue.get(timeout=60) == expected
    child.join(timeout=60)


def test_streaming_is_the_same_as_all_at_once() -> None:
    engine = bsnn.load("digits")
    images = bsnn.data.digits("test").samples[:5]
    state, total = None, 0
    for _ in range(engine.time_steps):
        outputs, state = engine.step(images, state)
        total = total + outputs
    assert np.array_equal(total, engine.outputs(images))
    frames = np.repeat(images[None], engine.time_steps, axis=0)
    assert np.array_equal(engine.outputs(frames), engine.outputs(images))


def test_a_state_goes_in_and_stays_as_it_was() -> None:
    engine = bsnn.load("digits")
    images = bsnn.data.digits("test").samples[:2]
    _, state = engine.step(images)
    before = [membrane.copy() for membrane in state.membranes]
    engine.step(images, state)
    assert all(np.array_equal(a, b) for a, b in zip(before, state.membranes, strict=True))
    with pytest.raises(bsnn.UserError, match="state for other inputs"):
        engine.step(images[:1], state)


def test_loading_and_predicting_never_imports_torch() -> None:
    code = (
        "import sys, bsnn, numpy; engine = bsnn.load('digits'); "
        "engine.predict(numpy.zeros((1, 1, 8, 8), numpy.uint8)); "
        "import bsnn.cli, bsnn.deploy.files, bsnn.deploy.inspection; bsnn.deploy.inspection.inspect(engine.artifact); "
        "heavy = {'torch', 'scipy', 'PIL', 'sklearn', 'matplotlib'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(bsnn.UserError, match=r"nowhere\.bsnn cannot be read"):
        bsnn.load("nowhere.bsnn")
    with pytest.raises(BadModel, match="not a model file"):
        bsnn.load(__file__)


@pytest.mark.parametrize("threads", [0, 1.5, "2", 257])
def test_other_numbers_of_threads_are_refused(threads: Any) -> None:
    with pytest.raises(bsnn.UserError, match=f"threads: received {threads!r}; expected a whole number from 1 to 256"):
        bsnn.load("digits", kernel="baseline", threads=threads)


def test_outputs_that_are_not_numbers_are_not_judged() -> None:
    engine = bsnn.load("speech")
    with pytest.raises(bsnn.UserError, match="rejects: received NaN"):
        engine.rejects(np.full((3, len(engine.classes)), np.nan))
