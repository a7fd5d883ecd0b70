"""Online gradients against autograd, in float64, under exactly the conditions that make them equal.

The oracle is one graph over all time steps made of ordinary operations (`reference.lif_network_loss`), itself
checked against finite differences. `carried` says what ∂u[t]/∂u[t−1] of a layer is in its gradient: where a method
drops or changes those terms, doing so in the oracle gives equality, which names exactly what was dropped.
"""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from reference import lif_network_loss, soft_spike
from torch import Tensor, nn
from torch.nn import functional as F

import bsnn
from bsnn.nn.trace import RuleName

T = 5
EXACT = {"rtol": 1e-10, "atol": 1e-12}
LEAK = 0.5
KEPT, CUT = LEAK, 0.0


def squared(outputs: Tensor) -> Tensor:
    return (outputs**2).sum()


def chain(
    rule: RuleName, leaks: Sequence[float] = (LEAK, LEAK, LEAK), norm: bool = False, threshold: float = 1.0
) -> bsnn.Sequential:
    """A convolution on raw input, then two binary layers: one behind pooling, the last one linear."""
    torch.manual_seed(1)
    layers: dict[str, nn.Module] = {
        "conv1": bsnn.TracedConv2d(2, 4, 3, padding=1, weights="real"),
        "lif1": bsnn.LIF(leaks[0], threshold, gradient=rule),
        "pool": nn.AvgPool2d(2),
        "conv2": bsnn.BinaryConv2d(4, 5, 3, padding=1),
        "norm": bsnn.BatchNorm2d(5) if norm else nn.Identity(),
        "lif2": bsnn.LIF(leaks[1], threshold, gradient=rule),
        "flatten": nn.Flatten(),
        "linear": bsnn.BinaryLinear(20, 6),
        "lif3": bsnn.LIF(leaks[2], threshold, gradient=rule),
        "head": nn.Linear(6, 3),
    }
    net = bsnn.Sequential(layers).double()
    with torch.no_grad():
        net.head.weight.normal_()
        net.head.bias.normal_()
        net.conv1.weight.mul_(2.0)
    return net


def frames() -> Tensor:
    return torch.randn(T, 3, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def gradients(net: bsnn.Sequential, inputs: Tensor, loss=squared) -> dict[str, Tensor]:
    """Accumulated over the sequence with fixed weights: backward at each step, or once for BPTT."""
    state, total = None, inputs.new_zeros(())
    keeps_graph = net.lif1.gradient.keeps_graph
    for x in inputs:
        outputs, state = net(x, state)
        if keeps_graph:
            total = total + loss(outputs)
        else:
            loss(outputs).backward()
    if keeps_graph:
        total.backward()
    return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


def oracle(
    net: bsnn.Sequential, inputs: Tensor, carried: Sequence[float], loss: Callable[[Tensor], Tensor] = squared
) -> dict[str, Tensor]:
    """Gradients of the same network by ordinary autograd on dense weights."""
    dense = {
        name: (bsnn.signs(p) if isinstance(p, bsnn.BinaryParameter) else p).detach().clone().requires_grad_()
        for name, p in net.named_parameters()
    }

    def second(x: Tensor) -> Tensor:
        current = F.conv2d(F.avg_pool2d(x, 2), dense["conv2.weight"], padding=1)
        if not isinstance(net.norm, nn.Identity):
            norm = (net.norm.running_mean, net.norm.running_var, dense["norm.weight"], dense["norm.bias"])
            current = F.batch_norm(current, *(v.clone() for v in norm), training=net.norm.training)
        return current

    total = lif_network_loss(
        inputs,
        layers=[
            lambda x: F.conv2d(x, dense["conv1.weight"], padding=1),
            second,
            lambda x: F.linear(x.flatten(1), dense["linear.weight"]),
        ],
        leaks=[net.lif1.leak, net.lif2.leak, net.lif3.leak],
        readout=lambda x: F.linear(x, dense["head.weight"], dense["head.bias"]),
        step_loss=loss,
        carried=carried,
        threshold=net.lif1.threshold,
    )
    total.backward()
    return {name: value.grad for name, value in dense.items() if value.grad is not None}


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def test_the_oracle_against_finite_differences() -> None:
    # Smooth neurons without reset, so that a difference quotient exists.
    weights = [torch.randn(4, 3), torch.randn(3, 4), torch.randn(2, 3)]
    inputs = torch.randn(3, 2, 3, dtype=torch.float64)

    def total(first: Tensor, second: Tensor, head: Tensor) -> Tensor:
        return lif_network_loss(
            inputs,
            layers=[lambda x: F.linear(x, first), lambda x: F.linear(x, second)],
            leaks=(0.5, 0.7),
            readout=lambda x: F.linear(x, head),
            step_loss=squared,
            carried=(0.5, 0.7),
            spike=lambda x: torch.sigmoid(4 * x),
            reset=False,
        )

    assert torch.autograd.gradcheck(total, tuple(w.double().requires_grad_() for w in weights))


def test_bptt_equals_autograd() -> None:
    net = chain("bptt")
    actual, expected = gradients(net, frames()), oracle(net, frames(), (KEPT, KEPT, KEPT))
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, **EXACT)


