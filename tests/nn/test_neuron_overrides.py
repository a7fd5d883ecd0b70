"""`spike` and `reset_spikes` of a subclass, or of an object, are what a neuron fires and is reset by."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bsnn
from bsnn.nn.fused import is_fusable

KINDS = [bsnn.LIF, bsnn.IF, bsnn.ParametricLIF, bsnn.AdaptiveLIF, bsnn.HardResetLIF]


def never(self: Any, distance: Tensor) -> Tensor:
    return torch.zeros_like(distance)


def no_reset(self: Any, spikes: Tensor) -> Tensor:
    return torch.zeros_like(spikes)


def on_class(kind: Any, name: str, method: Any) -> Any:
    return type("Own", (kind,), {name: method})()


def on_object(kind: Any, name: str, method: Any) -> Any:
    neuron = kind()
    setattr(neuron, name, method.__get__(neuron))
    return neuron


@pytest.mark.parametrize("place", [on_class, on_object])
@pytest.mark.parametrize("kind", KINDS)
def test_an_override_takes_effect(kind: Any, place: Any) -> None:
    current = torch.full((2, 3), 5.0)
    for name, method, fires, left in (("spike", never, 0.0, 5.0), ("reset_spikes", no_reset, 1.0, 5.0)):
        neuron = place(kind, name, method)
        assert not is_fusable(neuron)
        activity, (state,) = bsnn.Sequential(nn.Identity(), neuron)(current, None)
        assert activity.spikes.eq(fires).all()
        torch.testing.assert_close(state.membrane, torch.full((2, 3), left), rtol=1e-6, atol=1e-6)


def test_the_threshold_trace_follows_the_reset() -> None:
    neuron = on_class(bsnn.ParametricLIF, "reset_spikes", no_reset)
    _, state = neuron(torch.full((1, 2), 5.0), None)
    assert state.threshold_trace.eq(0).all()  # without a reset, V has no part in the membrane


@pytest.mark.parametrize("rule", ["ottt", "ndot", "bptt"])
def test_lif_is_lif_step(rule: str) -> None:
    neuron, current = bsnn.LIF(leak=0.7, threshold=0.9, gradient=rule), torch.randn(4, 5)
    state, membrane = None, torch.zeros(4, 5)
    with bsnn.backend("reference"):
        for _ in range(4):
            activity, state = neuron(current, state)
            spikes, membrane = bsnn.lif_step(current, membrane, leak=0.7, threshold=0.9, surrogate=neuron.surrogate)
            assert torch.equal(activity.spikes, spikes)
            assert torch.equal(state.membrane, membrane)
