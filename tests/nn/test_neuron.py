import math

import pytest
import torch
from torch import nn

import bsnn
from bsnn.nn import surrogate
from bsnn.nn.neuron import LIF, LIFState, lif_step
from bsnn.nn.surrogate import Arctan, Rectangle, Sigmoid, Triangle, spike
from bsnn.nn.trace import NDOT, Activity


def test_pinned_trajectory_with_soft_reset() -> None:
    # λ = 0.5, V = 1, by hand: u = 0.6 | 0.3+0.8=1.1 fires, 0.1 left | 0.05+0.2=0.25 | 0.125+2.0=2.125, 1.125 left
    # | 0.5625+0.4375=1.0 fires at equality, 0 left | 0−0.5=−0.5
    currents = [0.6, 0.8, 0.2, 2.0, 0.4375, -0.5]
    expected = [(0, 0.6), (1, 0.1), (0, 0.25), (1, 1.125), (1, 0.0), (0, -0.5)]
    membrane = torch.zeros(1, dtype=torch.float64)
    for current, (fired, left) in zip(currents, expected, strict=True):
        spikes, membrane = lif_step(
            torch.tensor([current], dtype=torch.float64), membrane, leak=0.5, threshold=1.0, surrogate=Sigmoid()
        )
        assert spikes.item() == fired
        assert membrane.item() == pytest.approx(left, abs=1e-15)


def test_pinned_trajectory_with_another_leak_and_threshold() -> None:
    # λ = 0.25, V = 0.5: u = 0.75 fires, 0.25 left | 0.0625+0.5=0.5625 fires, 0.0625 left | 0.015625+0.25 stays
    lif, state = LIF(leak=0.25, threshold=0.5), None
    results = []
    for current in (0.75, 0.5, 0.25):
        activity, state = lif(torch.tensor([current]), state)
        results.append((activity.spikes.item(), state.membrane.item(), activity.trace.item()))
    assert results == [(1, 0.25, 1), (1, 0.0625, 1.25), (0, 0.265625, 0.3125)]


def test_pinned_ottt_trace() -> None:
    lif, state = LIF(), None
    traces = []
    for current in (2.0, 0.0, 2.0, 2.0, 0.0):
        activity, state = lif(torch.tensor([[current]]), state)
        assert activity.trace is not None
        traces.append(activity.trace.item())
    # u = 2, 0.5, 2.25, 2.625, 0.8125: spikes 1 0 1 1 0, each halved at the next step
    assert traces == [1.0, 0.5, 1.25, 1.625, 0.8125]


def test_pinned_ndot_trace() -> None:
    rule = NDOT(clamp=False)
    lif, state = LIF(gradient=rule), None
    # u = 0.4, 0.2+0.9=1.1 → 0.1 left, 0.05+1.0=1.05 → 0.05 left; μ = –, 0.25, 0.5; â = 0, 1, 0.5·1+1
    traces = []
    for current in (0.4, 0.9, 1.0):
        activity, state = lif(torch.tensor([[current]], dtype=torch.float64), state)
        assert activity.trace is not None
        traces.append(activity.trace.item())
    assert traces == pytest.approx([0.0, 1.0, 1.5])


def test_ndot_ratio_is_the_papers_safe_at_zero_and_clamped() -> None:
    membrane = torch.tensor([0.3, 0.3, -0.3, 0.3, 0.0])
    previous = torch.tensor([0.6, 0.1, 0.1, 0.0, 0.0])
    free = NDOT(clamp=False)
    torch.testing.assert_close(free.ratio(membrane, previous, 0.5), torch.tensor([0.5, 3.0, -3.0, 0.5, 0.5]))
    clamped = NDOT()
    torch.testing.assert_close(clamped.ratio(membrane, previous, 0.5), torch.tensor([0.5, 0.5, -0.5, 0.5, 0.5]))
    assert clamped.saturation == pytest.approx(2 / 3)
    assert NDOT().saturation == 0.0


@pytest.mark.parametrize("rule", [Sigmoid(), Rectangle(), Triangle(), Arctan()], ids=lambda r: type(r).__name__)
def test_surrogates_are_densities(rule: surrogate.Surrogate) -> None:
    x = torch.linspace(-200, 200, 4_000_001, dtype=torch.float64)
    area = torch.trapezoid(rule.derivative(x), x)
    assert area.item() == pytest.approx(1.0, abs=2e-3)
    torch.testing.assert_close(rule.derivative(x), rule.derivative(-x), atol=1e-12, rtol=0.0)


@pytest.mark.parametrize(
    ("rule", "smooth"),
    [
        (Sigmoid(4.0), lambda x: torch.sigmoid(4.0 * x)),
        (Arctan(2.0), lambda x: torch.arctan(math.pi / 2 * 2.0 * x) / math.pi + 0.5),
        (Triangle(1.0), lambda x: torch.where(x < 0, (1 + x) ** 2 / 2, 1 - (1 - x) ** 2 / 2)),
        (Rectangle(2.0), lambda x: (x + 1) / 2),
    ],
)
def test_surrogate_derivatives_against_finite_differences(rule: surrogate.Surrogate, smooth) -> None:
    x = torch.tensor([-0.7, -0.2, 0.1, 0.6], dtype=torch.float64)
    step = 1e-6
    numeric = (smooth(x + step) - smooth(x - step)) / (2 * step)
    torch.testing.assert_close(rule.derivative(x), numeric, atol=1e-8, rtol=1e-6)


