"""Whole sequences, layer by layer: equal to time step by time step, but for BatchNorm in training."""

import functools
import itertools

import pytest
import torch
from torch import nn

import bsnn
from bsnn.nn.trace import BPTT, gradient_rule


def network(gradient: str = "bptt") -> bsnn.Sequential:
    torch.manual_seed(0)
    lif = functools.partial(bsnn.LIF, gradient=gradient)
    block = bsnn.Residual(bsnn.Sequential(lif(), nn.Linear(6, 6), bsnn.BatchNorm1d(6)))
    return bsnn.Sequential(nn.Linear(4, 6), bsnn.Concat(lif(), lif()), nn.Linear(12, 6), block, lif(), nn.Linear(6, 3))


def frames(count: int = 3) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return list(3 * torch.randn(count, 5, 4, generator=random))


def test_in_evaluation_both_ways_agree() -> None:
    net, state, steps = network().eval(), None, []
    for frame in frames():
        logits, state = net(frame, state)
        steps.append(logits)
    together, last = net.sequence(frames(), None)
    torch.testing.assert_close(together, steps)
    for a, b in zip(last, state, strict=True):
        torch.testing.assert_close(a, b)
    # From a state in the middle, too.
    _, middle = net.sequence(frames()[:2], None)
    torch.testing.assert_close(net.sequence(frames()[2:], middle)[0][0], steps[2])


def test_batchnorm_has_the_statistics_of_the_whole_sequence() -> None:
    net = bsnn.Sequential(bsnn.BatchNorm1d(4), bsnn.LIF(gradient="bptt"))
    sent, _ = net.sequence(frames(), None)
    x = torch.cat(frames())
    normal = (x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt()
    membrane = torch.zeros(5, 4)
    for spikes, current in zip(sent, normal.split(5), strict=True):
        membrane = 0.5 * membrane + current
        assert torch.equal(spikes, (membrane >= 1).float())
        membrane = membrane - spikes
    torch.testing.assert_close(net[0].running_var, 0.9 + 0.1 * x.var(0))


def test_statistics_are_estimated_over_sequences_too() -> None:
    net = bsnn.Sequential(bsnn.BatchNorm1d(4), bsnn.LIF(gradient="bptt"))
    x = torch.stack(frames())
    bsnn.estimate_statistics(net, [x], None, layer_by_layer=True)
    torch.testing.assert_close(net[0].running_var, x.flatten(0, 1).var(0))
    bsnn.estimate_statistics(net, [x], None)
    torch.testing.assert_close(net[0].running_var, x.var(1).mean(0))


def update(**options) -> tuple[torch.Tensor, list[torch.Tensor]]:
    net = network().double()
    sgd = torch.optim.SGD(net.parameters(), lr=1.0)
    before = [p.detach().clone() for p in net.parameters()]
    loss = functools.partial(bsnn.step_loss, labels=torch.tensor([0, 1, 2, 0, 1]), time_steps=3, mse_share=0.0)
    outcome = bsnn.bptt_update(net, [f.double() for f in frames()], loss, [sgd], **options)
    return outcome.loss, [a - b.detach() for a, b in zip(before, net.parameters(), strict=True)]


@pytest.mark.parametrize("options", [{}, {"layer_by_layer": True}, {"mean_output": True}, {"penalty": True}])
def test_bptt_update_computes_the_loss_it_says(options) -> None:
    """Against autograd of the loss written out."""
    if "penalty" in options:
        options["penalty"] = lambda state: state[-1].membrane.square().mean()
    found, gradients = update(**options)
    net, labels = network().double(), torch.tensor([0, 1, 2, 0, 1])
    x = [f.double() for f in frames()]
    if options.get("layer_by_layer"):
        logits, state = net.sequence(x, None)
    else:
        logits, state = bsnn.Stateful.sequence(net, x, None)
    entropy = nn.functional.cross_entropy
    loss = torch.stack([entropy(step, labels) for step in logits]).mean()
    if options.get("mean_output"):
        loss = entropy(torch.stack(logits).mean(0), labels)
    if "penalty" in options:
        loss = loss + state[-1].membrane.square().mean()
    torch.testing.assert_close(found, loss.detach())
    torch.testing.assert_close(gradients, list(torch.autograd.grad(loss, list(net.parameters()))))


def test_full_bptt_has_a_name() -> None:
    rule = gradient_rule("bptt-full")
    assert isinstance(rule, BPTT)
    assert not rule.detach_reset
    # u[1] = 0.5 (u[0] − s[0]) + I: the reset's term is −0.5 σ'(u[0] − 1).
    for name, factor in (("bptt", 0.0), ("bptt-full", 1.0)):
        current = torch.tensor([[0.9]], requires_grad=True)
        neuron = bsnn.LIF(gradient=name)
        _, state = neuron(current, None)
        _, state = neuron(torch.zeros(1, 1), state)
        slope = bsnn.surrogate.Sigmoid().derivative(torch.tensor(-0.1))
        slope2 = bsnn.surrogate.Sigmoid().derivative(torch.tensor(0.45 - 1))
        (found,) = torch.autograd.grad(state.membrane.sum(), current)
        step = 0.5 * (1 - factor * slope)
        assert found.item() == pytest.approx(float(step * (1 - factor * slope2)))


def test_no_frames_are_refused() -> None:
    with pytest.raises(bsnn.UserError, match="bptt_update: received no frames"):
        bsnn.bptt_update(network(), itertools.repeat(torch.zeros(1, 4), 0), lambda logits: logits.sum(), [])
