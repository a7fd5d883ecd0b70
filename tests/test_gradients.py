"""Online gradients against autograd, in float64, under exactly the conditions that make them equal.

The oracle is one graph over all time steps made of ordinary operations (`reference.lif_network_loss`), itself
checked against finite differences. `detach_carry` cuts ∂u[t]/∂u[t−1] of a layer: where a method drops those
terms, cutting them in the oracle gives equality, which names exactly what was dropped.
"""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from reference import lif_network_loss
from torch import Tensor, nn
from torch.nn import functional as F

import bso
from bso.trace import RuleName

T = 5
EXACT = {"rtol": 1e-10, "atol": 1e-12}
KEPT, CUT = False, True


def squared(outputs: Tensor) -> Tensor:
    return (outputs**2).sum()


def chain(rule: RuleName, leaks: Sequence[float] = (0.5, 0.5, 0.5), norm: bool = False) -> bso.Sequential:
    """A convolution on raw input, then two binary layers: one behind pooling, the last one linear."""
    torch.manual_seed(1)
    layers: dict[str, nn.Module] = {
        "conv1": bso.TracedConv2d(2, 4, 3, padding=1, weights="real"),
        "lif1": bso.LIF(leaks[0], gradient=rule),
        "pool": nn.AvgPool2d(2),
        "conv2": bso.BinaryConv2d(4, 5, 3, padding=1),
        "norm": bso.BatchNorm2d(5) if norm else nn.Identity(),
        "lif2": bso.LIF(leaks[1], gradient=rule),
        "flatten": nn.Flatten(),
        "linear": bso.BinaryLinear(20, 6),
        "lif3": bso.LIF(leaks[2], gradient=rule),
        "head": nn.Linear(6, 3),
    }
    net = bso.Sequential(layers).double()
    with torch.no_grad():
        net.head.weight.normal_()
        net.head.bias.normal_()
        net.conv1.weight.mul_(2.0)
    return net


def frames() -> Tensor:
    return torch.randn(T, 3, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def gradients(net: bso.Sequential, inputs: Tensor, loss=squared) -> dict[str, Tensor]:
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


def oracle(net: bso.Sequential, inputs: Tensor, cut: Sequence[bool], leaks=(0.5, 0.5, 0.5)) -> dict[str, Tensor]:
    """Gradients of the same network by ordinary autograd on dense weights."""
    dense = {
        name: (bso.signs(p) if isinstance(p, bso.BinaryParameter) else p).detach().clone().requires_grad_()
        for name, p in net.named_parameters()
    }

    def second(x: Tensor) -> Tensor:
        current = F.conv2d(F.avg_pool2d(x, 2), dense["conv2.weight"], padding=1)
        if not isinstance(net.norm, nn.Identity):
            norm = (net.norm.running_mean, net.norm.running_var, dense["norm.weight"], dense["norm.bias"])
            current = F.batch_norm(current, *(v.clone() for v in norm), training=net.norm.training)
        return current

    loss = lif_network_loss(
        inputs,
        layers=[
            lambda x: F.conv2d(x, dense["conv1.weight"], padding=1),
            second,
            lambda x: F.linear(x.flatten(1), dense["linear.weight"]),
        ],
        leaks=leaks,
        readout=lambda x: F.linear(x, dense["head.weight"], dense["head.bias"]),
        step_loss=squared,
        detach_carry=cut,
    )
    loss.backward()
    return {name: value.grad for name, value in dense.items() if value.grad is not None}


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def test_the_oracle_against_finite_differences() -> None:
    weights = [torch.randn(4, 3), torch.randn(3, 4), torch.randn(2, 3)]
    weights = [w.double().requires_grad_() for w in weights]
    inputs = torch.randn(3, 2, 3, dtype=torch.float64)

    def total(*w: Tensor) -> Tensor:
        # Smooth neurons without reset, so that a difference quotient exists.
        membranes: list[Tensor] = [inputs.new_zeros(2, 4), inputs.new_zeros(2, 3)]
        result = inputs.new_zeros(())
        for x in inputs:
            for layer in range(2):
                membranes[layer] = 0.5 * membranes[layer] + F.linear(x, w[layer])
                x = torch.sigmoid(4 * (membranes[layer] - 1))
            result = result + squared(F.linear(x, w[2]))
        return result

    assert torch.autograd.gradcheck(total, tuple(weights))


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
    leaks = (0.5, 0.5, 0.0)
    net = chain("ottt", leaks)
    actual, expected = gradients(net, frames()), oracle(net, frames(), (KEPT, KEPT, KEPT), leaks)
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


def test_the_trace_must_leak_as_the_postsynaptic_membrane_does() -> None:
    # Dropped: the difference between λ of the layer that the weights feed and μ = λ of the layer they come from.
    leaks = (0.5, 0.5, 0.9)
    net = chain("ottt", leaks)
    actual, expected = gradients(net, frames()), oracle(net, frames(), (KEPT, KEPT, KEPT), leaks)
    assert relative_error(actual["linear.weight"], expected["linear.weight"]) > 1e-3


def test_batchnorm_with_fixed_statistics_keeps_the_equality() -> None:
    leaks = (0.5, 0.5, 0.0)
    net = chain("ottt", leaks, norm=True)
    net.norm.running_mean.normal_()
    net.norm.running_var.uniform_(0.5, 2.0)
    net.eval()
    actual, expected = gradients(net, frames()), oracle(net, frames(), (KEPT, KEPT, KEPT), leaks)
    torch.testing.assert_close(actual["conv2.weight"], expected["conv2.weight"], **EXACT)


def test_batchnorm_in_training_breaks_it() -> None:
    # Dropped: past inputs pass through the normalization of the present step instead of their own.
    leaks = (0.5, 0.5, 0.0)
    net = chain("ottt", leaks, norm=True)
    actual, expected = gradients(net, frames()), oracle(net, frames(), (KEPT, KEPT, KEPT), leaks)
    assert relative_error(actual["conv2.weight"], expected["conv2.weight"]) > 1e-3


@pytest.mark.parametrize("rule", ["ottt", "ndot", "sltt", "bptt"])
def test_all_rules_equal_bptt_at_one_time_step_batchnorm_included(rule: RuleName) -> None:
    net = chain(rule, norm=True)
    expected = oracle(net, frames()[:1], (KEPT, KEPT, KEPT))
    actual = gradients(net, frames()[:1])
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, **EXACT)