def test_spike_backward_is_the_surrogate() -> None:
    x = torch.tensor([-0.5, 0.0, 0.3], requires_grad=True)
    spike(x, Triangle()).backward(torch.tensor([1.0, 2.0, 3.0]))
    torch.testing.assert_close(x.grad, torch.tensor([0.5, 2.0, 2.1]))


def test_state_is_a_value() -> None:
    lif = LIF()
    current = torch.rand(2, 3)
    _, state = lif(current, None)
    kept = state.membrane.clone()
    first, _ = lif(current, state)
    second, _ = lif(current, state)
    assert torch.equal(first.spikes, second.spikes)
    assert torch.equal(state.membrane, kept)
    assert not list(lif.state_dict())


@pytest.mark.parametrize("gradient", ["ottt", "ndot", "sltt"])
def test_online_state_carries_no_graph(gradient) -> None:
    activity, state = LIF(gradient=gradient)(torch.rand(2, 3, requires_grad=True), None)
    assert activity.spikes.requires_grad
    assert not state.membrane.requires_grad
    assert (state.trace is None) == (gradient == "sltt")
    assert state.trace is None or not state.trace.requires_grad


def test_bptt_state_carries_its_graph() -> None:
    _, state = LIF(gradient="bptt")(torch.rand(2, 3, requires_grad=True), None)
    assert state.membrane.requires_grad


def test_initial_state_is_zeros_and_changes_nothing() -> None:
    net = bsnn.models.vgg((4, "pool", 4), in_channels=1).train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with bsnn.counting_spikes(net) as rates:
        state = net.initial_state(torch.randn(3, 1, 8, 8))
    assert rates.by_layer() == {}
    assert [tuple(s.membrane.shape) for s in state] == [(3, 4, 8, 8), (3, 4, 4, 4)]
    assert not any(s.membrane.any() or s.trace.any() for s in state)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(module.training for module in net.modules())


def test_state_of_another_batch_size_type_or_rule_is_refused() -> None:
    net = bsnn.models.vgg((4, 4), in_channels=1)
    with pytest.raises(bsnn.UserError, match=r"shape \(2, 4, 8, 8\).*expected one for shape \(3, 4, 8, 8\)"):
        net(torch.randn(3, 1, 8, 8), net.initial_state(torch.randn(2, 1, 8, 8)))
    lif = LIF()
    with pytest.raises(bsnn.UserError, match="float64"):
        lif(torch.zeros(1), LIFState(torch.zeros(1).double(), torch.zeros(1).double()))
    with pytest.raises(bsnn.UserError, match="on meta"):
        lif(torch.zeros(1), LIFState(torch.zeros(1, device="meta"), torch.zeros(1, device="meta")))
    with pytest.raises(bsnn.UserError, match=r"shape \(2,\).*expected one for shape \(1,\)"):
        lif(torch.zeros(1), LIFState(torch.zeros(1), torch.zeros(2)))
    with pytest.raises(bsnn.UserError, match="without a trace"):
        lif(torch.zeros(1), LIFState(torch.zeros(1), None))
    with pytest.raises(bsnn.UserError, match="with a trace"):
        LIF(gradient="sltt")(torch.zeros(1), LIFState(torch.zeros(1), torch.zeros(1)))
    with pytest.raises(bsnn.UserError, match="1 stateful layers; this ImageNetwork has 2"):
        net(torch.randn(3, 1, 8, 8), (None,))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"leak": 1.5}, "leak=1.5"),
        ({"leak": math.nan}, "leak=nan"),
        ({"threshold": 0.0}, "threshold=0.0"),
        ({"gradient": "rtrl"}, "expected one of ottt, ndot, sltt, bptt"),
    ],
)
def test_bad_constants_are_refused(arguments, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        LIF(**arguments)


def test_activity_maps_and_joins_both_parts() -> None:
    activity = Activity(torch.ones(1, 2, 4, 4), torch.full((1, 2, 4, 4), 3.0))
    pooled = activity.map(nn.AvgPool2d(2))
    assert pooled.trace is not None
    assert pooled.trace.shape == (1, 2, 2, 2)
    with pytest.raises(bsnn.UserError, match="some activities have a trace"):
        Activity.join(torch.cat, [activity, Activity(activity.spikes, None)])


@pytest.mark.parametrize(("settings", "through_reset"), [({}, 0.0), ({"detach_reset": False}, 1.0)])
def test_the_reset_passes_no_gradient_on_unless_asked_to(settings: dict, through_reset: float) -> None:
    current = torch.tensor([1.2], dtype=torch.float64, requires_grad=True)
    _, membrane = lif_step(current, torch.zeros(1), leak=0.5, threshold=0.7, surrogate=Sigmoid(), **settings)
    membrane.sum().backward()
    slope = Sigmoid().derivative(torch.tensor([0.5], dtype=torch.float64))
    torch.testing.assert_close(current.grad, 1 - through_reset * 0.7 * slope)
