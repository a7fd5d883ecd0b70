"""Q-SNN's equations, by hand-computed values."""

import dataclasses
import math

import pytest
import torch

from bsnn.nn.binarized import ScaledSignConv2d, scaled_sign
from bsnn.nn.compared import EightBitLIF, eight_bits
from bsnn.nn.surrogate import Triangle
from bsnn.paper import qsnn
from bsnn.paper.recipes import recipe


def test_weights_are_signs_times_a_power_of_two() -> None:
    weight = torch.tensor([[3.0, -3.0, 1.0, -1.0], [0.0, 0.0, 0.0, 8.0]])
    # ŵ of channel 1: deviation √(20/3) = 2.582, mean|ŵ| = 2/2.582 = 0.775 → 2^round(−0.37) = 1.
    # Channel 2: mean 2, deviation 4; |ŵ| = ½, ½, ½, 1½, mean ¾ → 2^round(−0.415) = 1.
    found = scaled_sign(weight, torch.tensor(1.0))
    assert found.tolist() == [[1, -1, 1, -1], [-1, -1, -1, 1]]
    # One weight of 32 carries all, so the mean of |ŵ| is small.
    sparse = torch.zeros(1, 32)
    sparse[0, 0] = 1.0
    mean, deviation = 1 / 32, math.sqrt(((1 - 1 / 32) ** 2 + 31 / 32**2) / 31)
    magnitude = (31 * mean + (1 - mean)) / deviation / 32
    assert 0.25 < magnitude < 0.5
    assert scaled_sign(sparse, torch.tensor(1.0)).abs().unique().tolist() == [2.0 ** round(math.log2(magnitude))]


@pytest.mark.parametrize(("t", "k"), [(0.1, 10.0), (1.0, 1.0), (10.0, 1.0)])
def test_the_gradient_of_the_sign(t: float, k: float) -> None:
    weight = torch.tensor([[3.0, -1.0, 2.0, -5.0]], dtype=torch.float64, requires_grad=True)
    output_gradient = torch.tensor([[1.0, 2.0, -1.0, 0.5]], dtype=torch.float64)
    scaled_sign(weight, torch.tensor(t)).backward(output_gradient)
    # By autograd of the standardization alone, with the sign's derivative put in by hand.
    w = weight.detach().clone().requires_grad_()
    normal = (w - w.mean()) / w.std()
    soft = k * t * (1 - torch.tanh(t * normal.detach()) ** 2)
    (normal * soft * output_gradient).sum().backward()
    scale = 2.0 ** round(math.log2(float(normal.detach().abs().mean())))
    torch.testing.assert_close(weight.grad, scale * w.grad)


def test_the_temperature_rises_by_equal_factors() -> None:
    found = [qsnn.temperature_at(epoch, 300) for epoch in range(300)]
    assert found[0] == pytest.approx(0.1)
    assert found[-1] == pytest.approx(10)
    assert found[1] / found[0] == pytest.approx(found[299] / found[298])
    assert qsnn.temperature_at(0, 1) == 0.1


def test_membranes_have_eight_bits() -> None:
    x = torch.tensor([0.8, -0.4, 0.1, 0.0], requires_grad=True)
    found = eight_bits(x)
    # 127 · 0.4 / 0.8 = 63.5, to the even 64; 127 · 0.1 / 0.8 = 15.875 to 16.
    torch.testing.assert_close(found, torch.tensor([0.8, -0.8 * 64 / 127, 0.8 * 16 / 127, 0.0]))
    found.backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert x.grad.tolist() == [1, 2, 3, 4]
    assert eight_bits(torch.zeros(2)).tolist() == [0, 0]


def test_a_trajectory() -> None:
    neuron, state, spikes = EightBitLIF(0.5, 1.0, Triangle(), "bptt-full"), None, []
    membranes = []
    for current in ([1.0, 0.5], [0.7, 0.9], [0.2, 2.0]):
        activity, state = neuron(torch.tensor([current]), state)
        spikes.append(activity.spikes[0].tolist())
        membranes.append(state.membrane[0].tolist())
    # t = 1: u = 1, 0.5, none strictly above 1; m = tanh u, with α = tanh 1.
    a = math.tanh(1.0)
    first = [a, a * round(127 * math.tanh(0.5) / a) / 127]
    # t = 2: u = 0.5 · m + I = 1.081, 1.131: both fire, and are reset to 0.
    assert membranes[0] == pytest.approx(first)
    assert spikes == [[0, 0], [1, 1], [0, 1]]
    assert membranes[1] == [0, 0]
    assert membranes[2] == pytest.approx([math.tanh(0.2), 0])
    assert state.fired.tolist() == [[1, 2]]


def test_the_reset_and_the_surrogate_are_in_the_gradient() -> None:
    current = torch.tensor([[0.6]], requires_grad=True)
    neuron = EightBitLIF(0.5, 1.0, Triangle(), "bptt-full")
    activity, state = neuron(current, None)
    (found,) = torch.autograd.grad(activity.spikes.sum(), current, retain_graph=True)
    assert found.item() == pytest.approx(1 - 0.4)  # the triangle at −0.4
    # m = tanh(u (1 − s)): ∂m/∂u = (1 − tanh² u) (1 − u ∂s/∂u), s being 0.
    (found,) = torch.autograd.grad(state.membrane.sum(), current)
    assert found.item() == pytest.approx((1 - math.tanh(0.6) ** 2) * (1 - 0.6 * 0.6))


def test_rates_are_regulated_to_one_half() -> None:
    config = recipe("cifar10-qsnn-small")
    neuron = EightBitLIF(0.5, 1.0, Triangle(), "bptt-full")
    torch.manual_seed(0)
    net = qsnn.network((4, "pool", 8, 8), neuron=neuron)
    _, state = net.sequence([torch.randn(2, 3, 8, 8)] * config.time_steps, None)
    method = qsnn.QSNN(net, config)
    rates = [layer.fired.mean().item() / 2 for layer in state[1:]]  # T = 2, and not of the first layer
    assert len(rates) == 2
    penalty = method.penalty(state)
    assert float(penalty.detach()) == pytest.approx(5e-3 * sum((rate - 0.5) ** 2 for rate in rates) / 2)
    penalty.backward()
    assert net.conv2.weight.grad.abs().sum() > 0


def test_only_inner_convolutions_are_binary() -> None:
    net = qsnn.network((4, "pool", 8, 8), neuron=EightBitLIF(gradient="bptt"))
    kinds = {name: type(module) for name, module in net.named_modules() if "conv" in name or name == "classifier"}
    assert [name for name, kind in kinds.items() if kind is ScaledSignConv2d] == ["conv2", "conv3"]


def test_a_residual_network_regulates_all_neurons_but_those_behind_the_stem() -> None:
    config = dataclasses.replace(recipe("cifar10-qsnn-small"), time_steps=1)
    torch.manual_seed(0)
    net = qsnn.residual_network((4, "down", 8, 8), neuron=EightBitLIF(0.5, 1.0, Triangle(), "bptt-full"))
    kinds = [type(module) for name, module in net.named_modules() if name.endswith("conv")]
    assert kinds == [ScaledSignConv2d, ScaledSignConv2d]
    _, state = net.sequence([torch.randn(2, 3, 8, 8)], None)
    _, ((second,), *_), last = state  # of the two blocks, and of the neurons behind them
    penalty = qsnn.QSNN(net, config).penalty(state)
    rates = [layer.fired.mean().item() for layer in (second, last)]
    assert float(penalty.detach()) == pytest.approx(5e-3 * sum((rate - 0.5) ** 2 for rate in rates) / 2)
