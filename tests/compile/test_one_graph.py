"""`torch.compile(net, fullgraph=True)`: training and evaluation as one graph, with the same bits as without it."""

import contextlib
import copy
import functools
import os
import shutil
from typing import Any

import pytest
import torch
import torch._dynamo
from compile_cases import QUIET, Own, X, assert_same_bits, branches, chain, lived, online, plain_loop
from torch import Tensor, nn

import bsnn
from bsnn.kernels.torch_internals import tensors_in
from bsnn.nn.surrogate import Sigmoid

pytestmark = QUIET

compiled = functools.partial(torch.compile, fullgraph=True, backend="aot_eager")


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(
    ("build", "rule", "loop"),
    [
        (chain, "ottt", plain_loop),
        (chain, "ndot", online),
        (branches, "sltt", functools.partial(online, accumulate=True)),
        (Own, "ottt", functools.partial(online, clip_norm=1.0)),
    ],
)
def test_a_network_trains_as_one_graph_with_the_same_bits(build: Any, rule: str, loop: Any) -> None:
    net = build(rule)
    other = compiled(copy.deepcopy(net))
    assert_same_bits(loop(net), loop(other))
    # Without a state, and with one; NDOT counts ratios from the first step on.
    assert graphs() == (3 if rule == "ndot" else 2)


def test_backpropagation_through_time() -> None:
    net = branches("bptt")
    other = compiled(copy.deepcopy(net))
    assert_same_bits(online(net, bptt=True), online(other, bptt=True))


def test_statistics_and_evaluation() -> None:
    net = bsnn.models.vgg((4, "pool", 64), in_channels=2)
    other = compiled(copy.deepcopy(net))
    assert_same_bits(lived(net), lived(other))
    assert graphs() <= 8  # training, statistics, evaluation, evaluation of any batch; without a state and with one


@pytest.mark.parametrize("backend", ["reference", "fused"])
def test_on_every_backend(backend: str) -> None:
    net = chain("ottt")
    other = compiled(copy.deepcopy(net))
    with bsnn.backend(backend):
        assert_same_bits(online(net), online(other))


@pytest.mark.skipif(
    not (shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")),
    reason="the default compiler backend, inductor, needs a C++ compiler",
)
def test_default_settings() -> None:
    net = bsnn.models.vgg((8, "pool", 64), in_channels=2)
    other = torch.compile(copy.deepcopy(net), fullgraph=True)
    # A batch that inductor would add up in another order, in the gradient of the classifier's bias.
    assert_same_bits(online(net, copies=8), online(other, copies=8))


@pytest.mark.parametrize("changes", [{"leak": 0.25}, {"threshold": 0.9}, {"surrogate": Sigmoid(2.0)}])
def test_networks_that_differ_in_a_number(changes: dict[str, Any]) -> None:
    # From the second value on, the compiler takes a number for a variable.
    torch._dynamo.reset()
    for settings in ({}, changes):
        net = bsnn.models.vgg((4, 8), in_channels=2, neuron=bsnn.LIF(**settings))
        assert_same_bits(online(copy.deepcopy(net)), online(compiled(net)))


def test_no_recompilation_after_the_first_two_steps() -> None:
    net = compiled(bsnn.models.vgg((4, 4), in_channels=2), backend="eager")
    _, state = net(X, None)
    net(X, state)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(2):
            state = None
            for _ in range(3):
                logits, state = net(X, state)
                logits.sum().backward()


def test_a_batch_of_another_size_compiles_once_more() -> None:
    net = compiled(bsnn.models.vgg((4, 4), in_channels=2), backend="eager")
    for size in (4, 3):
        net(X[:size], None)
    before = graphs()
    for size in (2, 4, 3):
        net(X[:size], None)
    assert graphs() == before == 2


def test_another_backend_is_noticed() -> None:
    net = compiled(bsnn.models.vgg((4, 64), in_channels=2), backend="eager")
    logits, _ = net(X, None)
    before = graphs()
    with bsnn.backend("fused"):
        again, _ = net(X, None)
    assert graphs() > before
    assert torch.equal(logits, again)


# Layers of every kind.


def small(*layers: nn.Module) -> nn.Module:
    return bsnn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )


