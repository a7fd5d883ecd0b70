"""Networks that end in neurons: their spikes are the output. And what `evaluate` and `predict` refuse."""

import functools
import itertools

import pytest
import torch
from torch import Tensor, nn

import bsnn

T = 4
FRAMES = torch.randn(T, 5, 4, generator=torch.Generator().manual_seed(1)) * 2
LABELS = torch.tensor([0, 1, 2, 0, 1])


def network(rule: str = "ottt") -> bsnn.Sequential:
    torch.manual_seed(0)
    return bsnn.Sequential(
        nn.Linear(4, 8), bsnn.LIF(gradient=rule), bsnn.BinaryLinear(8, 3), bsnn.BatchNorm1d(3), bsnn.LIF(gradient=rule)
    )


def optimizers(net: nn.Module) -> list[torch.optim.Optimizer]:
    binary, real = bsnn.split_parameters(net)
    return [bsnn.optim.BSO(binary, gamma=1e-3, beta=0.5), torch.optim.SGD(real, lr=0.1)]


LOSS = functools.partial(bsnn.step_loss, labels=LABELS, time_steps=T)


def plain_loop(net: bsnn.Sequential) -> Tensor:
    own, state, total = optimizers(net), None, torch.zeros(5, 3)
    for frame in FRAMES:
        activity, state = net(frame, state)
        assert isinstance(activity, bsnn.Activity)
        LOSS(activity).backward()  # the same as of activity.spikes
        for optimizer in own:
            optimizer.step()
        net.zero_grad()
        total = total + activity.spikes.detach()
    return total


def test_predict_and_evaluate_count_spikes() -> None:
    net = network().eval()
    total, state = torch.zeros(5, 3), None
    with torch.no_grad():
        for frame in FRAMES:
            activity, state = net(frame, state)
            total = total + activity.spikes
    assert torch.equal(bsnn.predict(net, FRAMES, None), total)
    assert total.max() > 0
    found = bsnn.evaluate(net, [(FRAMES, LABELS)], None)
    assert int(found.confusion.trace()) == int((total.argmax(1) == LABELS).sum())


def test_online_and_stream_update_hand_spikes_to_the_loss() -> None:
    plain, online, stream = network(), network(), network()
    total = plain_loop(plain)
    assert torch.equal(bsnn.online_update(online, FRAMES, LOSS, optimizers(online)).logits, total)
    moments = [bsnn.Moment(frame, LABELS) for frame in FRAMES]
    steps = bsnn.stream_update(stream, moments, lambda spikes, _labels: LOSS(spikes), optimizers(stream))
    assert torch.equal(torch.stack([step.logits for step in steps]).sum(0), total)
    for name, value in plain.state_dict().items():
        assert torch.equal(online.state_dict()[name], value), name
        assert torch.equal(stream.state_dict()[name], value), name


def test_bptt_update_does_too() -> None:
    net = network("bptt")
    outcome = bsnn.bptt_update(net, FRAMES, LOSS, optimizers(net))
    other, state, losses, total = network("bptt"), None, [], torch.zeros(5, 3)
    for frame in FRAMES:
        activity, state = other(frame, state)
        losses.append(LOSS(activity.spikes))
        total = total + activity.spikes.detach()
    torch.testing.assert_close(outcome.loss, sum(losses).detach())  # pyright: ignore[reportAttributeAccessIssue]
    assert torch.equal(outcome.logits, total)


class TwoHeads(bsnn.Stateful):
    def __init__(self, rule: str) -> None:
        super().__init__()
        self.net = network(rule)

    def forward(self, x, state):
        activity, state = self.net(x, state)
        return (activity.spikes, activity.spikes), state


@pytest.mark.parametrize("rule", ["ottt", "bptt"])
def test_any_other_output_is_refused_before_anything_is_updated(rule: str) -> None:
    net = TwoHeads(rule)
    before = {name: value.clone() for name, value in net.state_dict().items() if "running" not in name}
    update = bsnn.bptt_update if rule == "bptt" else bsnn.online_update
    for attempt in (
        lambda: update(net, FRAMES, lambda logits: logits[0].sum(), optimizers(net)),
        lambda: bsnn.predict(net.eval(), FRAMES, None),
        lambda: bsnn.step_loss(net(FRAMES[0], None)[0], LABELS, time_steps=1),
    ):
        with pytest.raises(bsnn.UserError, match="its output is a tuple; expected a tensor of logits"):
            attempt()
    for name, value in before.items():
        assert torch.equal(net.state_dict()[name], value) or "num_batches" in name


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.tensor([0, 1, 2, 3, 0]), "received the label 3 for a network with 3 outputs; expected 0 to 2"),
        (torch.tensor([0, 1, -100, 2, 0]), "received the label -100"),
        (LABELS[:, None], r"labels of shape \(5, 1\), torch.int64, for 5 samples; expected class indices \[batch\]"),
        (LABELS[:4], r"labels of shape \(4,\)"),
        (LABELS.float(), "torch.float32"),
        (torch.eye(3)[LABELS], r"labels of shape \(5, 3\)"),
    ],
)
def test_evaluate_refuses_labels_that_name_no_class(labels: Tensor, words: str) -> None:
    with pytest.raises(bsnn.UserError, match=f"evaluate: received .*{words.removeprefix('received ')}"):
        bsnn.evaluate(network(), [(FRAMES, labels)], None)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_evaluate_takes_labels_of_any_integer_type(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = bsnn.Sequential(nn.Linear(4, 6), bsnn.LIF(), nn.Linear(6, 40))
    labels = torch.tensor([0, 7, 38, 39, 21])  # 39 · 40 does not fit eight bits
    found, expected = (bsnn.evaluate(net, [(FRAMES, kind)], None) for kind in (labels.to(dtype), labels))
    assert torch.equal(found.confusion, expected.confusion)
    assert found.total_loss == expected.total_loss


def test_evaluate_refuses_outputs_without_classes() -> None:
    net = bsnn.Sequential(nn.Linear(4, 3), bsnn.LIF(), nn.Unflatten(1, (3, 1)))
    with pytest.raises(bsnn.UserError, match=r"has shape \(5, 3, 1\); expected \[batch, classes\]"):
        bsnn.evaluate(net, [(FRAMES, LABELS)], None)


@pytest.mark.parametrize("time_steps", [2.5, "4", -1])
def test_a_number_of_time_steps_is_a_whole_one(time_steps) -> None:
    with pytest.raises(bsnn.UserError, match=f"time_steps: received {time_steps!r}; expected a whole number"):
        bsnn.predict(network(), FRAMES[0], time_steps)


def test_a_still_batch_is_shown_as_often_as_asked() -> None:
    repeated = torch.stack(list(itertools.repeat(FRAMES[0], 3)))
    net = network().eval()
    assert torch.equal(bsnn.predict(net, FRAMES[0], 3), bsnn.predict(net, repeated, None))