def test_sltt_equals_autograd_with_every_carry_cut_at_any_depth() -> None:
    net = chain("sltt")
    actual, expected = gradients(net, frames()), oracle(net, frames(), (CUT, CUT, CUT))
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, **EXACT)


@pytest.mark.parametrize("rule", ["ottt", "ndot"])
def test_the_head_is_exact(rule: RuleName) -> None:
    net = chain(rule)
    actual, expected = gradients(net, frames()), oracle(net, frames(), (KEPT, KEPT, KEPT))
    for name in ("head.weight", "head.bias"):
        torch.testing.assert_close(actual[name], expected[name], **EXACT)


def test_ottt_equals_bptt_in_the_last_spiking_layer() -> None:
    net = chain("ottt")
    actual, expected = gradients(net, frames()), oracle(net, frames(), (KEPT, KEPT, KEPT))
    torch.testing.assert_close(actual["linear.weight"], expected["linear.weight"], **EXACT)


def test_ottt_equals_bptt_in_an_earlier_layer_when_nothing_is_carried_downstream() -> None:
    net = chain("ottt", leaks=(LEAK, LEAK, 0.0))
    actual, expected = gradients(net, frames()), oracle(net, frames(), (KEPT, KEPT, 0.0))
    torch.testing.assert_close(actual["conv2.weight"], expected["conv2.weight"], **EXACT)


def test_ottt_drops_the_carry_of_later_layers_and_nothing_else() -> None:
    net = chain("ottt")
    actual = gradients(net, frames())["conv2.weight"]
    full = oracle(net, frames(), (KEPT, KEPT, KEPT))["conv2.weight"]
    without = oracle(net, frames(), (KEPT, KEPT, CUT))["conv2.weight"]
    torch.testing.assert_close(actual, without, **EXACT)
    assert relative_error(actual, full) > 1e-3


def test_the_first_layer_on_raw_input_also_drops_its_own_carry() -> None:
    net = chain("ottt")
    actual = gradients(net, frames())["conv1.weight"]
    torch.testing.assert_close(actual, oracle(net, frames(), (CUT, CUT, CUT))["conv1.weight"], **EXACT)
    assert relative_error(actual, oracle(net, frames(), (KEPT, CUT, CUT))["conv1.weight"]) > 1e-3


@pytest.mark.parametrize(("leak", "threshold"), [(0.9, 1.0), (0.5, 1.3), (0.25, 0.6)])
def test_the_equalities_hold_for_any_leak_and_threshold(leak: float, threshold: float) -> None:
    net = chain("ottt", (leak, leak, leak), threshold=threshold)
    actual, expected = gradients(net, frames()), oracle(net, frames(), (leak, leak, leak))
    torch.testing.assert_close(actual["linear.weight"], expected["linear.weight"], **EXACT)
    net = chain("sltt", (leak, leak, leak), threshold=threshold)
    actual, expected = gradients(net, frames()), oracle(net, frames(), (CUT, CUT, CUT))
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, **EXACT)


