"""The time index of a stream: what each optimizer is told, from the last cut on and modulo its period."""

import pytest
import torch
from torch import Tensor, nn

import bsnn
from bsnn.optim import BSO, TBSO, FlipOptimizer


def network() -> bsnn.Sequential:
    torch.manual_seed(0)
    return bsnn.Sequential(bsnn.BinaryLinear(6, 5), bsnn.LIF(), bsnn.BinaryLinear(5, 4), bsnn.LIF(), nn.Linear(4, 3))


def moments(cuts: set[int], unlabeled: set[int], length: int) -> list[bsnn.Moment]:
    torch.manual_seed(1)
    frames, labels = torch.randn(length, 2, 6) * 2, torch.tensor([0, 2])
    return [bsnn.Moment(frames[k], None if k in unlabeled else labels, k in cuts) for k in range(length)]


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits, labels)


def told(flip: FlipOptimizer) -> list[int | None]:
    """The time steps that an optimizer is told, as they come."""
    times: list[int | None] = []
    flip.register_step_pre_hook(lambda _flip, _args, kwargs: times.append(kwargs["t"]))
    return times


def test_the_time_index_counts_from_the_last_cut_modulo_the_period() -> None:
    net = network()
    flip = TBSO(bsnn.split_parameters(net)[0], time_steps=3)
    times = told(flip)
    list(bsnn.stream_update(net, moments({0, 5}, {2, 7}, 10), loss, [flip]))
    # Steps    0  1  2  3  4 | 5  6  7  8  9, of which 2 and 7 have no labels.
    assert times == [0, 1, 0, 1, 0, 1, 0, 1]


def test_a_stream_equals_the_plain_loop_with_its_own_count() -> None:
    cuts, unlabeled = {4, 11}, {1, 5, 9}
    ends = []
    for plain in (False, True):
        net = network().double()
        binary, real = bsnn.split_parameters(net)
        flip = TBSO(binary, gamma=0.1, betas=(0.9, 0.9), time_steps=3)
        sgd = torch.optim.SGD(real, lr=0.1)
        stream = [moment._replace(frame=moment.frame.double()) for moment in moments(cuts, unlabeled, 15)]
        if not plain:
            list(bsnn.stream_update(net, stream, loss, [flip, sgd]))
        state, count = None, 0
        for moment in stream if plain else []:
            if moment.cut:
                state, count = None, 0
            logits, state = net(moment.frame, state)
            if moment.labels is not None:
                loss(logits, moment.labels).backward()
                flip.step(t=count % 3)
                sgd.step()
                net.zero_grad()
            count += 1
        ends.append([*net.state_dict().values(), *(flip.state[p]["second_moment"] for p in binary)])
    assert all(torch.equal(one, two) for one, two in zip(*ends, strict=True))
    assert (ends[0][-1] > 0).all()


def test_without_a_period_the_count_goes_on_and_two_periods_are_refused() -> None:
    net = network()
    first, second = bsnn.split_parameters(net)[0]
    flip = BSO([first])
    times = told(flip)
    list(bsnn.stream_update(net, moments({3}, set(), 5), loss, [flip]))
    assert times == [0, 1, 2, 0, 1]
    both = [TBSO([first], time_steps=2), TBSO([second], time_steps=3)]
    with pytest.raises(bsnn.UserError, match="received optimizers with time_steps=2 and 3; expected the same"):
        next(bsnn.stream_update(net, moments(set(), set(), 5), loss, both))


def test_a_backward_pass_between_two_time_steps_is_the_callers_own() -> None:
    net = network()
    flip = BSO(bsnn.split_parameters(net)[0])
    for step in bsnn.stream_update(net, moments(set(), set(), 2), loss, [flip]):
        assert step.loss.isfinite()
        net(torch.ones(2, 6), None)[0].sum().backward()
        assert all(p.grad is not None for p in net.parameters())
        net.zero_grad()
