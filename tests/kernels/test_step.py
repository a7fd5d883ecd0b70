"""The fused step against its modules one by one: a watched module is never fused."""

import functools
import itertools
from typing import Any

import pytest
import torch
from reference import watched
from torch import Tensor, nn
from torch.nn import functional as F

import bsnn
from bsnn.kernels import _chunked
from bsnn.nn import fused
from bsnn.nn.bits import BinaryParameter
from bsnn.nn.neuron import SpikeCount
from bsnn.optim import BSO, TBSO

pytestmark = pytest.mark.filterwarnings("ignore::bsnn.BackendWarning")  # hooks are how modules are kept from fusing

T = 3
CHANNELS = {"pooled": (6, "pool", 8, "pool", 8), "odd": (5, 7)}


def network(channels: str = "pooled", rule: Any = "ottt", dtype: torch.dtype = torch.float64) -> bsnn.ImageNetwork:
    torch.manual_seed(0)
    neuron = bsnn.LIF(leak=0.6, threshold=0.8, gradient=rule)
    net = bsnn.models.vgg(CHANNELS[channels], in_channels=2, num_classes=4, neuron=neuron).to(dtype)
    for module in net.modules():
        if isinstance(module, bsnn.BatchNorm2d):
            nn.init.uniform_(module.weight, -1.5, 1.5)
            nn.init.normal_(module.bias)
    return net