def test_a_trace_leaks_as_its_own_neuron_and_not_as_the_one_it_reaches() -> None:
    # Dropped: the difference of the two leaks. The oracle with the sender's leak in the receiver's gradient equals.
    net = chain("ottt", leaks=(LEAK, LEAK, 0.9))
    actual = gradients(net, frames())["linear.weight"]
    torch.testing.assert_close(actual, oracle(net, frames(), (KEPT, KEPT, LEAK))["linear.weight"], **EXACT)
    assert relative_error(actual, oracle(net, frames(), (KEPT, KEPT, 0.9))["linear.weight"]) > 1e-3


def test_batchnorm_with_fixed_statistics_keeps_the_equality() -> None:
    net = chain("ottt", leaks=(LEAK, LEAK, 0.0), norm=True)
    net.norm.running_mean.normal_()
    net.norm.running_var.uniform_(0.5, 2.0)
    net.eval()
    actual, expected = gradients(net, frames()), oracle(net, frames(), (KEPT, KEPT, 0.0))
    torch.testing.assert_close(actual["conv2.weight"], expected["conv2.weight"], **EXACT)


def test_batchnorm_in_training_normalizes_the_past_as_the_present() -> None:
    # Dropped: the normalization of each past step. The gradient is that of the present one applied to the trace.
    net = chain("ottt", leaks=(LEAK, LEAK, 0.0), norm=True)
    exact = oracle(net, frames(), (KEPT, KEPT, 0.0))["conv2.weight"]
    weight = bsnn.signs(net.conv2.weight).requires_grad_()
    state, linear = None, bsnn.signs(net.linear.weight)
    for x in frames():
        with torch.no_grad():
            _, new = net(x, state)
        spikes, trace = (F.avg_pool2d(part, 2) for part in (recover_spikes(net, x, state), new[0].trace))
        current = F.conv2d(spikes, weight.detach(), padding=1)
        through = F.conv2d(trace, weight, padding=1)
        normal = F.batch_norm(current + (through - through.detach()), None, None, training=True)
        past = 0.0 if state is None else LEAK * state[1].membrane
        hidden = soft_spike(normal + past - 1.0)
        outputs = F.linear(soft_spike(F.linear(hidden.flatten(1), linear) - 1.0), net.head.weight, net.head.bias)
        squared(outputs).backward()
        state = new
    net.zero_grad()
    actual = gradients(net, frames())["conv2.weight"]
    torch.testing.assert_close(actual, weight.grad, **EXACT)
    assert relative_error(actual, exact) > 1e-3


def recover_spikes(net: bsnn.Sequential, x: Tensor, state) -> Tensor:
    """The spikes of the first layer at a step from a given state."""
    current = F.conv2d(x, net.conv1.weight.detach(), padding=1)
    return (current + (0.0 if state is None else LEAK * state[0].membrane) >= 1.0).double()


@pytest.mark.filterwarnings("ignore::bsnn.BackendWarning")
def test_ndot_sums_the_present_gradient_times_its_own_trace() -> None:
    # ζ[t] is that of SLTT, exact for the present step; the trace follows the paper's ratio, written out in full.
    net = chain("ndot")
    state, trace, expected = None, None, torch.zeros(6, 20, dtype=torch.float64)
    zetas, spikes = [], []
    net.linear.register_forward_hook(lambda _module, _inputs, current: current.register_hook(zetas.append) and None)
    net.lif2.register_forward_hook(lambda _module, _inputs, output: spikes.append(output[0].spikes.detach()))
    for x in frames():
        previous = None if state is None else state[1].membrane
        outputs, new = net(x, state)
        squared(outputs).backward()
        membrane = new[1].membrane
        if previous is None:
            ratio = torch.full_like(membrane, LEAK)
            trace = torch.zeros_like(membrane)
        else:
            safe = torch.where(previous == 0, 1.0, previous)
            ratio = torch.where(previous == 0, LEAK, (membrane / safe).clamp(-LEAK, LEAK))
        trace = ratio * trace + spikes[-1]
        expected += zetas[-1].T @ trace.flatten(1)
        state = new
    torch.testing.assert_close(net.linear.weight.grad, expected, **EXACT)


