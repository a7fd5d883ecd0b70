"""The plain loop and the lean one: gradients in `.grad`, or folded into the momentum as backward makes them."""

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from flip_cases import chain
from torch import Tensor, nn

import bsnn
from bsnn.nn.bits import BinaryParameter
from bsnn.optim import BSO, TBSO, FlipOptimizer, SigmaBSO, folding

T = 2
OPTIMIZERS: dict[str, Callable[..., FlipOptimizer]] = {
    "bso": lambda params, bits: BSO(params, gamma=1e-9, beta=0.5, momentum_bits=bits),
    "tbso": lambda params, bits: TBSO(params, gamma=0.02, betas=(0.5, 0.99), time_steps=T, momentum_bits=bits),
    "tbso-corrected": lambda params, bits: TBSO(
        params, gamma=0.02, betas=(0.5, 0.99), time_steps=T, bias_correction=True, momentum_bits=bits
    ),
    "sigma": lambda params, bits: SigmaBSO(params, gamma=0.2, beta=0.5, momentum_bits=bits),
}


def small() -> tuple[bsnn.Sequential, Tensor, Tensor]:
    """Two binary layers and a real one, in double precision, with inputs of T time steps and labels."""
    torch.manual_seed(1)
    net = bsnn.Sequential(
        bsnn.BinaryLinear(6, 12), bsnn.LIF(), bsnn.BinaryLinear(12, 12), bsnn.LIF(), nn.Linear(12, 3)
    ).double()  # fmt: skip
    return net, torch.randn(T, 5, 6, dtype=torch.float64) * 2, torch.arange(5) % 3


def everything(net: nn.Module, flip: FlipOptimizer) -> list[Tensor]:
    """All that training changes."""
    return [*net.state_dict().values(), *(value for p in flip.state for value in flip.state[p].values())]


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("bits", [32, 8])
def test_the_lean_way_gives_the_bits_of_the_plain_loop_over_200_updates(bits: int, accumulate: bool) -> None:
    """One layer for each optimizer, all in one network, so that a difference in any of them spreads to the others."""
    ends, num_flips = [], [0] * len(OPTIMIZERS)
    for lean in (False, True):
        torch.manual_seed(1)
        layers = [layer for _ in OPTIMIZERS for layer in (bsnn.BinaryLinear(16, 16), bsnn.LIF())]
        net = bsnn.Sequential(*layers, nn.Linear(16, 2)).double()
        inputs, targets = torch.randn(200, T, 4, 16).double(), torch.randn(200, 4, 2).double()
        weights, _ = bsnn.split_parameters(net)
        flips = [make([weight], bits) for make, weight in zip(OPTIMIZERS.values(), weights, strict=True)]
        for frames, target in list(zip(inputs, targets, strict=True))[: 200 if accumulate else 200 // T]:
            loss = functools.partial(nn.functional.mse_loss, target=target)
            if lean:
                bsnn.online_update(net, frames, loss, flips, accumulate=accumulate)
                num_flips = [total + sum(flip.flip_counts) for total, flip in zip(num_flips, flips, strict=True)]
                continue
            state = None
            for t, frame in enumerate(frames):
                logits, state = net(frame, state)
                loss(logits).backward()
                for flip in flips:
                    (flip.accumulate if accumulate else flip.step)(t=t)
                    flip.zero_grad()
            for flip in flips if accumulate else []:
                flip.step()
        ends.append([value for flip in flips for value in everything(net, flip)])
    assert all(torch.equal(one, two) for one, two in zip(*ends, strict=True))
    assert min(num_flips) > 10, num_flips


def test_backward_fills_grad_and_touches_no_optimizer() -> None:
    net, x = chain()
    flip = BSO(net.parameters())
    net(x, None)[0].spikes.sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    assert not any(flip.state[p]["momentum"].any() for p in net.parameters())
    flip.step()
    assert all(p.grad is not None for p in net.parameters())  # as torch's optimizers leave it
    flip.accumulate()
    assert all(p.grad is None for p in net.parameters())


def test_one_gradient_is_alive_at_a_time() -> None:
    net, x = chain()
    flip, alive = BSO(net.parameters()), []
    unguarded = nn.Parameter.__torch_function__
    read: Any = Tensor.grad
    fold = flip._fold

    def noted(group: Any, parameter: Any, gradient: Tensor) -> None:
        grads = [unguarded(read.__get__, (), (p,), {}) for p in net.parameters()]
        alive.append(sum(g is not None for g in grads))
        fold(group, parameter, gradient)

    flip._fold = noted
    with folding(flip):
        net(x, None)[0].spikes.sum().backward()
        flip.step()
    assert alive == [0] * 4  # each has left its parameter already


def test_what_would_go_wrong_within_folding_is_refused() -> None:
    net, x = chain()
    flip = BSO(net.parameters())

    def backward() -> None:
        net(x, None)[0].spikes.sum().backward()

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones(()))
    with folding(flip):
        backward()
        with pytest.raises(bsnn.UserError, match=r"expected step\(\) or accumulate\(\) after each backward"):
            backward()
        for call in (
            lambda: nn.utils.clip_grad_norm_(net.parameters(), 1.0),
            lambda: nn.utils.clip_grad_value_(net.parameters(), 1.0),
            lambda: [p.grad for p in net.parameters()],
            lambda: net.zero_grad(),
            lambda: scaler.unscale_(flip),
        ):
            with pytest.raises(bsnn.UserError, match="went into the momentum as soon as backward had made it"):
                call()
        with pytest.raises(bsnn.UserError, match="cannot be discarded; expected step"):
            flip.zero_grad()
        with pytest.raises(bsnn.UserError, match="unfinished sequence"):
            flip.state_dict()
        flip.abandon()
        backward()
        flip.step()
    with (
        pytest.raises(bsnn.UserError, match="two flip optimizers hold the same parameter"),
        folding(flip, BSO(net.parameters())),
    ):
        pass
    with pytest.raises(bsnn.UserError, match="received list; expected optimizers"), folding([flip]):  # pyright: ignore[reportArgumentType]
        pass
    backward()
    assert all(p.grad is not None for p in net.parameters())  # nothing of it is left