def test_a_loss_on_summed_outputs_is_not_a_sum_of_losses() -> None:
    # Dropped: the dependence of later losses on the present output.
    def run(rule: RuleName) -> Tensor:
        net = chain(rule)
        state, past, total = None, 0.0, torch.zeros((), dtype=torch.float64)
        for x in frames():
            outputs, state = net(x, state)
            past = past + outputs
            if rule == "bptt":
                total = total + squared(past)
            else:
                squared(past).backward()
                past = past.detach()
        if rule == "bptt":
            total.backward()
        return net.linear.weight.grad

    assert relative_error(run("ottt"), run("bptt")) > 1e-3


def test_a_nonzero_initial_state_brings_its_own_trace() -> None:
    # Dropped by BPTT from a cut state, kept by the carried trace: what entered before the cut.
    net, truth = chain("ottt"), chain("bptt")
    with torch.no_grad():
        _, state = net(frames()[0], None)
        _, cut = truth(frames()[0], None)
    total = torch.zeros((), dtype=torch.float64)
    for x in frames()[1:]:
        outputs, state = net(x, state)
        squared(outputs).backward()
        outputs, cut = truth(x, cut)
        total = total + squared(outputs)
    total.backward()
    assert relative_error(net.linear.weight.grad, truth.linear.weight.grad) > 1e-3


@pytest.mark.parametrize("weights", ["binary", "latent", "real"])
def test_the_weight_gradient_comes_from_the_trace(weights) -> None:
    make = partial(bso.TracedConv2d, 2, 3, 3, stride=2, padding=1, weights=weights)
    layer = make().double()
    spikes = (torch.rand(2, 2, 5, 5) < 0.5).double().requires_grad_()
    trace, upstream = torch.rand(2, 2, 5, 5).double(), torch.randn(2, 3, 3, 3).double()
    layer(bso.Activity(spikes, trace)).backward(upstream)

    values = bso.signs(layer.weight) if weights == "binary" else layer.weight.detach()
    dense = (values.sign() if weights == "latent" else values).clone().requires_grad_()
    F.conv2d(trace, dense, stride=2, padding=1).backward(upstream)
    passes = values.abs() <= 1 if weights == "latent" else torch.ones_like(values)
    assert layer.weight.grad is not None
    assert dense.grad is not None
    torch.testing.assert_close(layer.weight.grad, dense.grad * passes, **EXACT)

    plain = spikes.detach().clone().requires_grad_()
    F.conv2d(plain, dense.detach(), stride=2, padding=1).backward(upstream)
    torch.testing.assert_close(spikes.grad, plain.grad, **EXACT)