@pytest.mark.parametrize("rule", ["ottt", "ndot", "sltt", "bptt"])
def test_all_rules_equal_bptt_at_one_time_step_batchnorm_included(rule: RuleName) -> None:
    net = chain(rule, norm=True)
    expected = oracle(net, frames()[:1], (KEPT, KEPT, KEPT))
    actual = gradients(net, frames()[:1])
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, **EXACT)


class SummedOutputs:
    """A loss on the outputs summed so far; `forget` cuts the past out of its gradient."""

    def __init__(self, forget: bool) -> None:
        self.past: Tensor | float = 0.0
        self.forget = forget

    def __call__(self, outputs: Tensor) -> Tensor:
        self.past = self.past + outputs
        loss = squared(self.past)
        if self.forget:
            self.past = self.past.detach()
        return loss


def test_a_loss_on_summed_outputs_is_not_a_sum_of_losses() -> None:
    # Dropped: the dependence of later losses on the present output.
    net = chain("ottt")
    actual = gradients(net, frames(), SummedOutputs(forget=True))["linear.weight"]
    carried = (KEPT, KEPT, KEPT)
    forgetful = oracle(net, frames(), carried, SummedOutputs(forget=True))["linear.weight"]
    torch.testing.assert_close(actual, forgetful, **EXACT)
    assert relative_error(actual, oracle(net, frames(), carried, SummedOutputs(forget=False))["linear.weight"]) > 1e-3


def test_a_carried_state_brings_the_trace_of_what_entered_before() -> None:
    # Equal to BPTT over the whole sequence with no loss at its first step; a state cut there would drop that.
    net = chain("ottt")
    with torch.no_grad():
        _, state = net(frames()[0], None)
    for x in frames()[1:]:
        outputs, state = net(x, state)
        squared(outputs).backward()
    weights = iter([0.0] + [1.0] * (T - 1))
    whole = oracle(net, frames(), (KEPT, KEPT, KEPT), lambda outputs: next(weights) * squared(outputs))
    torch.testing.assert_close(net.linear.weight.grad, whole["linear.weight"], **EXACT)
    from_cut = oracle(net, frames()[1:], (KEPT, KEPT, KEPT))["linear.weight"]
    assert relative_error(net.linear.weight.grad, from_cut) > 1e-3


@pytest.mark.parametrize("weights", ["binary", "latent", "real"])
def test_the_weight_gradient_comes_from_the_trace(weights) -> None:
    make = partial(bsnn.TracedConv2d, 2, 3, 3, stride=2, padding=1, weights=weights)
    layer = make().double()
    spikes = (torch.rand(2, 2, 5, 5) < 0.5).double().requires_grad_()
    trace, upstream = torch.rand(2, 2, 5, 5).double(), torch.randn(2, 3, 3, 3).double()
    layer(bsnn.Activity(spikes, trace)).backward(upstream)

    values = bsnn.signs(layer.weight) if weights == "binary" else layer.weight.detach()
    dense = (values.sign() if weights == "latent" else values).clone().requires_grad_()
    F.conv2d(trace, dense, stride=2, padding=1).backward(upstream)
    passes = values.abs() <= 1 if weights == "latent" else torch.ones_like(values)
    assert layer.weight.grad is not None
    assert dense.grad is not None
    torch.testing.assert_close(layer.weight.grad, dense.grad * passes, **EXACT)

    plain = spikes.detach().clone().requires_grad_()
    F.conv2d(plain, dense.detach(), stride=2, padding=1).backward(upstream)
    torch.testing.assert_close(spikes.grad, plain.grad, **EXACT)