LAYERS = {
    "recurrent": lambda: small(bsnn.Recurrent(bsnn.BinaryConv2d(4, 4, 3, padding=1), bsnn.LIF())),
    "retraced": lambda: small(bsnn.Retraced(bsnn.LIF(), nn.MaxPool2d(2)), bsnn.BinaryConv2d(4, 4, 1), bsnn.LIF()),
    "a learned neuron": lambda: small(bsnn.BatchNorm2d(4), bsnn.ParametricLIF(), bsnn.BinaryConv2d(4, 4, 1)),
    "latent weights": lambda: small(bsnn.LIF(), bsnn.TracedConv2d(4, 4, 1, weights="latent"), bsnn.BatchNorm2d(4)),
    "no norm": lambda: small(bsnn.LIF(surrogate=bsnn.surrogate.Arctan()), nn.AvgPool2d(2), bsnn.BinaryConv2d(4, 4, 1)),
}


def two_steps(net: nn.Module, context: Any = contextlib.nullcontext) -> list[Tensor]:
    seen, state = [], None
    for _ in range(2):
        with context():
            logits, state = net(X, state)
        logits.square().sum().backward()
        seen += [logits, state]
    return list(tensors_in([*seen, [p.grad for p in net.parameters()], dict(net.named_buffers())]))


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_layers(make: Any) -> None:
    net = make()
    other = compiled(copy.deepcopy(net))
    assert all(torch.equal(a, b) for a, b in zip(two_steps(net), two_steps(other), strict=True))


def test_weights_of_batch_norm_learn_in_evaluation_mode_too() -> None:
    net = small(bsnn.BatchNorm2d(4), bsnn.LIF(), bsnn.BinaryConv2d(4, 4, 1)).eval()
    other = compiled(copy.deepcopy(net))
    assert all(torch.equal(a, b) for a, b in zip(two_steps(net), two_steps(other), strict=True))
    assert net[1].weight.grad.abs().sum() > 0  # pyright: ignore[reportIndexIssue, reportOptionalMemberAccess]


def test_autocast() -> None:
    net = bsnn.Sequential(nn.Conv2d(2, 4, 3), bsnn.LIF(), bsnn.BinaryConv2d(4, 64, 3), bsnn.BatchNorm2d(64), bsnn.LIF())
    net = bsnn.Sequential(net, nn.Flatten(), bsnn.BinaryLinear(1024, 64), nn.Linear(64, 3))
    other = compiled(copy.deepcopy(net))
    autocast = functools.partial(torch.autocast, "cpu", torch.bfloat16)
    pairs = list(zip(two_steps(net, autocast), two_steps(other, autocast), strict=True))
    assert {a.dtype for a, _ in pairs} >= {torch.float32, torch.bfloat16}
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


class Bell:
    elementwise = True

    def derivative(self, x: Tensor) -> Tensor:
        return torch.exp(-x.square())


def test_your_own_surrogate_is_traced_and_gradients_agree_within_rounding() -> None:
    torch.manual_seed(0)
    net = bsnn.models.vgg((4, 4), in_channels=2, neuron=bsnn.LIF(surrogate=Bell()))
    other = compiled(copy.deepcopy(net), backend="eager")
    for a, b in zip(two_steps(net), two_steps(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_ndot_counts_its_ratios() -> None:
    found = []
    for change in (lambda net: net, functools.partial(compiled, backend="eager")):
        torch.manual_seed(0)
        net = small(bsnn.LIF(gradient="ndot"), bsnn.BinaryConv2d(4, 4, 1))
        two_steps(change(net))
        found.append(net[1].gradient.saturation)  # pyright: ignore[reportIndexIssue]
    assert found[0] == found[1] > 0


# What is refused, or runs uncompiled.


def test_arithmetic_with_a_binary_parameter_is_refused() -> None:
    layer = bsnn.BinaryLinear(4, 4)

    @functools.partial(compiled, backend="eager")
    def decayed() -> Tensor:
        return layer.weight.square().sum()

    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match="one bit per weight"):
        decayed()


def test_statistics_of_many_processes_are_refused() -> None:
    net = small(bsnn.BatchNorm2d(4), bsnn.LIF())
    net[1].synchronized = True  # pyright: ignore[reportIndexIssue]
    with pytest.raises(torch._dynamo.exc.Unsupported, match="statistics of many processes"):
        compiled(net, backend="eager")(X, None)


def test_firing_rates_are_counted_uncompiled() -> None:
    net = bsnn.models.vgg((4, 4), in_channels=2)
    other = compiled(net, backend="eager")
    samples = [(X, torch.tensor([0, 1, 2, 3]))]
    first, second = (bsnn.evaluate(n, samples, time_steps=2) for n in (net, other))
    assert first.firing_rates == second.firing_rates
    assert first.firing_rates
    assert graphs() == 0
