"""The residual network: its formula, its plan, its gradients, and that it is fused and deployed as others are."""

import functools
import itertools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import bsnn
from bsnn.deploy.codec import read
from bsnn.deploy.engine import Engine
from bsnn.deploy.formats.c import export_c
from bsnn.models import residual
from bsnn.nn import network
from bsnn.online.evaluate import predict

PLAN = (4, "down", 8, 8, "down", 24, 24)


def test_the_network_is_its_formula() -> None:
    torch.manual_seed(0)
    net = residual((2, "down", 6, 6), in_channels=1, num_classes=3).double()
    x = torch.randn(4, 1, 6, 6, dtype=torch.float64)

    def convolved(conv: torch.nn.Module, value: torch.Tensor) -> torch.Tensor:
        weight = bsnn.signs(conv.weight).double() if isinstance(conv, bsnn.TracedConv2d) else conv.weight
        return normalized(F.conv2d(value, weight, padding=1))

    def normalized(value: torch.Tensor) -> torch.Tensor:
        variance = value.var((0, 2, 3), keepdim=True, unbiased=False)
        return (value - value.mean((0, 2, 3), keepdim=True)) / (variance + 1e-5).sqrt()

    def fires(value: torch.Tensor) -> torch.Tensor:
        return (normalized(value) >= 1.0).double()

    stem = convolved(net.stem, x)
    first = F.avg_pool2d(stem, 2).repeat(1, 3, 1, 1) + convolved(net.block1.body.conv, F.avg_pool2d(fires(stem), 2))
    second = first + convolved(net.block2.body.conv, fires(first))
    expected = net.classifier(fires(second).mean((2, 3)))
    torch.testing.assert_close(net(x, None)[0], expected)


def test_maximum_pooling_is_between_blocks() -> None:
    torch.manual_seed(0)
    plan = (2, "max", 4, "max", 4)
    net, x = residual(plan, in_channels=1, num_classes=3), torch.randn(4, 1, 9, 8)
    between = {}
    for name in ("norm", "block1", "pool1", "pool2", "block2"):
        getattr(net, name).register_forward_hook(
            lambda _, inputs, output, name=name: between.update({name: (inputs[0], output)})
        )
    net(x, None)
    assert torch.equal(between["pool1"][1], F.max_pool2d(between["norm"][1], 2))
    assert between["block1"][0] is between["pool1"][1]
    assert between["block1"][1][0].shape == (4, 4, 4, 4)
    assert between["block2"][1][0].shape == (4, 4, 2, 2)
    assert net.minimum_size == 4
    halved = residual((2, "down", 4, "down", 4), in_channels=1, num_classes=3)
    assert bsnn.model_size(net) == bsnn.model_size(halved)


def test_the_plan_counts_stem_blocks_and_halvings() -> None:
    net = residual((64, "down", 128, 128, "down", 256, 256, "down", 512, 512))
    assert bsnn.model_size(net).binary_weights == 4_644_864
    assert sum(isinstance(module, bsnn.LIF) for module in net.modules()) == 7
    assert net.minimum_size == 8
    assert {type(parameter) for _, parameter in net.named_parameters() if parameter.dim() == 4} == {
        torch.nn.Parameter,
        bsnn.BinaryParameter,
    }


def test_a_stem_of_stride_two_halves_the_image() -> None:
    net = residual(("down", 8, 8, "down", 16))
    assert net.stem.stride == (2, 2)
    assert net.minimum_size == 3  # 3 pixels become 2, and these 1
    assert net(torch.randn(2, 3, 3, 3), None)[0].shape == (2, 10)
    with pytest.raises(bsnn.UserError, match="at least 3"):
        net(torch.randn(2, 3, 2, 2), None)


