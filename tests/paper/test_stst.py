"""STS-T: mask, bias, size, and what an online rule leaves out."""

import pytest
import torch

import bsnn
from bsnn.models.transformer import SpikingAttention, stst
from bsnn.nn.surrogate import Triangle


def neuron(gradient: str = "bptt-full") -> bsnn.HardResetLIF:
    return bsnn.HardResetLIF(0.5, 1.0, Triangle(), gradient)


def small(gradient: str = "bptt-full", **options) -> bsnn.Sequential:
    torch.manual_seed(0)
    net = stst(5, 1, 0.125, time_steps=3, neuron=neuron(gradient), **options)
    for name, parameter in net.named_parameters():
        if name.endswith("bias") and parameter.dim() == 3:
            torch.nn.init.normal_(parameter)
    return net


def test_no_token_attends_to_later_steps() -> None:
    net = small().eval()
    torch.manual_seed(1)
    frames = list(2 * torch.randn(3, 2, 1, 32, 32))
    before, _ = net.sequence(frames, None)
    frames[2] = 5 * torch.randn(2, 1, 32, 32)
    after, _ = net.sequence(frames, None)
    torch.testing.assert_close(before[:2], after[:2])


def test_step_by_step_is_the_same() -> None:
    net, state = small().eval(), None
    frames = list(2 * torch.randn(3, 2, 1, 32, 32))
    together, _ = net.sequence(frames, None)
    for frame, expected in zip(frames, together, strict=True):
        logits, state = net(frame, state)
        torch.testing.assert_close(logits, expected)
    with pytest.raises(bsnn.UserError, match="received time step 4; expected at most 3"):
        net(frames[0], state)


def test_attention_is_the_formula() -> None:
    """(Q Kᵀ + bias[Δt, Δh, Δw]) ⊙ mask over all T·N tokens at once, times 0.125 V."""
    torch.manual_seed(0)
    layer = SpikingAttention(8, size=2, time_steps=3, neuron=neuron())
    torch.nn.init.normal_(layer.bias)
    seen: dict[str, list[torch.Tensor]] = {}
    for name in ("query", "key", "value"):
        original = getattr(layer, name).sequence

        def record(frames, state, original=original, name=name):
            sent, state = original([3 * frame for frame in frames], state)
            seen[name] = sent
            return sent, state

        object.__setattr__(getattr(layer, name), "sequence", record)
    currents = []
    original = layer.neuron.sequence
    object.__setattr__(
        layer.neuron, "sequence", lambda frames, state: (currents.extend(frames), original(frames, state))[1]
    )
    layer.eval().sequence(list(torch.randn(3, 2, 8, 2, 2)), None)
    # Tokens in the order t, h, w.
    q, k, v = (torch.cat([part.flatten(2) for part in seen[name]], dim=2).transpose(1, 2) for name in seen)
    assert q.abs().sum() > 0
    places = [(t, h, w) for t in range(3) for h in range(2) for w in range(2)]
    weights = q @ k.transpose(1, 2)
    for i, (t, h, w) in enumerate(places):
        for j, (t2, h2, w2) in enumerate(places):
            if t2 > t:
                weights[:, i, j] = 0
            else:
                weights[:, i, j] += layer.bias[t - t2, h - h2 + 1, w - w2 + 1].detach()
    expected = 0.125 * (weights @ v)
    found = torch.cat([current.flatten(2) for current in currents], dim=2).transpose(1, 2)
    torch.testing.assert_close(found, expected)


def test_the_size_is_near_that_of_table_5() -> None:
    net = stst(neuron=neuron())
    assert bsnn.model_size(net).stored_bytes / 1e6 == pytest.approx(6.26, abs=5e-3)


def test_the_loss_reaches_past_keys_by_bptt_and_not_online() -> None:
    torch.manual_seed(0)
    frames = [3 * torch.randn(4, 16, 2, 2) for _ in range(2)]
    gradients = {}
    for rule in ("bptt", "sltt"):
        torch.manual_seed(1)
        layer = SpikingAttention(16, size=2, time_steps=2, neuron=neuron(rule)).eval()
        with torch.no_grad():
            layer.bias.add_(1.0)
        _, state = layer(frames[0], None)
        # With fresh neurons, keys and values are all that is left of the first step.
        out, _ = layer(frames[1], state._replace(neurons=(None,) * 5))
        (gradients[rule],) = torch.autograd.grad(out.sum(), layer.key[0].weight)
    assert not torch.allclose(gradients["bptt"], gradients["sltt"])


def test_a_rule_with_a_trace_is_refused() -> None:
    with pytest.raises(bsnn.UserError, match="a product of spikes has no trace"):
        stst(neuron=bsnn.HardResetLIF(gradient="ottt"))
    with pytest.raises(bsnn.UserError, match=r"received a map of \(1, 1\) tokens; expected 2 each way"):
        small().eval()(torch.zeros(1, 1, 16, 16), None)


def test_t_bso_trains_its_binary_layers_online() -> None:
    net = small("sltt", weights="binary")
    binary, real = bsnn.split_parameters(net)
    assert len(binary) == 12
    flip = bsnn.optim.TBSO(binary, time_steps=3, gamma=0.0)
    labels = torch.tensor([0, 1])
    outcome = bsnn.online_update(
        net,
        list(2 * torch.randn(3, 2, 1, 32, 32)),
        lambda logits: bsnn.step_loss(logits, labels, time_steps=3),
        [flip, torch.optim.SGD(real, lr=0.1)],
    )
    assert outcome.loss.isfinite()
    assert flip.flip_ratio > 0
