import functools
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import bso
from bso import cli, ledger
from bso.bench import training
from bso.memory import peak_bytes
from bso.optim import BSO, TBSO


@pytest.mark.parametrize("make", [bso.models.vgg11, bso.models.resnet18])
@pytest.mark.parametrize("rule", ["ottt", "sltt"])
def test_the_prediction_is_near_what_tensors_take(make, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = 8
    monkeypatch.setattr(ledger, "_REORDERS", 1)  # one is a tensor, the others lie inside a kernel

    def train() -> None:
        net = make(width=0.25, neuron=bso.LIF(gradient=rule))
        binary, real = bso.split_parameters(net)
        x, y = torch.randn(batch, 3, 32, 32), torch.zeros(batch, dtype=torch.long)
        loss = functools.partial(bso.step_loss, labels=y, time_steps=2)
        optimizers = [TBSO(binary, time_steps=2), torch.optim.SGD(real, lr=0.1)]
        bso.online_update(net, itertools.repeat(x, 2), loss, optimizers)

    net = make(width=0.25, neuron=bso.LIF(gradient=rule))
    predicted = bso.predict_memory(net, torch.zeros(1, 3, 32, 32), batch)
    assert predicted["total"] == sum(value for kind, value in predicted.items() if kind != "total")
    assert predicted["total"] == pytest.approx(peak_bytes(train), rel=0.15)
    assert predicted["trace"] == (predicted["membrane"] if rule == "ottt" else 0)
    eight = bso.predict_memory(net, torch.zeros(1, 3, 32, 32), batch, momentum_bits=8)
    assert eight["momentum"] / predicted["momentum"] == pytest.approx(260 / 1024, rel=0.01)


def test_memory_constant_passes_online_networks_and_catches_a_leak() -> None:
    net = bso.models.vgg((8, "pool", 8), in_channels=1)
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    bso.assert_memory_constant(net, time_steps=[1, 8, 64])
    assert all(torch.equal(value, buffers[name]) for name, value in net.named_buffers())
    with pytest.raises(bso.UserError, match="and no inputs; expected a batch"):
        bso.assert_memory_constant(bso.Sequential(bso.LIF()))
    leaking = bso.models.vgg((8, "pool", 8), in_channels=1, neuron=bso.LIF())
    seen = []
    leaking.register_forward_hook(lambda _module, _inputs, output: seen.append(output[0]))
    with pytest.raises(AssertionError, match="memory grows with time: T = 1: "):
        bso.assert_memory_constant(leaking, time_steps=[1, 8])


@pytest.mark.parametrize("make", [BSO, functools.partial(TBSO, time_steps=5)])
def test_a_stream_trains_where_it_has_labels_and_cuts_where_it_says(make) -> None:
    net = bso.models.vgg((6, 6), in_channels=1, num_classes=3)
    binary, real = bso.split_parameters(net)
    optimizers = [make(binary), torch.optim.SGD(real, lr=0.1)]
    noise = torch.Generator().manual_seed(0)
    moments = [
        bso.Moment(torch.randn(2, 1, 8, 8, generator=noise), torch.tensor([0, 1]) if k % 4 == 1 else None, k == 6)
        for k in range(12)
    ]
    bits = binary[0].bits.clone()
    losses, states = [], []
    for step in bso.stream_update(net, moments, torch.nn.functional.cross_entropy, optimizers):
        losses.append(bool(step.loss.isfinite()))
        states.append(bso.map_state(torch.Tensor.clone, step.state))
    assert losses == [k % 4 == 1 for k in range(12)]
    assert not torch.equal(binary[0].bits, bits)
    assert states[6][0].trace.max() <= 1  # nothing of before the cut
    assert states[5][0].trace.max() > 1


def test_a_long_stream_takes_no_more_memory_than_a_short_one() -> None:
    net = bso.models.vgg((4, "pool", 4), in_channels=1)
    binary, real = bso.split_parameters(net)
    optimizers = [TBSO(binary, time_steps=7), torch.optim.SGD(real, lr=0.1)]
    x, y = torch.randn(2, 1, 8, 8), torch.tensor([0, 1])

    def train(length: int) -> None:
        stream = (bso.Moment(x, y if k % 2 else None) for k in range(length))
        for _ in bso.stream_update(net, stream, torch.nn.functional.cross_entropy, optimizers):
            pass

    train(2)
    few, many = (peak_bytes(functools.partial(train, length)) for length in (10, 300))
    assert many <= 1.02 * few


def test_bench_measures_in_processes_and_leaves_peers_out(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--width", "0.03", "--batch", "2", "--time-steps", "1", "--repetitions", "1", "--threads", "1"]
    assert cli.main(["bench", "memory", *options, "--methods", "tbso", "spikingjelly-ottt", "--json"]) == 0
    captured = capsys.readouterr()
    result: dict[str, Any] = json.loads(captured.out)
    assert result["left_out"] == ["spikingjelly-ottt"]
    assert "left out, because --peers is not given" in captured.err
    (point,) = result["points"]
    assert (point["method"], point["batch"], point["time_steps"]) == ("tbso", 2, 1)
    assert point["peak_bytes"] > 0
    assert point["step_seconds"] > 0
    assert "tbso" in training.describe(result)
    with pytest.raises(bso.UserError, match="received magic; expected some of tbso"):
        training.bench(["magic"], [1], [1])
    with pytest.raises(bso.UserError, match="cannot be started"):
        training.bench(["spikingjelly-ottt"], [1], [1], peers=str(Path("/nowhere/python")))
