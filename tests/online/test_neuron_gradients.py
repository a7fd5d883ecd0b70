"""Gradients of every neuron against autograd over a loop that is written out, in float64.

The oracle is checked against finite differences. What an online rule leaves out is left out of the oracle by the same
name: the carry of a layer from one time step to the next, the path through the adaptation, or the forgetting of a hard
reset. Equality then says that nothing else is missing.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import soft_spike
from torch import Tensor, nn
from torch.nn import functional as F

import bsnn

T, LEAK, THRESHOLD, ADAPTATION, ADAPTATION_LEAK = 6, 0.6, 0.9, 0.3, 0.8
EXACT = {"rtol": 1e-10, "atol": 1e-12}

NEURONS: dict[str, Callable[[Any], bsnn.Neuron]] = {
    "lif": lambda rule: bsnn.LIF(LEAK, THRESHOLD, gradient=rule),
    "if": lambda rule: bsnn.IF(THRESHOLD, gradient=rule),
    "plif": lambda rule: bsnn.ParametricLIF(LEAK, THRESHOLD, gradient=rule),
    "hard-lif": lambda rule: bsnn.HardResetLIF(LEAK, THRESHOLD, gradient=rule),
    "alif": lambda rule: bsnn.AdaptiveLIF(
        LEAK, THRESHOLD, gradient=rule, adaptation=ADAPTATION, adaptation_leak=ADAPTATION_LEAK
    ),
}


def network(kind: str, rule: Any, second: str | None = None) -> bsnn.Sequential:
    """Two layers of neurons and a head."""
    torch.manual_seed(3)
    layers: dict[str, nn.Module] = {
        "w1": bsnn.TracedLinear(4, 6, weights="real"),
        "n1": NEURONS[kind](rule),
        "w2": bsnn.BinaryLinear(6, 5),
        "n2": copy.deepcopy(NEURONS[second or kind](rule)),
        "head": nn.Linear(5, 3),
    }
    net = bsnn.Sequential(layers).double()
    for neuron in (net.n1, net.n2):
        if isinstance(neuron, bsnn.ParametricLIF):
            nn.init.normal_(neuron.leak_logit, 0.4, 0.1)
            nn.init.normal_(neuron.log_threshold, -0.1, 0.1)
    return net


def frames() -> Tensor:
    return 1.5 * torch.randn(T, 7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def gradients(net: bsnn.Sequential) -> dict[str, Tensor]:
    """Summed over the sequence on fixed weights: backward at each step, or once if the state keeps its graph."""
    state, total = None, torch.zeros((), dtype=torch.float64)
    for x in frames():
        outputs, state = net(x, state)
        loss = (outputs**2).sum()
        if net.n1.gradient.keeps_graph:
            total = total + loss
        else:
            loss.backward()
    if net.n1.gradient.keeps_graph:
        total.backward()
    return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


class Path:
    """What is left of the paths of gradients through time."""

    def __init__(
        self, first: bool = True, second: bool = True, adaptation: bool = True, reset: bool = False, forget: bool = True
    ) -> None:
        self.carries = {"n1": first, "n2": second}
        self.adaptation, self.reset, self.forget = adaptation, reset, forget


def constants(kind: str, parameters: dict[str, Tensor], layer: str) -> tuple[Any, Any]:
    if kind == "plif":
        return torch.sigmoid(parameters[f"{layer}.leak_logit"]), torch.exp(parameters[f"{layer}.log_threshold"])
    return (1.0 if kind == "if" else LEAK), THRESHOLD


def written_out(
    kinds: dict[str, str], parameters: dict[str, Tensor], path: Path, spike: Callable[[Tensor], Tensor] = soft_spike
) -> Tensor:
    """The summed loss of the network, line by line."""
    total = torch.zeros((), dtype=torch.float64)
    past: dict[str, Any] = {"n1": (0.0, 0.0), "n2": (0.0, 0.0)}
    for x in frames():
        for weight, layer in (("w1.weight", "n1"), ("w2.weight", "n2")):
            kind, (membrane, adaptation) = kinds[layer], past[layer]
            leak, threshold = constants(kind, parameters, layer)
            potential = leak * membrane + F.linear(x, parameters[weight])
            raised = ADAPTATION * adaptation if kind == "alif" else 0.0
            x = spike(potential - threshold - raised)
            reset = x if path.reset else x.detach()
            after = potential * (1 - reset) if kind == "hard-lif" else potential - threshold * reset
            if not path.forget:  # the value of the reset membrane, with the derivative of one that was not reset
                after = after.detach() + potential - potential.detach()
            adaptation = ADAPTATION_LEAK * adaptation + (x if path.adaptation else x.detach())
            past[layer] = (after if path.carries[layer] else after.detach()), adaptation
        total = total + (F.linear(x, parameters["head.weight"], parameters["head.bias"]) ** 2).sum()
    return total


def oracle(net: bsnn.Sequential, kinds: dict[str, str], path: Path) -> dict[str, Tensor]:
    dense = {
        name: (bsnn.signs(p) if isinstance(p, bsnn.BinaryParameter) else p).detach().clone().requires_grad_()
        for name, p in net.named_parameters()
    }
    written_out(kinds, dense, path).backward()
    return {name: value.grad for name, value in dense.items() if value.grad is not None}


def both(kind: str) -> dict[str, str]:
    return {"n1": kind, "n2": kind}


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", NEURONS)
def test_the_oracle_against_finite_differences(kind: str) -> None:
    # With smooth spikes, and a gradient through the reset, the loss has a difference quotient in every parameter.
    net = network(kind, "bptt")
    named = {name: torch.randn_like(p) if "w2" in name else p.detach() for name, p in net.named_parameters()}

    def loss(*values: Tensor) -> Tensor:
        parameters = dict(zip(named, values, strict=True))
        return written_out(both(kind), parameters, Path(reset=True), lambda x: torch.sigmoid(4 * x))

    values = tuple(value.clone().requires_grad_() for value in named.values())
    assert torch.autograd.gradcheck(loss, values)


@pytest.mark.parametrize("detach_reset", [True, False])
@pytest.mark.parametrize("kind", NEURONS)
def test_bptt_equals_autograd(kind: str, detach_reset: bool) -> None:
    net = network(kind, bsnn.BPTT(detach_reset=detach_reset))
    actual, expected = gradients(net), oracle(net, both(kind), Path(reset=not detach_reset))
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, **EXACT)
    other = oracle(net, both(kind), Path(reset=detach_reset))
    assert relative_error(actual["w1.weight"], other["w1.weight"]) > 1e-3


@pytest.mark.parametrize("kind", NEURONS)
def test_sltt_equals_autograd_with_every_carry_cut(kind: str) -> None:
    net = network(kind, "sltt")
    actual, expected = gradients(net), oracle(net, both(kind), Path(first=False, second=False, adaptation=False))
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, **EXACT)


@pytest.mark.parametrize("kind", ["lif", "if"])
def test_ottt_equals_bptt_in_the_last_spiking_layer(kind: str) -> None:
    net = network(kind, "ottt")
    actual, expected = gradients(net), oracle(net, both(kind), Path())
    torch.testing.assert_close(actual["w2.weight"], expected["w2.weight"], **EXACT)


@pytest.mark.parametrize("rule", ["ottt", "ndot"])
def test_a_learnable_leak_and_threshold_have_the_gradient_of_bptt_in_the_last_spiking_layer(rule: str) -> None:
    net = network("plif", rule)
    actual, expected = gradients(net), oracle(net, both("plif"), Path())
    for name in ("n2.leak_logit", "n2.log_threshold"):
        torch.testing.assert_close(actual[name], expected[name], **EXACT)
        cut = oracle(net, both("plif"), Path(second=False))[name]
        assert relative_error(actual[name], cut) > 1e-3


@pytest.mark.parametrize("rule", ["ottt", "ndot"])
def test_in_an_earlier_layer_they_drop_the_carry_of_later_layers_and_nothing_else(rule: str) -> None:
    net = network("plif", rule)
    actual, expected = gradients(net), oracle(net, both("plif"), Path(second=False))
    for name in ("n1.leak_logit", "n1.log_threshold"):
        torch.testing.assert_close(actual[name], expected[name], **EXACT)
        assert relative_error(actual[name], oracle(net, both("plif"), Path())[name]) > 1e-3


def test_a_trace_of_learnable_neurons_leaks_as_the_sender() -> None:
    # Exact if the receiver has the same leak; else the sender's leak stands in the receiver's gradient.
    net = network("plif", "ottt")
    with torch.no_grad():
        net.n2.leak_logit.copy_(net.n1.leak_logit)
    actual, expected = gradients(net), oracle(net, both("plif"), Path())
    torch.testing.assert_close(actual["w2.weight"], expected["w2.weight"], **EXACT)


def test_spikes_of_hard_reset_neurons_have_an_exact_trace_at_neurons_that_do_not_forget() -> None:
    # The sender's reset has no part in it: a trace that forgot where its neuron fired would be wrong here.
    net = network("hard-lif", "ottt", second="lif")
    actual, expected = gradients(net), oracle(net, {"n1": "hard-lif", "n2": "lif"}, Path())
    torch.testing.assert_close(actual["w2.weight"], expected["w2.weight"], **EXACT)


def test_ottt_into_hard_reset_neurons_reaches_back_over_their_resets_and_that_is_all() -> None:
    net = network("hard-lif", "ottt")
    actual = gradients(net)["w2.weight"]
    torch.testing.assert_close(actual, oracle(net, both("hard-lif"), Path(forget=False))["w2.weight"], **EXACT)
    assert relative_error(actual, oracle(net, both("hard-lif"), Path())["w2.weight"]) > 1e-3


def test_ottt_into_adaptive_neurons_drops_the_path_through_the_threshold_and_that_is_all() -> None:
    net = network("alif", "ottt")
    actual = gradients(net)["w2.weight"]
    torch.testing.assert_close(actual, oracle(net, both("alif"), Path(adaptation=False))["w2.weight"], **EXACT)
    assert relative_error(actual, oracle(net, both("alif"), Path())["w2.weight"]) > 1e-3


@pytest.mark.parametrize("kind", ["if", "plif", "alif"])
def test_ndot_takes_the_ratio_of_membranes_of_any_neuron_with_soft_reset(kind: str) -> None:
    net, state = network(kind, "ndot"), None
    zetas: list[Tensor] = []
    expected = torch.zeros(5, 6, dtype=torch.float64)
    trace = torch.zeros(7, 6, dtype=torch.float64)
    for x in frames():
        with torch.no_grad():
            spikes = net.n1(F.linear(x, net.w1.weight), None if state is None else state[0])[0].spikes
        with (
            bsnn.backend("reference"),
            net.w2.register_forward_hook(
                lambda _module, _inputs, current: current.register_hook(zetas.append) and None
            ),
        ):
            outputs, new = net(x, state)
            (outputs**2).sum().backward()
        leak, membrane = net.n1.leak, new[0].membrane
        previous = torch.zeros_like(membrane) if state is None else state[0].membrane
        ratio = torch.where(previous == 0, leak, (membrane / previous).clamp(-leak, leak))
        trace = ratio * trace + spikes
        expected += zetas[-1].T @ trace
        state = new
    torch.testing.assert_close(net.w2.weight.grad, expected, **EXACT)


@pytest.mark.parametrize("rule", ["ottt", "ndot", "sltt", "bptt"])
@pytest.mark.parametrize("kind", NEURONS)
def test_every_neuron_learns_under_every_rule_it_can(kind: str, rule: str) -> None:
    if (kind, rule) == ("hard-lif", "ndot"):
        with pytest.raises(bsnn.UserError, match="HardResetLIF: received the gradient rule NDOT, whose trace factor"):
            NEURONS[kind](rule)
        return
    torch.manual_seed(0)
    net = bsnn.models.vgg((6, "pool", 8), in_channels=1, num_classes=4, neuron=NEURONS[kind](rule))
    copies = [module for module in net.modules() if isinstance(module, bsnn.Neuron)]
    own = [p for neuron in copies for p in neuron.parameters()]
    assert len({id(p) for p in own}) == (4 if kind == "plif" else 0)
    binary, real = bsnn.split_parameters(net)
    optimizers = [bsnn.optim.BSO(binary, gamma=1e-4, beta=0.9), torch.optim.SGD(real, lr=0.1)]
    before = [p.detach().clone() for p in own]
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 4
    update = bsnn.bptt_update if rule == "bptt" else bsnn.online_update
    losses = [
        float(update(net, [x] * 3, lambda logits: bsnn.step_loss(logits, y, time_steps=3), optimizers).loss)
        for _ in range(12)
    ]
    assert min(losses[-3:]) < losses[0]
    assert all(not torch.equal(old, new) for old, new in zip(before, own, strict=True))
    rates = bsnn.evaluate(net, [(x, y)], 3).firing_rates
    assert rates.keys() == {"lif1", "lif2"}
    assert any(rate > 0 for rate in rates.values())