def test_a_step_after_the_block_uses_what_was_folded_and_nothing_else() -> None:
    ends = []
    for inside in (True, False):
        net, x = chain()
        flip = BSO(net.parameters(), beta=0.5)
        with folding(flip):
            net(x, None)[0].spikes.sum().backward()
            if inside:
                flip.step()
        if not inside:
            flip.step()
        ends.append([p.bits for p in net.parameters()])
        with folding(flip):
            net(x, None)[0].spikes.sum().backward()
        net(x, None)[0].spikes.sum().backward()
        bits = [p.bits.clone() for p in net.parameters()]
        with pytest.raises(bsnn.UserError, match=r"the same parameters have a \.grad; expected one or the other"):
            flip.step()
        assert all(torch.equal(p.bits, before) for p, before in zip(net.parameters(), bits, strict=True))
    assert all(torch.equal(one, two) for one, two in zip(*ends, strict=True))


def test_nested_blocks_fold_once_and_the_outermost_counts() -> None:
    net, x = chain()
    flip = BSO(net.parameters(), beta=0.0)
    with folding(flip):
        with folding(flip):
            net(x, None)[0].spikes.sum().backward()
            flip.step()
        net(x, None)[0].spikes.sum().backward()
        with pytest.raises(bsnn.UserError, match="went into the momentum"):
            next(net.parameters()).grad  # noqa: B018
        flip.step()
    net(x, None)[0].spikes.sum().backward()
    assert next(net.parameters()).grad is not None


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("accumulate", [False, True])
def test_an_error_leaves_no_gradients_behind_and_no_sequence_unfinished(
    accumulate: bool, clip_norm: float | None
) -> None:
    net, frames, _ = small()
    binary, real = bsnn.split_parameters(net)
    flip, sgd = BSO(binary, beta=0.5), torch.optim.SGD(real, lr=0.1)
    calls: list[None] = []

    def failing(logits: Tensor) -> Tensor:
        calls.append(None)
        if len(calls) == 2:
            raise RuntimeError("out of luck")
        return logits.square().sum()

    with pytest.raises(RuntimeError, match="out of luck"):
        bsnn.online_update(net, frames, failing, [flip, sgd], accumulate=accumulate, clip_norm=clip_norm)
    assert all(p.grad is None for p in net.parameters())
    flip.state_dict()  # nothing is unfinished
    # The next sequence begins like any other: its momentum decays once.
    before = [flip.momentum(p).clone() for p in binary]
    for p in binary:
        p.grad = torch.zeros(p.shape, dtype=torch.float64)
    flip.accumulate()
    flip.step()
    for p, momentum in zip(binary, before, strict=True):
        assert torch.equal(flip.momentum(p), momentum / 2)


