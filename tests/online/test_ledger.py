import functools
import gc
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bsnn
from bsnn import cli
from bsnn.bench import training
from bsnn.kernels.memory import peak_bytes
from bsnn.online import ledger
from bsnn.optim import BSO, TBSO


@pytest.mark.parametrize(
    ("make", "rule", "neuron"),
    [
        *itertools.product([bsnn.models.vgg11, bsnn.models.resnet18], ["ottt", "sltt", "ndot"], ["lif"]),
        *itertools.product([bsnn.models.vgg11], ["ottt", "sltt"], ["if", "plif", "hard-lif", "alif"]),
    ],
)
def test_the_prediction_is_near_what_tensors_take(
    make, rule: str, neuron: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, kind = 8, bsnn.neuron_named(neuron)
    monkeypatch.setattr(ledger, "_REORDERS", 1)  # one is a tensor, the others lie inside a kernel

    def train() -> None:
        net = make(width=0.25, neuron=kind(gradient=rule))
        binary, real = bsnn.split_parameters(net)
        x, y = torch.randn(batch, 3, 32, 32), torch.zeros(batch, dtype=torch.long)
        loss = functools.partial(bsnn.step_loss, labels=y, time_steps=2)
        optimizers = [TBSO(binary, time_steps=2), torch.optim.SGD(real, lr=0.1)]
        bsnn.online_update(net, itertools.repeat(x, 2), loss, optimizers)

    net = make(width=0.25, neuron=kind(gradient=rule))
    predicted = bsnn.predict_memory(net, torch.zeros(1, 3, 32, 32), batch)
    assert predicted["total"] == sum(value for kind, value in predicted.items() if kind != "total")
    assert predicted["total"] == pytest.approx(peak_bytes(train), rel=0.15)
    per_neuron = {"alif": 2}.get(neuron, 1), 0 if rule == "sltt" else {"plif": 3}.get(neuron, 1)
    assert predicted["membrane"] * per_neuron[1] == predicted["trace"] * per_neuron[0]
    eight = bsnn.predict_memory(net, torch.zeros(1, 3, 32, 32), batch, momentum_bits=8)
    assert eight["momentum"] / predicted["momentum"] == pytest.approx(260 / 1024, rel=0.01)


def test_memory_constant_passes_online_networks_and_catches_a_leak() -> None:
    net = bsnn.models.vgg((8, "pool", 8), in_channels=1)
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    bsnn.assert_memory_constant(net, time_steps=[1, 8, 64])
    assert all(torch.equal(value, buffers[name]) for name, value in net.named_buffers())
    with pytest.raises(bsnn.UserError, match="and no inputs; expected a batch"):
        bsnn.assert_memory_constant(bsnn.Sequential(bsnn.LIF()))
    leaking = bsnn.models.vgg((8, "pool", 8), in_channels=1, neuron=bsnn.LIF())
    seen = []
    leaking.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with pytest.raises(AssertionError, match="memory grows with time: T = 1: "):
        bsnn.assert_memory_constant(leaking, time_steps=[1, 8])


@pytest.mark.parametrize("make", [BSO, functools.partial(TBSO, time_steps=5)])
def test_a_stream_trains_where_it_has_labels_and_cuts_where_it_says(make) -> None:
    net = bsnn.models.vgg((6, 6), in_channels=1, num_classes=3)
    binary, real = bsnn.split_parameters(net)
    optimizers = [make(binary), torch.optim.SGD(real, lr=0.1)]
    noise = torch.Generator().manual_seed(0)
    moments = [
        bsnn.Moment(torch.randn(2, 1, 8, 8, generator=noise), torch.tensor([0, 1]) if k % 4 == 1 else None, k == 6)
        for k in range(12)
    ]
    bits = binary[0].bits.clone()
    losses, states = [], []
    for step in bsnn.stream_update(net, moments, torch.nn.functional.cross_entropy, optimizers):
        losses.append(bool(step.loss.isfinite()))
        states.append(bsnn.map_state(torch.Tensor.clone, step.state))
    assert losses == [k % 4 == 1 for k in range(12)]
    assert not torch.equal(binary[0].bits, bits)
    assert states[6][0].trace.max() <= 1  # nothing of before the cut
    assert states[5][0].trace.max() > 1


@pytest.fixture
def only_what_comes() -> Iterator[None]:
    """Hides what other tests have left, which may be freed at any time, from `live_bytes`."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def live_bytes() -> int:
    gc.collect()
    kinds = torch.Tensor, nn.Parameter, bsnn.BinaryParameter  # not the fake ones that a compiler may have left
    tensors = [o for o in gc.get_objects() if type(o) in kinds]
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.usefixtures("only_what_comes")
def test_memory_stays_flat_over_a_stream_of_ten_thousand_steps() -> None:
    net = bsnn.Sequential(
        nn.Linear(4, 8), bsnn.LIF(), bsnn.BinaryLinear(8, 8), bsnn.BatchNorm1d(8), bsnn.LIF(), nn.Linear(8, 2)
    )
    binary, real = bsnn.split_parameters(net)
    optimizers = [TBSO(binary, time_steps=7), torch.optim.SGD(real, lr=0.1)]
    x, y = torch.randn(2, 4), torch.tensor([0, 1])
    stream = (bsnn.Moment(x, y if k % 20 == 3 else None, cut=k % 97 == 0) for k in range(10_000))
    steps = bsnn.stream_update(net, stream, F.cross_entropy, optimizers)
    alike = {130 + n * 20 * 97 for n in range(6)}  # as far from the last label and the last cut
    alive = {live_bytes() for k, _ in zip(range(9_900), steps, strict=False) if k in alike}
    assert len(alive) == 1
    # What only the graph holds is seen by counting: labeled steps with a longer past take no more.
    last = peak_bytes(lambda: sum(bool(step.loss.isfinite()) for step in steps))
    again = bsnn.stream_update(net, [bsnn.Moment(x, y)] * 5, F.cross_entropy, optimizers)
    assert last <= 1.02 * peak_bytes(lambda: sum(bool(step.loss.isfinite()) for step in again))


def test_bench_measures_in_processes_and_leaves_peers_out(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--width", "0.03", "--batch", "2", "--time-steps", "2", "--repetitions", "1", "--threads", "1"]
    options += ["--lengths", "1", "--methods", "tbso", "backward-floor", "spikingjelly-ottt"]
    assert cli.main(["bench", "memory", *options, "--json"]) == 0
    captured = capsys.readouterr()
    result: dict[str, Any] = json.loads(captured.out)
    assert result["left_out"] == ["spikingjelly-ottt"]
    assert "left out, because --peers is not given" in captured.err
    cases = [(point["method"], point["batch"], point["time_steps"]) for point in result["points"]]
    assert cases == [("tbso", 2, 2), ("backward-floor", 2, 2), ("tbso", 2, 1)]
    for point in result["points"]:
        assert point["peak_bytes"] > point["program_bytes"] > 0
        assert point["step_seconds"] > 0
    ratios = {(r["of"], r["method"], r["against"]): r["ratio"] for r in result["ratios"]}
    assert ratios.keys() == {("step_seconds", "tbso", "backward-floor"), ("peak_bytes", "tbso", "T = 1")}
    assert ratios["peak_bytes", "tbso", "T = 1"] == pytest.approx(1, abs=0.1)
    assert result["state_bytes_per_weight"]["latent with momentum"] == 16
    text = training.describe(result)
    assert "times that of backward-floor" in text
    assert "bytes that stay for each binary weight: tbso 4." in text


def test_state_of_a_binary_weight_is_four_bytes_or_one() -> None:
    state = training._state_per_weight(width=1.0)
    assert state["tbso"] < 4.3
    assert state["tbso-8"] < 1.3


def test_bench_says_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "free_bytes", lambda: 300_000_000)
    result = training.bench(["bptt"], [64], [1000, 40], width=0.25, threads=1, repetitions=2, sequences=0)
    assert [point["time_steps"] for point in result["points"]] == [40, 1000]
    assert all(point["peak_bytes"] is None for point in result["points"])
    assert "1000  no room" in training.describe(result)


@pytest.mark.parametrize(
    ("option", "words"),
    [("--batch", "batch: received 0"), ("--time-steps", "time steps: received 0"), ("--lengths", "time steps: "),
     ("--threads", "threads: received 0"), ("--repetitions", "repetitions: received 0"), ("--width", "above 0")],
)  # fmt: skip
def test_bench_refuses_nonsense_in_our_words(option: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "training", option, "0"]) == 2
    assert words in capsys.readouterr().err


def test_bench_refuses_unknown_methods_and_peers() -> None:
    with pytest.raises(bsnn.UserError, match="received magic; expected some of tbso"):
        training.bench(["magic"], [1], [1])
    with pytest.raises(bsnn.UserError, match="cannot be started"):
        training.bench(["spikingjelly-ottt"], [1], [1], peers=str(Path("/nowhere/python")))


@pytest.mark.parametrize(("rule", "trace", "kept"), [("ottt", 1, 0), ("sltt", 0, 1)])
def test_the_prediction_by_hand(rule: str, trace: int, kept: int) -> None:
    neurons = [bsnn.LIF(gradient=rule) for _ in range(3)]
    layers = nn.Linear(3, 4), neurons[0], bsnn.BinaryLinear(4, 6), neurons[1], bsnn.BinaryLinear(6, 5), neurons[2]
    net = bsnn.Sequential(*layers, nn.Linear(5, 2)).double()
    found = bsnn.predict_memory(net, torch.zeros(1, 3, dtype=torch.float64), 10)
    real, state = 8 * (3 * 4 + 4 + 5 * 2 + 2), 8 * (4 + 6 + 5)
    # At the second binary layer: the input, the currents of two layers and their spikes' bits, without a trace the
    # spikes that each binary layer saw, both gradients, and the weights.
    before = 10 * (3 * 4 + 8 * 4 + 1 + 8 * 6 + 1 + kept * 8 * (4 + 6))
    assert found == {
        "weights": 24 // 8 + 32 // 8 + real,  # of 30 bits
        "momentum": 4 * (24 + 30),
        "gradients": 8 * 30 + real,
        "membrane": 10 * state,
        "trace": trace * 10 * state,
        "workspace": before + 10 * 8 * (6 + 5) + 8 * 30,
        "total": found["total"],
    }


@pytest.mark.parametrize(("pools", "size"), [(1, 8), (4, 16)])
def test_memory_constant_takes_images_that_the_network_can_take(pools: int, size: int) -> None:
    net = bsnn.models.vgg((4, *["pool"] * pools, 4))
    seen = set()
    net.register_forward_pre_hook(lambda _module, inputs: seen.add(tuple(inputs[0].shape)))
    bsnn.assert_memory_constant(net, time_steps=[1, 2])
    assert seen == {(2, 3, size, size)}
