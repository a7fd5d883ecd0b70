"""Neurons beside LIF: trajectories by hand, what is refused, precision and memory order."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bsnn
from bsnn.nn import neurons

KINDS = [bsnn.LIF, bsnn.IF, bsnn.ParametricLIF, bsnn.HardResetLIF, bsnn.AdaptiveLIF]


def trajectory(neuron: bsnn.Neuron, currents: list[float]) -> list[tuple[float, ...]]:
    """Spike and state of each step, in the order of the state's fields."""
    found, state = [], None
    neuron = neuron.double()
    for current in currents:
        activity, state = neuron(torch.tensor([[current]], dtype=torch.float64), state)
        found.append((activity.spikes.item(), *(part.item() for part in state if part is not None)))
    return found


def close(actual: list[tuple[float, ...]], expected: list[tuple[float, ...]]) -> None:
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected, dtype=torch.float32))


def test_pinned_trajectories() -> None:
    # IF, V = 1: u = 0.75 | 1.25 fires, 0.25 left | 0.75; the trace is the number of spikes.
    close(trajectory(bsnn.IF(), [0.75, 0.5, 0.5]), [(0, 0.75, 0), (1, 0.25, 1), (0, 0.75, 1)])
    # Hard reset, λ = 0.5: u = 0.75 | 1.375 fires, 0 left | 0.5 | 1.25 fires, 0 left; â = 0, 1, 0.5, 1.25.
    close(
        trajectory(bsnn.HardResetLIF(), [0.75, 1.0, 0.5, 1.0]),
        [(0, 0.75, 0), (1, 0, 1), (0, 0.5, 0.5), (1, 0, 1.25)],
    )
    # Adaptive, λ = 0.5, β = 0.5, ρ = 0.5. u = 1.5 ≥ 1 fires, m = 0.5, b = 1 | u = 1.25 < 1 + 0.5, b = 0.5
    # | u = 1.375 ≥ 1.25 fires, m = 0.375, b = 1.25
    close(
        trajectory(bsnn.AdaptiveLIF(adaptation=0.5, adaptation_leak=0.5), [1.5, 1.0, 0.75]),
        [(1, 0.5, 1, 1), (0, 1.25, 0.5, 0.5), (1, 0.375, 1.25, 1.25)],
    )
    # Parametric, λ = 0.5, V = 1: as LIF. ∂m/∂λ: 0 | 0.5·0 + 0.5 | 0.5·0.5 + 0.75; ∂m/∂V: −1 | −0.5 | −0.25 − 1
    close(
        trajectory(bsnn.ParametricLIF(), [1.5, 0.5, 0.75]),
        [(1, 0.5, 1, 0, -1), (0, 0.75, 0.5, 0.5, -0.5), (1, 0.125, 1.25, 1, -1.25)],
    )


