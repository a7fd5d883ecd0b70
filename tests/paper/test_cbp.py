"""CBP: constraint, multipliers and conversion by hand-computed values; weights that end at ±a; runs that resume."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from training_runs import Killed, assert_same_run, stop_after

import bsnn
from bsnn.data.loader import Loader
from bsnn.nn.binarized import ConstrainedConv2d, constraint
from bsnn.nn.compared import InputDecayPLIF, Rectifier
from bsnn.paper import cbp, conversion
from bsnn.paper.recipes import recipe
from bsnn.train import train
from bsnn.train.load import load_network


def test_the_constraint() -> None:
    w = torch.tensor([0.0, 0.1, -0.2, 0.3, -0.4, 0.5, -0.9])
    a = torch.tensor(0.4)
    # 2 (|w| − a) outside; inside 2 (a − |w|), but 0 below a/g.
    outside = [0.2, 1.0]
    assert constraint(w, a, 1).tolist() == pytest.approx([0, 0, 0, 0, 0, *outside])
    assert constraint(w, a, 2).tolist() == pytest.approx([0, 0, 0.4, 0.2, 0, *outside])
    assert constraint(w, a, 100).tolist() == pytest.approx([0, 0.6, 0.4, 0.2, 0, *outside])
    w.requires_grad_()
    constraint(w, a, 100).sum().backward()
    assert w.grad.tolist()[1:4] == [-2, 2, -2]  # toward ±a
    assert w.grad.tolist()[5:] == [2, -2]


def test_a_constrained_layer_computes_with_its_signs() -> None:
    layer = ConstrainedConv2d(1, 1, 1)
    layer.weight.data.fill_(-0.3)
    x = torch.ones(1, 1, 1, 1, requires_grad=True)
    assert layer(x).item() == pytest.approx(-0.3)
    layer.constrain()
    layer.weight.data.fill_(-0.1)  # a stays
    out = layer(x)
    assert out.item() == pytest.approx(-0.3)
    out.backward()
    assert layer.weight.grad.item() == 1
    assert x.grad.item() == pytest.approx(-0.3)


def one_weight() -> tuple[cbp.CBP, Any]:
    config = dataclasses.replace(recipe("cifar10-cbp-small"), epochs=100)
    net = bsnn.Sequential(ConstrainedConv2d(1, 2, 1), bsnn.IF(gradient="bptt"))
    net[0].weight.data.copy_(torch.tensor([0.2, -0.6]).view(2, 1, 1, 1))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = bsnn.optim.Schedule(sgd, lr=bsnn.optim.constant())
    trainer = SimpleNamespace(schedules=[schedule], train_loader=[None], optimizer=sgd)
    return cbp.CBP(net, config), trainer


def test_the_multipliers_follow_the_schedule() -> None:
    method, trainer = one_weight()
    method.start(trainer)
    layer = method.layers[0]
    assert layer.scale.item() == pytest.approx(0.4)
    # g = 1: cs is 0 for 0.2 and 0.4 for −0.6; Adam's first step is its rate.
    assert method.multipliers[0].flatten().tolist() == pytest.approx([0, 1e-3])
    assert method.penalty(None).item() == pytest.approx(1e-3 * 0.4)
    for loss, g in ((3.0, 1), (2.0, 1), (2.0, 2), (1.0, 2), (1.5, 3)):
        method.after_update(trainer, loss)
        assert method.g == g
    # The second step, at g = 1: the mean of (0.4, 0.4) is corrected, so it is the rate again. The third, at g = 2:
    # cs is 0.4 for both, and for 0.2 it is the first: m = 0.1·0.4/(1 − 0.9³), v = 0.001·0.16/(1 − 0.999³).
    m, v = 0.1 * 0.4 / (1 - 0.9**3), 0.001 * 0.16 / (1 - 0.999**3)
    assert method.multipliers[0].flatten().tolist() == pytest.approx([1e-3 * m / v**0.5, 3e-3], rel=1e-4)


def test_a_multiplier_is_raised_after_twenty_rounds_at_the_latest() -> None:
    method, trainer = one_weight()
    method.start(trainer)
    for number in range(40):
        assert method.g == 1 + number // 20
        method.after_update(trainer, 100.0 - number)


def test_the_learning_rate_falls_at_g_20() -> None:
    method, trainer = one_weight()
    method.start(trainer)
    rates = {}
    for _ in range(13):
        method.after_update(trainer, 1.0)
        rates[method.g] = trainer.optimizer.param_groups[0]["lr"]
    assert list(rates) == [*range(1, 11), 20, 30, 40]
    assert rates[10] == 0.1
    assert rates[20] == rates[40] == pytest.approx(0.01)


def test_weights_are_clamped() -> None:
    method, trainer = one_weight()
    method.start(trainer)
    method.layers[0].weight.data.copy_(torch.tensor([3.0, -2.0]).view(2, 1, 1, 1))
    method.after_update(trainer, 1.0)
    assert method.layers[0].weight.flatten().tolist() == [1, -1]


def test_plif_of_sew() -> None:
    neuron, state, spikes = InputDecayPLIF(0.5, gradient="bptt"), None, []
    for current in (1.0, 1.4, 1.2):
        activity, state = neuron(torch.tensor([[current]]), state)
        spikes.append(activity.spikes.item())
    # 0.5; 0.5 + 0.5 · 0.9 = 0.95; 0.95 + 0.5 · 0.25 = 1.075 fires, and is reset to 0.
    assert spikes == [0, 0, 1]
    assert state.membrane.item() == 0
    # ∂u/∂w = σ' (I − m) = 0.25 · 1 at the first step.
    _, state = neuron(torch.tensor([[1.0]]), None)
    (found,) = torch.autograd.grad(state.membrane.sum(), neuron.rate_logit)
    assert found.item() == pytest.approx(0.25)


def test_thresholds_come_nearest_to_the_rectifier() -> None:
    assert conversion.best_threshold(torch.tensor([0.0, 0.25, 0.5]), 4) == pytest.approx(0.5)
    # An outlier is clipped: with V = 10, all of the ones would round to 0 at T = 2.
    output = torch.cat([torch.ones(1000), torch.tensor([10.0])])
    assert conversion.best_threshold(output, 2) < 4


@pytest.mark.parametrize("time_steps", [8, 64])
def test_a_converted_network_gives_what_the_rectifiers_gave(time_steps: int) -> None:
    torch.manual_seed(0)
    net = cbp.vgg16((8, "pool", 16), bsnn.IF(gradient="bptt"), num_classes=5).eval()
    for layer in (net.conv1, net.conv2):
        nn.init.normal_(layer.bias, std=0.2)
    rectified = cbp.vgg16((8, "pool", 16), Rectifier(gradient="bptt"), num_classes=5).eval()
    rectified.load_state_dict(net.state_dict())
    x = torch.randn(64, 3, 8, 8)
    wanted, _ = rectified(x, None)
    conversion.convert(net, x, time_steps)
    found = bsnn.predict(net, x, time_steps) / time_steps
    error = ((found - wanted).square().mean() / wanted.var()).item()
    assert error < {8: 0.2, 64: 0.02}[time_steps]


def test_what_cannot_be_converted_is_refused() -> None:
    net = bsnn.Sequential(nn.Conv2d(3, 4, 3, bias=False), bsnn.IF(gradient="bptt"), nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(bsnn.UserError, match="expected a chain with a bias in every layer"):
        conversion.convert(net, torch.randn(2, 3, 3, 3), 4)


FIRST = dataclasses.replace(
    recipe("cifar10-cbp-small-ann"), dataset="digits", plan=(16, "pool", 32, "pool", 32), epochs=6, crop_padding=0,
    flip=False, learning_rate=0.05, batch_size=64, evaluation_interval=100,
)  # fmt: skip
SECOND = dataclasses.replace(
    recipe("cifar10-cbp-small"), dataset="digits", plan=(16, "pool", 32, "pool", 32), time_steps=3, epochs=8,
    crop_padding=0, flip=False, batch_size=64, evaluation_interval=100,
)  # fmt: skip


def test_weights_end_at_plus_and_minus_a(tmp_path) -> None:
    """At least 99 % within 5 % of ±a, and quantizing them costs under half a point."""
    first = train(FIRST, tmp_path / "ann")
    # After fewer epochs its accuracy is that of a network in the making, and moves by a point either way.
    second = dataclasses.replace(SECOND, init_from=str(tmp_path / "ann"), epochs=24)
    done = train(second, tmp_path / "cbp")
    assert done["test_accuracy"] > first["test_accuracy"] - 0.1
    net = load_network(tmp_path / "cbp").net
    layers = [module for module in net.modules() if isinstance(module, ConstrainedConv2d)]
    near = torch.cat([((layer.weight.abs() / layer.scale - 1).abs() < 0.05).flatten() for layer in layers])
    assert near.float().mean() >= 0.99

    def found() -> list[Any]:
        splits = (Loader(bsnn.data.digits(split), 64) for split in ("train", "test"))
        return [bsnn.evaluate(net, samples.ordered(), SECOND.time_steps) for samples in splits]

    quantized = found()
    assert quantized[1].accuracy == done["test_accuracy"]
    for layer in layers:
        layer.scale.zero_()  # then it computes with the weights themselves
    real = found()
    assert real[1].total_loss != quantized[1].total_loss
    right = [sum(part.accuracy * part.samples for part in parts) for parts in (real, quantized)]
    assert right[0] - right[1] < 0.005 * 1797


def test_a_run_resumes_where_it_was(tmp_path, monkeypatch) -> None:
    short = {"epochs": 2, "train_samples": 256, "time_steps": 2}
    first = dataclasses.replace(FIRST, epochs=1, train_samples=128)
    train(first, tmp_path / "ann")
    config = dataclasses.replace(SECOND, **short, init_from=str(tmp_path / "ann"))
    train(config, tmp_path / "whole")
    stop_after(monkeypatch, 6)
    with pytest.raises(Killed):
        train(config, tmp_path / "parts", checkpoint_minutes=0)
    monkeypatch.undo()
    train(config, tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