def test_a_backward_pass_that_fails_in_the_middle_can_be_abandoned() -> None:
    net, x = chain()
    flip = BSO(net.parameters())
    weights = list(net.parameters())

    def fail(gradient: Tensor) -> None:
        raise RuntimeError("in the middle")

    handle = weights[1].register_hook(fail)
    with pytest.raises(RuntimeError, match="in the middle"), folding(flip):
        net(x, None)[0].spikes.sum().backward()
    handle.remove()
    flip.step()
    assert flip.flip_counts == [0] * 4
    with folding(flip):
        net(x, None)[0].spikes.sum().backward()
        flip.step()


@pytest.mark.parametrize("accumulate", [False, True])
def test_clipping_over_all_optimizers_equals_torchs_in_the_plain_loop(accumulate: bool) -> None:
    def loss(logits: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, labels) * 100

    def sums(parameters: list[nn.Parameter], past: list[Tensor]) -> list[Tensor]:
        return [total + p.grad for p, total in zip(parameters, past, strict=True)]  # pyright: ignore[reportOperatorIssue]

    ends = []
    for lean in (False, True):
        net, frames, labels = small()
        binary, real = bsnn.split_parameters(net)
        flip, sgd = TBSO(binary, gamma=0.2, betas=(0.9, 0.99), time_steps=T), torch.optim.SGD(real, lr=0.1)
        for _ in range(10):
            if lean:
                bsnn.online_update(net, frames, loss, [sgd, flip], accumulate=accumulate, clip_norm=0.5)
                continue
            state, totals = None, [torch.zeros_like(p) for p in real]
            for t, frame in enumerate(frames):
                logits, state = net(frame, state)
                loss(logits).backward()
                assert nn.utils.clip_grad_norm_([*binary, *real], 0.5) > 0.5
                if accumulate:
                    totals = sums(real, totals)
                    flip.accumulate(t=t)
                else:
                    flip.step(t=t)
                    sgd.step()
                net.zero_grad()
            if accumulate:
                for p, total in zip(real, totals, strict=True):
                    p.grad = total
                flip.step()
                sgd.step()
                net.zero_grad()
        ends.append(everything(net, flip))
    for one, two in zip(*ends, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-15)


def test_bad_numbers_for_clipping_are_refused_and_reduced_gradients_are_what_is_clipped() -> None:
    net, frames, _ = small()
    binary, real = bsnn.split_parameters(net)
    flip, sgd = BSO(binary, beta=0.0), torch.optim.SGD(real, lr=0.0)

    def loss(logits: Tensor) -> Tensor:
        return logits.sum()

    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(bsnn.UserError, match="clip_norm: received"):
            bsnn.online_update(net, frames, loss, [flip, sgd], clip_norm=bad)
    with pytest.raises(bsnn.UserError, match=r"received 1.0 within bsnn\.optim\.folding"), folding(flip):
        bsnn.online_update(net, frames, loss, [flip, sgd], clip_norm=1.0)
    bsnn.online_update(net, frames[:1], lambda logits: 100 * logits.sum(), [flip], clip_norm=1.0)
    assert torch.stack([flip.momentum(p).square().sum() for p in binary]).sum().sqrt().item() == pytest.approx(1)


def test_frozen_parameters_are_left_alone_in_both_ways() -> None:
    for folded in (False, True):
        net, x = chain()
        weights: list[BinaryParameter] = list(net.parameters())  # pyright: ignore[reportAssignmentType]
        weights[2].requires_grad_(False)
        flip = BSO(weights, gamma=0.0)
        weights[1].requires_grad_(False)
        with folding(flip) if folded else nullcontext():
            net(x, None)[0].spikes.sum().backward()
            flip.step()
        assert flip.flip_counts[1:3] == [0, 0]
        assert min(flip.flip_counts[0], flip.flip_counts[3]) > 0
        assert not flip.momentum(weights[1]).any()
        weights[1].requires_grad_(True)  # thawed
        with folding(flip) if folded else nullcontext():
            flip.zero_grad()
            net(x, None)[0].spikes.sum().backward()
            flip.step()
        assert flip.momentum(weights[1]).any()
