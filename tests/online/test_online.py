import functools
import itertools

import pytest
import torch
from torch import Tensor

import bsnn
from bsnn.nn.bits import BinaryParameter, signs
from bsnn.optim import BSO, TBSO

T = 3


def setting(rule="ottt", weights="binary") -> tuple[bsnn.ImageNetwork, Tensor, Tensor, functools.partial]:
    torch.manual_seed(0)
    net = bsnn.models.vgg(
        (6, "pool", 8, 8), in_channels=1, num_classes=4, weights=weights, neuron=bsnn.LIF(gradient=rule)
    )
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 4
    return net, x, y, functools.partial(bsnn.step_loss, labels=y, time_steps=T)


def binary_bits(net: torch.nn.Module) -> Tensor:
    return torch.cat([p.bits for p in net.parameters() if isinstance(p, BinaryParameter)])


def test_the_loop_is_the_loop_of_the_design() -> None:
    net, x, _, loss = setting()
    binary, real = bsnn.split_parameters(net)
    flip, sgd = TBSO(binary, time_steps=T), torch.optim.SGD(real, lr=0.1)
    outcome = bsnn.online_update(net, itertools.repeat(x, T), loss, [flip, sgd])

    other, x, _, loss = setting()
    binary, real = bsnn.split_parameters(other)
    flip, sgd = TBSO(binary, time_steps=T), torch.optim.SGD(real, lr=0.1)
    state = other.initial_state(x)
    total, total_loss = torch.zeros(8, 4), torch.zeros(())
    for t in range(T):
        logits, state = other(x, state)
        value = loss(logits)
        value.backward()
        total_loss = total_loss + value.detach()
        flip.step(t=t)
        sgd.step()
        flip.zero_grad()
        sgd.zero_grad()
        total += logits.detach()
    assert torch.equal(outcome.logits, total)
    assert torch.equal(outcome.loss, total_loss)
    for name, value in net.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_accumulated_updates_flip_once_from_the_summed_gradient() -> None:
    net, x, _, loss = setting()
    binary, _ = bsnn.split_parameters(net)
    before = binary_bits(net).clone()
    state = None
    for _ in range(T):
        logits, state = net(x, state)
        loss(logits).backward()
    sums = [p.grad for p in binary]
    net.zero_grad()

    other, x, _, loss = setting()
    other_binary, other_real = bsnn.split_parameters(other)
    flip = BSO(other_binary, gamma=0.0, beta=0.5)
    bsnn.online_update(
        other, itertools.repeat(x, T), loss, [flip, torch.optim.SGD(other_real, lr=0.1)], accumulate=True
    )
    for parameter, theirs, total in zip(binary, other_binary, sums, strict=True):
        assert total is not None
        torch.testing.assert_close(flip.state[theirs]["momentum"], total / 2)
        expected = torch.where(
            signs(parameter) * flip.state[theirs]["momentum"] > 0, -signs(parameter), signs(parameter)
        )
        assert torch.equal(signs(theirs), expected)
        assert theirs.grad is None
    assert sum(flip.flip_counts) > 0
    assert torch.equal(before, binary_bits(net))


@pytest.mark.parametrize("weights", ["binary", "latent", "real"])
@pytest.mark.parametrize(
    ("rule", "accumulate"), [("bptt", False), *itertools.product(["ottt", "ndot", "sltt"], [False, True])]
)
def test_every_weight_with_every_gradient_learns(weights, rule, accumulate: bool) -> None:
    net, x, _, loss = setting(rule, weights)
    if weights == "binary":
        binary, real = bsnn.split_parameters(net)
        optimizers = [TBSO(binary, betas=(0.9, 0.999), time_steps=1 if rule == "bptt" else T)]
    else:
        optimizers, real = [], list(net.parameters())
    optimizers.append(torch.optim.SGD(real, lr=0.1))
    losses = []
    for _ in range(15):
        frames = itertools.repeat(x, T)
        if rule == "bptt":
            outcome = bsnn.bptt_update(net, frames, loss, optimizers)
        else:
            outcome = bsnn.online_update(net, frames, loss, optimizers, accumulate=accumulate)
        losses.append(outcome.loss.item())
    assert min(losses[-5:]) < losses[0]


def test_bptt_steps_every_optimizer_once_from_the_summed_loss() -> None:
    net, x, _, loss = setting("bptt")
    binary, real = bsnn.split_parameters(net)
    before = [p.detach().clone() for p in real]
    flip = BSO(binary, gamma=0.0)
    outcome = bsnn.bptt_update(net, itertools.repeat(x, T), loss, [torch.optim.SGD(real, lr=0.1), flip])
    assert sum(flip.flip_counts) > 0
    assert all(not torch.equal(old, new) for old, new in zip(before, real, strict=True))

    other, x, _, loss = setting("bptt")
    state, total = None, torch.zeros(())
    for _ in range(T):
        logits, state = other(x, state)
        total = total + loss(logits)
    total.backward()
    torch.testing.assert_close(outcome.loss, total.detach())
    for old, new, parameter in zip(before, real, bsnn.split_parameters(other)[1], strict=True):
        torch.testing.assert_close(new, old - 0.1 * parameter.grad)


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_nan_reaches_no_optimizer_and_the_next_batch_trains(accumulate: bool) -> None:
    net, x, _, loss = setting()
    binary, real = bsnn.split_parameters(net)
    before = [p.detach().clone() for p in real]
    bits = binary_bits(net).clone()
    optimizers = [torch.optim.SGD(real, lr=0.1), TBSO(binary, time_steps=T)]
    bad = x.clone()
    bad[0] = float("nan")
    with pytest.raises(bsnn.UserError, match="holds NaN or infinite"):
        bsnn.online_update(net, [bad] * T, loss, optimizers, accumulate=accumulate)
    assert torch.equal(bits, binary_bits(net))
    assert all(torch.equal(old, new) for old, new in zip(before, real, strict=True))
    assert all(p.grad is None for p in net.parameters())
    bsnn.online_update(net, [x] * T, loss, optimizers, accumulate=accumulate)
    assert not torch.equal(bits, binary_bits(net))