@pytest.mark.parametrize(("width", "channels"), [(0.5, [2, 4, 4, 12, 12]), (0.3, [1, 2, 2, 6, 6]), (1.75, [7, 14])])
def test_any_width_keeps_the_multiples(width: float, channels: list[int]) -> None:
    net = residual(PLAN, width=width)
    convolutions = [m.weight.shape[0] for name, m in net.named_modules() if name.endswith(("stem", "conv"))]
    assert convolutions[: len(channels)] == channels


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ((), "received none; expected the stem's channels first"),
        (("down",), "received down; expected the stem's channels first"),
        (("down", "down", 8), "a number of channels after each 'max' or 'down'"),
        ((8, "down"), "a number of channels after each 'max' or 'down'"),
        ((8, "down", "down", 8), "a number of channels after each 'max' or 'down'"),
        (("max", 8, 8), "received max,8,8; expected the stem's channels first"),
        ((8, "max"), "a number of channels after each 'max' or 'down'"),
        ((8, "max", "down", 8), "a number of channels after each 'max' or 'down'"),
        ((8, "pool", 16), "channel numbers, 'max' and 'down', such as 64,max,128,128"),
        ((8, -8), "channel numbers, 'max' and 'down'"),
        ((8, "down", 12), "12 is no multiple of 8"),
        ((8, 4), "4 is no multiple of 8"),
    ],
)
def test_a_plan_that_is_none_is_refused(plan: tuple, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        residual(plan)


@pytest.mark.parametrize("gradient", ["ottt", "ndot", "sltt", "bptt"])
@pytest.mark.parametrize("weights", ["binary", "latent", "real"])
def test_it_trains_by_every_gradient_rule(gradient, weights) -> None:
    torch.manual_seed(0)
    net = residual(PLAN, num_classes=3, in_channels=2, weights=weights, neuron=bsnn.LIF(0.25, gradient=gradient))
    assert {m.leak for m in net.modules() if isinstance(m, bsnn.LIF)} == {0.25}
    x, y = torch.randn(6, 2, 9, 12), torch.tensor([0, 1, 2, 0, 1, 2])  # odd sizes pool alike in body and shortcut
    if weights == "binary":
        binary, real = bsnn.split_parameters(net)
        optimizers = [bsnn.optim.TBSO(binary, time_steps=1 if gradient == "bptt" else 2), torch.optim.SGD(real, lr=0.3)]
    else:
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.3)]
    update = bsnn.bptt_update if gradient == "bptt" else bsnn.online_update
    loss = functools.partial(bsnn.step_loss, labels=y, time_steps=2)
    losses = [float(update(net, itertools.repeat(x, 2), loss, optimizers).loss) for _ in range(25)]
    assert min(losses[-5:]) < 0.9 * losses[0]


def test_every_neuron_is_computed_in_a_fused_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, original = [], network.run_step

    def recorded(run, *arguments, **options):
        seen.append([type(module).__name__ for module in run.modules])
        return original(run, *arguments, **options)

    monkeypatch.setattr(network, "run_step", recorded)
    residual(PLAN)(torch.randn(2, 3, 8, 8), None)
    assert seen == [["BatchNorm2d", "LIF", *pool] for pool in (["AvgPool2d"], [], ["AvgPool2d"], [], [])]


@pytest.mark.parametrize("plan", [PLAN, ("down", 8, 8, "down", 24), (4, 4, "max", 8, "max", 24, 24)])
def test_it_is_deployed_bit_for_bit(plan: tuple, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = residual(plan, num_classes=3, in_channels=2)
    with bsnn.estimating_statistics(net):
        bsnn.predict(net, torch.randn(8, 2, 12, 12), 3)
    exported = bsnn.export(net, tmp_path / "model.bsnn", input_shape=(2, 12, 12), time_steps=3)
    x = torch.randn(5, 2, 12, 12)
    with torch.no_grad():
        expected = predict(exported.module, exported.module.integers(x), 3).numpy()
        trained = bsnn.predict(net.eval(), x, 3).numpy()
    for kernel in ("numpy", "auto"):
        found = Engine(read(tmp_path / "model.bsnn"), kernel).outputs(x.numpy())
        assert np.array_equal(found, expected), kernel
    assert np.array_equal(expected.argmax(1), trained.argmax(1))
    if shutil.which("gcc") and shutil.which("make"):
        export_c(read(tmp_path / "model.bsnn"), tmp_path / "c")
        done = subprocess.run(["make", "-C", tmp_path / "c", "check", "CC=gcc"], capture_output=True, text=True)
        assert "0 of 4 vectors wrong" in done.stdout, done.stderr