@pytest.mark.parametrize("name", ["leak", "threshold"])
@pytest.mark.parametrize("kind", [bsnn.LIF, bsnn.HardResetLIF, bsnn.AdaptiveLIF])
@pytest.mark.parametrize("value", [nn.Parameter(torch.tensor(0.5)), torch.tensor(0.5), torch.full((3, 1, 1), 0.5)])
def test_a_tensor_as_constant_is_refused_and_points_to_the_neuron_that_learns_it(
    kind: type[bsnn.Neuron], name: str, value: Tensor
) -> None:
    message = f"{kind.__name__}: received a .* as {name}; expected a number.*ParametricLIF\\({name}="
    with pytest.raises(bsnn.UserError, match=message):
        kind(**{name: value})
    neuron = kind()
    with pytest.raises(bsnn.UserError, match=message):
        setattr(neuron, name, value)
    assert list(neuron.parameters()) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bsnn.IF(threshold=-1.0), "IF: received threshold=-1.0"),
        (lambda: bsnn.LIF(leak="0.5"), "received leak='0.5'; expected a number"),
        (lambda: setattr(bsnn.LIF(), "leak", 1.5), r"received leak=1.5; expected λ in \[0, 1\]"),
        (lambda: bsnn.ParametricLIF(leak=1.0), "received leak=1.0; expected λ above 0 and below 1.*bsnn.IF"),
        (lambda: bsnn.ParametricLIF(leak=0), "received leak=0; expected λ above 0"),
        (lambda: bsnn.ParametricLIF(threshold=0.0), "received threshold=0.0"),
        (lambda: bsnn.ParametricLIF(leak=nn.Parameter(torch.ones(()))), "received a Parameter as leak"),
        (lambda: bsnn.AdaptiveLIF(adaptation=-0.1), "received adaptation=-0.1; expected 0 or more"),
        (lambda: bsnn.AdaptiveLIF(adaptation_leak=1.1), r"received adaptation_leak=1.1; expected a share in \[0, 1\]"),
        (lambda: bsnn.AdaptiveLIF(adaptation=torch.ones(())), "received adaptation=tensor"),
        (lambda: bsnn.LIF(surrogate=bsnn.surrogate.Sigmoid), "expected an object with a method `derivative`"),
        (lambda: bsnn.LIF(gradient="rtrl"), "expected one of ottt, ndot, sltt, bptt"),
        (lambda: bsnn.LIF(gradient=bsnn.OTTT), "an object of a subclass of bsnn.GradientRule"),
        (lambda: setattr(bsnn.HardResetLIF(), "gradient", "ndot"), "HardResetLIF: received the gradient rule NDOT"),
        (lambda: bsnn.neuron_named("izhikevich"), "expected one of lif, if, plif, hard-lif, alif, or module:Class"),
        (lambda: bsnn.neuron_named("math:tau"), "math:tau is 6.28.*expected a subclass of bsnn.Neuron"),
    ],
)
def test_misuse_teaches(call, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        call()


def test_a_rule_may_be_set_by_its_name() -> None:
    neuron = bsnn.LIF()
    neuron.gradient = "bptt"  # pyright: ignore
    assert isinstance(neuron.gradient, bsnn.BPTT)


class OwnHardReset(bsnn.LIF):
    def fire(self, current: Tensor, past: Any) -> Any:
        spikes, state = super().fire(current, past)
        return spikes, state._replace(membrane=state.membrane * (1 - spikes))


def test_a_subclass_of_lif_is_not_taken_to_have_a_soft_reset() -> None:
    with pytest.raises(bsnn.UserError, match="OwnHardReset: received the gradient rule NDOT"):
        OwnHardReset(gradient="ndot")
    assert trajectory(OwnHardReset(), [1.5])[0] == (1, 0, 1)


def test_a_parameter_stays_itself_when_its_value_is_set() -> None:
    neuron = bsnn.ParametricLIF(leak=0.25, threshold=2.0)
    assert (neuron.leak, neuron.threshold) == pytest.approx((0.25, 2.0))
    before = dict(neuron.named_parameters())
    neuron.leak, neuron.threshold = 0.75, 0.5
    assert (neuron.leak, neuron.threshold) == pytest.approx((0.75, 0.5))
    assert all(before[name] is parameter for name, parameter in neuron.named_parameters())
    assert set(before) == {"leak_logit", "log_threshold"}
    twin = copy.deepcopy(neuron)
    twin.leak = 0.1
    assert neuron.leak == pytest.approx(0.75)
    assert "leak=0.75, threshold=0.5" in repr(neuron)


def test_extreme_parameters_are_still_neurons() -> None:
    neuron = bsnn.ParametricLIF()
    for value in (-50.0, 50.0):
        nn.init.constant_(neuron.leak_logit, value)
        nn.init.constant_(neuron.log_threshold, value / 10)
        assert 0 <= neuron.leak <= 1
        assert neuron.threshold > 0
        activity, _ = neuron(torch.randn(2, 3), None)
        assert activity.spikes.isfinite().all()


@pytest.mark.parametrize("kind", [bsnn.IF, bsnn.ParametricLIF])
def test_what_is_deployed_as_lif_behaves_as_that(kind: type) -> None:
    neuron = kind(threshold=0.8)
    lowered = neuron.lowered_as()
    assert type(lowered) is bsnn.LIF
    currents = torch.randn(5, 4, 3)
    state, other = None, None
    for current in currents:
        activity, state = neuron(current, state)
        expected, other = lowered(current, other)
        assert torch.equal(activity.spikes, expected.spikes)
        torch.testing.assert_close(state.membrane, other.membrane)


@pytest.mark.parametrize("name", neurons._NEURONS)
def test_the_registry_finds_every_neuron(name: str) -> None:
    assert bsnn.neuron_named(name)(threshold=0.5).threshold == pytest.approx(0.5)
    assert {bsnn.neuron_named(name) for name in neurons._NEURONS} == set(KINDS)


def test_a_neuron_of_the_users_own_is_found_by_module_and_name() -> None:
    assert bsnn.neuron_named(f"{__name__}:OwnHardReset").__name__ == "OwnHardReset"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("gradient", ["ottt", "sltt", "bptt"])
@pytest.mark.parametrize("kind", KINDS)
def test_in_half_precision_the_state_is_single_and_spikes_are_half(
    kind: type[bsnn.Neuron], gradient: str, dtype: torch.dtype
) -> None:
    single, half, states = kind(gradient=gradient), kind(gradient=gradient).to(dtype), [None, None]
    for current in torch.randn(4, 3, 5).to(dtype):
        expected, states[0] = single(current.float(), states[0])
        activity, states[1] = half(current.requires_grad_(), states[1])
        assert activity.spikes.dtype == dtype
        assert activity.trace is None or activity.trace.dtype == torch.float32
        assert all(part is None or part.dtype == torch.float32 for part in states[1])
        assert torch.equal(activity.spikes.float(), expected.spikes)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_order_is_kept(kind: type[bsnn.Neuron]) -> None:
    neuron, state = kind(), None
    for current in torch.randn(3, 2, 4, 5, 6):
        current = current.contiguous(memory_format=torch.channels_last)
        activity, state = neuron(current, state)
        for part in (*activity, *state):
            assert part.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gradient", ["ottt", "sltt"])
def test_a_state_is_a_value_without_a_graph(kind: type[bsnn.Neuron], gradient: str) -> None:
    neuron, current = kind(gradient=gradient), torch.rand(2, 3, requires_grad=True)
    _, state = neuron(current, None)
    kept = bsnn.map_state(Tensor.clone, state)
    first, after = neuron(current, state)
    second, _ = neuron(current, state)
    assert torch.equal(first.spikes, second.spikes)
    for part, before in zip(state, kept, strict=True):
        assert part is None or torch.equal(part, before)
    assert not any(part.requires_grad for part in after if part is not None)
    assert (after.trace is None) == (gradient == "sltt")


def test_autocast_and_a_learned_neuron() -> None:
    net = bsnn.Sequential(nn.Linear(4, 6), bsnn.ParametricLIF(), nn.Linear(6, 2))
    state = None
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, state = net(torch.randn(3, 4), state)
        logits.float().sum().backward()
    assert state[0].membrane.dtype == torch.float32
    assert all(p.grad is not None and math.isfinite(float(p.grad)) for p in net[1].parameters())


def test_the_module_of_surrogates_shows_only_its_own_names() -> None:
    assert dir(bsnn.surrogate) == ["Arctan", "Rectangle", "Sigmoid", "Surrogate", "Triangle", "named", "spike"]


def test_a_neuron_that_does_not_fire_is_refused() -> None:
    class Silent(bsnn.Neuron):
        pass

    with pytest.raises(bsnn.UserError, match="Silent does not fire; override `fire`"):
        Silent()