def test_frames_over_time_and_carried_state() -> None:
    net, _, _, loss = setting()
    binary, real = bsnn.split_parameters(net)
    optimizers = [TBSO(binary, time_steps=T), torch.optim.SGD(real, lr=0.1)]
    frames = torch.randn(T, 8, 1, 8, 8)
    first = bsnn.online_update(net, frames, loss, optimizers)
    second = bsnn.online_update(net, frames, loss, optimizers, state=first.state)
    assert not second.logits.requires_grad
    assert not any(s.membrane.requires_grad for s in second.state)


def test_misuse_of_the_loops_teaches() -> None:
    net, x, _, loss = setting("bptt")
    with pytest.raises(bsnn.UserError, match="Use bptt_update"):
        bsnn.online_update(net, [x], loss, [])
    net, x, _, loss = setting()
    with pytest.raises(bsnn.UserError, match="use online_update"):
        bsnn.bptt_update(net, [x], loss, [])
    with pytest.raises(bsnn.UserError, match="received no frames"):
        bsnn.online_update(net, [], loss, [])
    binary, _ = bsnn.split_parameters(net)
    with pytest.raises(bsnn.UserError, match="0 to 1"):
        bsnn.online_update(net, itertools.repeat(x, 3), loss, [TBSO(binary, time_steps=2)])


def test_step_loss_is_the_papers_mixture() -> None:
    logits, labels = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    cross_entropy = torch.log(1 + torch.exp(torch.tensor(-2.0)))
    expected = (0.95 * cross_entropy + 0.05 * (1.0 + 0.0) / 2) / 4
    torch.testing.assert_close(bsnn.step_loss(logits, labels, time_steps=4), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_step_loss_takes_smoothed_labels_and_distributions(smoothing: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    one_hot = torch.eye(5, dtype=torch.float64)[labels]
    target = (1 - smoothing) * one_hot + smoothing / 5
    distance = (logits - target).square().mean()
    entropy = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing)
    expected = (0.7 * entropy + 0.3 * distance) / 4
    settings = {"time_steps": 4, "mse_share": 0.3, "label_smoothing": smoothing}
    torch.testing.assert_close(bsnn.step_loss(logits, labels, **settings), expected)
    torch.testing.assert_close(bsnn.step_loss(logits, one_hot.float(), **settings), expected)
    # A mixture of two labels has the mixture of their cross-entropies.
    mixed = 0.25 * one_hot + 0.75 * one_hot.roll(1, 0)
    parts = [bsnn.step_loss(logits, part, time_steps=1, mse_share=0.0) for part in (labels, labels.roll(1))]
    torch.testing.assert_close(
        bsnn.step_loss(logits, mixed, time_steps=1, mse_share=0.0), 0.25 * parts[0] + 0.75 * parts[1]
    )


def test_step_loss_refuses_labels_that_do_not_fit() -> None:
    for labels in (torch.zeros(3, dtype=torch.long), torch.zeros(1, 5), torch.zeros(6, 4)):
        with pytest.raises(bsnn.UserError, match=r"received labels of shape .* for logits of shape \(6, 5\)"):
            bsnn.step_loss(torch.zeros(6, 5), labels, time_steps=1)


def test_evaluation_counts_sums_and_restores() -> None:
    net, x, y, _ = setting()
    net.train()
    bsnn.estimate_statistics(net, [x], T)
    result = bsnn.evaluate(net, [(x[:4], y[:4]), (x[4:], y[4:])], T)
    assert net.training
    assert result.samples == 8
    assert 0 <= result.accuracy <= 1
    assert set(result.firing_rates) == {"lif1", "lif2", "lif3"}
    net.eval()
    state, total = None, torch.zeros(8, 4)
    for _ in range(T):
        logits, state = net(x, state)
        total = total + logits
    assert torch.equal(bsnn.predict(net, x, T), total)
    guesses = total.argmax(1)
    assert result.accuracy == (guesses == y).float().mean().item()
    with pytest.raises(bsnn.UserError, match="received no samples"):
        bsnn.evaluate(net, [], T)
    with pytest.raises(bsnn.UserError, match="received 0"):
        bsnn.predict(net, x, 0)
    with pytest.raises(bsnn.UserError, match="at least one"):
        bsnn.predict(net, torch.zeros(0, 8, 1, 8, 8), None)


def test_firing_rates_are_the_means_of_the_spikes() -> None:
    net = bsnn.Sequential(bsnn.LIF())
    with bsnn.counting_spikes(net) as rates:
        net(torch.tensor([[2.0, 0.0, 0.0, 0.0]]), None)
        net(torch.tensor([[2.0, 2.0, 0.0, 0.0]]), None)
    net(torch.full((1, 4), 9.0), None)
    assert rates.by_layer() == {"0": 3 / 8}