def gradients(net: bsnn.Stateful, frames: Tensor) -> list[tuple[dict[str, Tensor], Any]]:
    """Gradients and state of every time step, on fixed weights."""
    found, state = [], None
    for frame in frames:
        outputs, state = net(frame, state)
        net.zero_grad()
        outputs.square().sum().backward()
        found.append(({name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}, state))
    return found


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_chunked, "_CHUNK", 1000)  # several samples in one, and a last one that is not full


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("rule", ["ottt", "ndot", "sltt"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_gradients_and_states_are_those_of_the_modules(
    channels: str, rule: str, dtype: torch.dtype, tolerance: float
) -> None:
    lean, plain = network(channels, rule, dtype), watched(network(channels, rule, dtype))
    frames = torch.randn(T, 7, 2, 12, 12, dtype=dtype)
    for (ours, state), (theirs, expected) in zip(gradients(lean, frames), gradients(plain, frames), strict=True):
        assert ours.keys() == theirs.keys()
        for name, gradient in theirs.items():
            assert (ours[name] - gradient).norm() <= tolerance * gradient.norm(), name
        for a, b in zip(state, expected, strict=True):
            assert torch.equal(a.membrane, b.membrane)
            assert (a.trace is None) == (b.trace is None)
            assert a.trace is None or torch.equal(a.trace, b.trace)
    for (name, buffer), (_, other) in zip(lean.named_buffers(), plain.named_buffers(), strict=True):
        assert torch.equal(buffer, other), name


@pytest.mark.parametrize(("make", "accumulate"), [(functools.partial(TBSO, time_steps=T), False), (BSO, True)])
def test_in_double_the_weights_are_identical_after_200_updates(make, accumulate: bool) -> None:
    bits = []
    for watch in (False, True):
        net = network()
        if watch:
            watched(net)
        binary, real = bsnn.split_parameters(net)
        optimizers = [make(binary), torch.optim.SGD(real, lr=0.1)]
        data = torch.Generator().manual_seed(1)
        for _ in range(200 if accumulate else 200 // T + 1):
            x = torch.randn(8, 2, 8, 8, generator=data, dtype=torch.float64)
            loss = functools.partial(bsnn.step_loss, labels=(x[:, 0, 0, 0] > 0).long(), time_steps=T)
            bsnn.online_update(net, itertools.repeat(x, T), loss, optimizers, accumulate=accumulate)
        bits.append(torch.cat([p.bits for p in net.parameters() if isinstance(p, BinaryParameter)]))
    assert torch.equal(*bits)


def test_neurons_without_norm_and_flat_networks_are_fused_as_well() -> None:
    def build() -> bsnn.Sequential:
        torch.manual_seed(0)
        return bsnn.Sequential(
            nn.Linear(5, 9), bsnn.LIF(), bsnn.BinaryLinear(9, 6), bsnn.BatchNorm1d(6), bsnn.LIF(), nn.Linear(6, 3)
        ).double()

    lean, plain, frames = build(), watched(build()), torch.randn(T, 300, 5, dtype=torch.float64)
    for (ours, _), (theirs, _) in zip(gradients(lean, frames), gradients(plain, frames), strict=True):
        for name, gradient in theirs.items():
            torch.testing.assert_close(ours[name], gradient)


def test_a_residual_network_agrees() -> None:
    def build() -> bsnn.ImageNetwork:
        torch.manual_seed(0)
        return bsnn.models.resnet18(num_classes=3, width=0.05, stem=32).double()

    lean, plain, frames = build(), watched(build()), torch.randn(T, 4, 3, 9, 10, dtype=torch.float64)
    for (ours, _), (theirs, _) in zip(gradients(lean, frames), gradients(plain, frames), strict=True):
        for name, gradient in theirs.items():
            torch.testing.assert_close(ours[name], gradient, rtol=1e-9, atol=1e-12)


def test_only_the_loop_writes_over_a_state_and_never_over_the_callers() -> None:
    net, x = network(), torch.randn(4, 2, 8, 8, dtype=torch.float64)
    _, state = net(x, None)
    kept = bsnn.map_state(Tensor.clone, state)
    net(x, state)
    with fused.recycling_state(net):
        _, again = net(x, bsnn.map_state(Tensor.clone, state))
    bsnn.online_update(net, [x, x], lambda logits: logits.sum(), [], state=state)
    for before, after, moved in zip(kept, state, again, strict=True):
        assert torch.equal(before.membrane, after.membrane)
        assert torch.equal(before.trace, after.trace)
        assert not torch.equal(before.membrane, moved.membrane)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_backward_after_the_state_was_written_over_is_refused(dtype: torch.dtype) -> None:
    net, x = network(dtype=dtype), torch.randn(4, 2, 8, 8, dtype=dtype)
    logits, state = net(x, None)
    with fused.recycling_state(net):
        net(x, state)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        logits.sum().backward()


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("rule", ["ottt", "ndot", "sltt"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_without_gradients_all_is_that_of_the_modules_to_the_bit(
    context: Any, channels: str, rule: str, dtype: torch.dtype
) -> None:
    nets = network(channels, rule, dtype), watched(network(channels, rule, dtype))
    frames = torch.randn(T, 7, 2, 12, 12, dtype=dtype)
    found = []
    for net in nets:
        kept = []
        with context():
            with bsnn.estimating_statistics(net):
                kept += [bsnn.predict(net, frames, None), bsnn.predict(net, 2 * frames, None)]
            for mode in (False, True):
                net.train(mode)
                with bsnn.counting_spikes(net) as rates:
                    logits, state = net(frames[0], None)
                    kept += [logits, *net(frames[1], state), bsnn.predict(net, frames, None), rates.by_layer()]
                kept += [state, dict(net.named_buffers())]
        found.append(kept)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_spikes_are_counted_in_training_and_its_gradients_stay_those_of_the_fused_step() -> None:
    frames, found = torch.randn(T, 6, 2, 8, 8), []
    lean, plain = network(dtype=torch.float32), watched(network(dtype=torch.float32))
    expected = gradients(network(dtype=torch.float32), frames)
    for net in (lean, plain):
        with bsnn.counting_spikes(net) as rates:
            net.initial_state(frames[0])  # is not counted
            measured = gradients(net, frames)
            net(torch.randn(6, 2, 9, 9, generator=torch.Generator().manual_seed(1)), None)  # is not pooled in the step
            found.append((measured, rates.by_layer()))
    torch.testing.assert_close(found[0][0], expected, rtol=0, atol=0)
    assert found[0][1] == found[1][1]
    assert 0 < found[0][1]["lif1"] < 1


def test_a_network_that_shares_a_current_is_evaluated_without_writing_over_it() -> None:
    torch.manual_seed(0)
    shared = bsnn.Sequential(
        nn.Conv2d(2, 64, 3, padding=1),
        bsnn.Residual(bsnn.Sequential(bsnn.BatchNorm2d(64), bsnn.LIF(), bsnn.BinaryConv2d(64, 64, 3, padding=1))),
    ).eval()
    x = torch.randn(2, 2, 8, 8).contiguous(memory_format=torch.channels_last)  # else the step works on a copy anyway
    with torch.no_grad():
        ours = shared(x, None)[0]
        torch.testing.assert_close(ours, watched(shared)(x, None)[0], rtol=0, atol=0)


def test_what_cannot_be_fused_runs_as_modules() -> None:
    x = torch.randn(2, 3, 6, 6)
    norm, lif, pool = bsnn.BatchNorm2d(3), bsnn.LIF(), nn.AvgPool2d(2)
    assert fused.find_run([norm, lif, pool], 0, x) == (norm, lif, pool)
    assert fused.find_run([norm, lif, pool], 1, x) == (None, lif, pool)
    assert fused.find_run([norm, lif, nn.AvgPool2d(3)], 0, x) == (norm, lif, None)
    assert fused.find_run([norm, lif, pool], 0, x[..., :5]) == (norm, lif, None)
    assert fused.find_run([norm], 0, x) is None
    assert fused.find_run([norm, pool], 0, x) is None
    assert fused.find_run([norm, lif], 0, x.half()) is None
    assert fused.find_run([norm, lif], 0, x[0]) is None
    assert fused.find_run([norm.eval(), lif], 0, x) is None
    assert fused.find_run([norm.train(), bsnn.LIF(gradient="bptt")], 0, x) is None
    with torch.no_grad():
        assert fused.find_run([norm, lif], 0, x) == (norm, lif, None)
        assert fused.find_run([norm.eval(), lif], 0, x) == (norm, lif, None)
        assert fused.find_run([bsnn.BatchNorm2d(3, affine=False), lif], 0, x) is None
    norm.train()
    lif.register_forward_hook(SpikeCount())
    assert fused.find_run([norm, lif], 0, x) == (norm, lif, None)
    lif.register_forward_hook(lambda *_: None)
    assert fused.find_run([norm, lif], 0, x) is None


def test_a_watched_current_is_not_written_over() -> None:
    net = bsnn.models.vgg((32, 64), in_channels=2)
    x, seen = torch.randn(3, 2, 8, 8), []
    synapse = next(module for module in net.modules() if isinstance(module, bsnn.nn.synapse.TracedConv2d))
    logits, _ = net(x, None)
    with synapse.register_forward_hook(lambda _module, inputs, output: seen.append((inputs[0].spikes, output))):
        watched, _ = net(x, None)
    (spikes, current) = seen[0]
    weight = bsnn.signs(synapse.weight)
    assert torch.equal(current, F.conv2d(spikes, weight, padding=1))
    assert torch.equal(logits, watched)


class Keeping(bsnn.BinaryConv2d):
    def forward(self, x: Tensor | bsnn.Activity) -> Tensor:
        self.kept = super().forward(x)
        return self.kept


def test_a_current_that_somebody_keeps_is_not_written_over() -> None:
    spikes, seen = (torch.rand(3, 64, 8, 8) < 0.3).float(), []
    layer = Keeping(64, 64, 3, padding=1)
    expected_currents = layer(spikes).detach()
    net = bsnn.Sequential(layer, bsnn.BatchNorm2d(64), bsnn.LIF())
    net(spikes, None)
    assert torch.equal(layer.kept, expected_currents)
    usual = bsnn.BinaryConv2d(64, 64, 3, padding=1)
    usual.weight = layer.weight
    net = bsnn.Sequential(usual, bsnn.BatchNorm2d(64), bsnn.LIF())
    with torch.nn.modules.module.register_module_forward_hook(lambda _m, _i, output: seen.append(output)):
        net(spikes, None)
    assert torch.equal(seen[0], expected_currents)
