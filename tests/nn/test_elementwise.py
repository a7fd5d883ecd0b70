"""Gradient rules and surrogates of the user's own see whole layers in their usual shape, whatever computes."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bsnn
from bsnn.kernels import _chunked
from bsnn.nn.claims import claim, is_elementwise
from bsnn.nn.fused import find_run
from bsnn.nn.surrogate import Sigmoid, Triangle

CHANNELS, SIZE = 6, 6  # equal, so that a factor per channel fits the wrong axis too


class ChannelDecay(bsnn.GradientRule):
    """A decay for each channel."""

    needs_membrane = False

    def trace(self, past: Tensor, spikes: Tensor, membrane: Tensor, previous: Tensor, leak: float) -> Tensor:
        decay = torch.linspace(0.1, 0.9, spikes.shape[1], dtype=spikes.dtype)
        return decay.view(1, -1, *[1] * (spikes.dim() - 2)) * past + spikes


class BatchDecay(bsnn.OTTT):
    """A decay that depends on how many neurons of the batch fire."""

    def trace(self, past: Tensor, spikes: Tensor, membrane: Tensor, previous: Tensor, leak: float) -> Tensor:
        return spikes.mean() * past + spikes


class Ratio(bsnn.NDOT):
    """NDOT with a ratio per channel, by way of a method that `trace` calls."""

    def ratio(self, membrane: Tensor, previous: Tensor, leak: float) -> Tensor:
        return super().ratio(membrane, previous, leak) * membrane.abs().mean((0, 2, 3), keepdim=True)


class ChannelWidth:
    """A width for each channel."""

    def derivative(self, x: Tensor) -> Tensor:
        width = torch.linspace(0.5, 3.0, x.shape[1], dtype=x.dtype).view(1, -1, *[1] * (x.dim() - 2))
        return (width - x.abs()).clamp(min=0) / width**2


class BatchWidth(Sigmoid):
    """A width that depends on the batch."""

    def derivative(self, x: Tensor) -> Tensor:
        return super().derivative(x / x.std())


CASES: dict[str, dict[str, Any]] = {
    "a decay per channel": {"gradient": ChannelDecay()},
    "a decay by the batch": {"gradient": BatchDecay()},
    "a ratio per channel": {"gradient": Ratio()},
    "a width per channel": {"surrogate": ChannelWidth()},
    "a width by the batch": {"surrogate": BatchWidth()},
    "a built-in surrogate with a slope per channel": {
        "surrogate": Sigmoid(torch.linspace(1.0, 5.0, CHANNELS, dtype=torch.float64).view(1, -1, 1, 1))  # pyright: ignore
    },
}


def gradients(neuron: bsnn.LIF, backend: str) -> list[Tensor]:
    torch.manual_seed(0)
    net = bsnn.Sequential(
        nn.Conv2d(2, CHANNELS, 3, padding=1),
        bsnn.BatchNorm2d(CHANNELS),
        neuron,
        bsnn.BinaryConv2d(CHANNELS, CHANNELS, 3, padding=1),
        bsnn.BatchNorm2d(CHANNELS),
        neuron,
        nn.Flatten(),
        nn.Linear(CHANNELS * SIZE**2, 3),
    ).double()
    state = None
    with bsnn.backend(backend):
        for x in torch.randn(3, 9, 2, SIZE, SIZE, dtype=torch.float64):
            outputs, state = net(x, state)
            outputs.square().sum().backward()
    return [p.grad for p in net.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_elementwise_is_the_same_fused_or_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_chunked, "_CHUNK", 2 * CHANNELS * SIZE**2)
    neuron = bsnn.LIF(**CASES[name])
    for ours, theirs in zip(gradients(neuron, "fused"), gradients(neuron, "reference"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_it_sees_the_whole_layer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    neuron, seen = bsnn.LIF(**CASES[name]), []
    part, method = (neuron.gradient, "trace") if "gradient" in CASES[name] else (neuron.surrogate, "derivative")
    usual = getattr(type(part), method)
    monkeypatch.setattr(type(part), method, lambda self, x, *rest: seen.append(x.shape) or usual(self, x, *rest))
    gradients(neuron, bsnn.backend())
    assert set(seen) == {(9, CHANNELS, SIZE, SIZE)}


def own_trace(self: Any, past: Tensor, *others: Any) -> Tensor:
    return past


@dataclass(frozen=True)
class Wide(Triangle):
    width: float = 3.0


class Mixin:
    trace = own_trace


class Mixed(Mixin, bsnn.OTTT):
    pass


class Plain(bsnn.NDOT):
    """Adds a name and nothing else."""


class Said(bsnn.OTTT):
    elementwise = True
    trace = own_trace


def with_own_method() -> bsnn.OTTT:
    rule = bsnn.OTTT()
    rule.trace = own_trace.__get__(rule)  # pyright: ignore
    return rule


@pytest.mark.parametrize(
    ("part", "known", "kernel"),
    [
        (bsnn.OTTT(), True, "leaky"),
        (bsnn.NDOT(), True, "ratio"),
        (bsnn.SLTT(), True, "none"),
        (Plain(), True, "ratio"),
        (Said(), True, None),
        (Mixed(), False, None),
        (ChannelDecay(), False, None),
        (BatchDecay(), False, None),
        (Ratio(), False, None),
        (with_own_method(), False, "leaky"),
        (Sigmoid(), True, "sigmoid"),
        (Wide(), True, "triangle"),
        (BatchWidth(), False, None),
        (ChannelWidth(), False, None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_which_are_known_to_be_elementwise(part: Any, known: bool, kernel: str | None) -> None:
    assert is_elementwise(part) is known
    assert claim(type(part), "kernel") == kernel
    kind = "gradient" if isinstance(part, bsnn.GradientRule) else "surrogate"
    assert (find_run([bsnn.LIF(**{kind: part})], 0, torch.ones(2, 3)) is not None) is known


def test_ndot_stays_fused_and_counts_what_it_clamps_once() -> None:
    found = []
    for backend in ("fused", "reference"):
        neuron = bsnn.LIF(gradient="ndot")
        gradients(neuron, backend)
        found.append((neuron.gradient._ratios, neuron.gradient.saturation))  # pyright: ignore
    assert found[0] == found[1]
    assert found[0][0] > 0


class OwnNorm(bsnn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 1


class OwnPool(nn.AvgPool2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


class OwnNeuron(bsnn.LIF):
    def fire(self, current: Tensor, past: Any) -> Any:
        return super().fire(2 * current, past)


def test_a_subclass_is_never_taken_for_what_it_derives_from() -> None:
    x = torch.randn(2, 3, 6, 6)
    norm, lif, pool = bsnn.BatchNorm2d(3), bsnn.LIF(), nn.AvgPool2d(2)
    assert find_run([norm, lif, pool], 0, x) == (norm, lif, pool)
    assert find_run([norm, bsnn.IF(), pool], 0, x) is not None
    assert find_run([OwnNorm(3), lif, pool], 0, x) is None
    assert find_run([norm, OwnNeuron(), pool], 0, x) is None
    assert find_run([norm, lif, OwnPool(2)], 0, x) == (norm, lif, None)
    for module in (norm, lif, pool):
        module.forward = module.forward
    assert find_run([norm, lif, pool], 0, x) is None
    assert find_run([norm, lif, pool], 1, x) is None
    del norm.forward, lif.forward
    assert find_run([norm, lif, pool], 0, x) == (norm, lif, None)
