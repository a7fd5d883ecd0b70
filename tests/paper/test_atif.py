"""ATIF's equations against hand-computed values and autograd."""

import pytest
import torch

import bsnn
from bsnn.nn.compared import TrainableThresholdIF
from bsnn.nn.surrogate import Sigmoid
from bsnn.paper import atif


def neuron(theta: float) -> TrainableThresholdIF:
    made = TrainableThresholdIF(Sigmoid(alpha=1.0), "bptt-full").double()
    with torch.no_grad():
        made.theta.fill_(theta)
    return made


def network(width: float) -> bsnn.Sequential:
    made = TrainableThresholdIF(gradient="bptt-full")
    return atif.network("real", num_classes=35, in_channels=1, width=width, neuron=made)


def test_a_trajectory() -> None:
    made, state, sent, membranes = neuron(0.8), None, [], []
    for current in (0.5, 0.5, 1.9, -0.3):
        activity, state = made(torch.tensor([[current]]).double(), state)
        sent.append(activity.spikes.item())
        membranes.append(state.membrane.item())
    # 0.5; 1.0 fires, 0.2 left; 2.1 fires once, 1.3 left; 1.0 fires, 0.2 left.
    assert sent == pytest.approx([0, 0.8, 0.8, 0.8])
    assert membranes == pytest.approx([0.5, 0.2, 1.3, 0.2])


def test_gradients_are_those_of_the_formula() -> None:
    """Autograd of the neuron written out with a spike whose derivative is the surrogate's, reset and all."""
    currents = torch.tensor([[0.5], [0.5], [1.9], [-0.3]], dtype=torch.float64)

    def soft(x: torch.Tensor) -> torch.Tensor:
        smooth = torch.sigmoid(x)
        return smooth + ((x >= 0).double() - smooth).detach()

    theta = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    inputs = currents.clone().requires_grad_()
    v, total = torch.zeros(1, dtype=torch.float64), 0.0
    for t, current in enumerate(inputs):
        v = v + current
        z = soft(v - theta)
        v = v - z * theta
        total = total + (t + 1) * (z * theta).sum()
    expected = torch.autograd.grad(total, [theta, inputs])

    made, state, total = neuron(0.8), None, 0.0
    inputs = currents.clone().requires_grad_()
    for t, current in enumerate(inputs):
        activity, state = made(current[None], state)
        total = total + (t + 1) * activity.spikes.sum()
    torch.testing.assert_close(torch.autograd.grad(total, [made.theta, inputs]), expected)


def test_each_layer_begins_at_a_threshold_of_its_own() -> None:
    net = network(0.125)
    thetas = [m.theta.item() for m in net.modules() if isinstance(m, TrainableThresholdIF)]
    assert len(thetas) == len(set(thetas)) == 17
    assert all(0.8 <= theta <= 1 for theta in thetas)


def test_a_firing_rate_counts_spikes_of_any_size() -> None:
    made = bsnn.Sequential(neuron(0.8))
    with bsnn.counting_spikes(made) as rates:
        made(torch.tensor([[1.0, 0.0, 1.0, 0.0]]).double(), None)
    assert rates.by_layer() == {"0": 0.5}


def test_the_size_is_that_of_table_5() -> None:
    net = network(1.0)
    assert bsnn.model_size(net).stored_bytes / 1e6 == pytest.approx(44.743, abs=5e-4)
