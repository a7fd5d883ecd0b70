"""Forward hooks on layers that a trace passes through, and which layers these are."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bsnn

pytestmark = pytest.mark.filterwarnings("ignore::bsnn.errors.BackendWarning")


def network(layer: nn.Module, rule: str = "ottt") -> bsnn.Sequential:
    torch.manual_seed(0)
    return bsnn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), bsnn.LIF(gradient=rule), layer, bsnn.BinaryConv2d(4, 2, 3, padding=1)
    )


def run(net: bsnn.Sequential, steps: int = 3) -> Tensor:
    """The gradient of the synapse after some time steps."""
    torch.manual_seed(1)
    state = None
    for _ in range(steps):
        current, state = net(2 * torch.randn(2, 1, 8, 8), state)
        current.square().sum().backward()
    gradient = net[3].weight.grad
    assert isinstance(gradient, Tensor)
    return gradient


@pytest.mark.parametrize("rule", ["ottt", "ndot", "sltt"])
@pytest.mark.parametrize("layer", [nn.AvgPool2d(2), nn.Identity(), nn.ZeroPad2d(1)])
def test_a_hook_sees_the_spikes_once_per_time_step_and_changes_nothing(layer: nn.Module, rule: str) -> None:
    expected, net = run(network(layer, rule)), network(layer, rule)
    seen: list[Tensor] = []
    handles = [
        net[2].register_forward_pre_hook(lambda _layer, inputs: seen.append(inputs[0].detach().clone())),
        net[2].register_forward_hook(lambda _layer, _inputs, output: seen.append(output.detach().clone())),
    ]
    torch.testing.assert_close(run(net), expected, rtol=1e-6, atol=1e-6)
    for handle in handles:
        handle.remove()
    assert len(seen) == 2 * 3
    assert all(set(spikes.unique().tolist()) <= {0.0, 1.0} for spikes in seen[::2])


def doubled(_layer: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    return 2 * output


def doubled_in_place(_layer: nn.Module, _inputs: Any, output: Tensor) -> None:
    output.data.mul_(2)


@pytest.mark.parametrize("hook", [doubled, doubled_in_place])
@pytest.mark.parametrize("layer", [nn.AvgPool2d, nn.Identity])
def test_a_hook_that_changes_the_spikes_ends_the_trace(layer: Any, hook: Any) -> None:
    net = network(layer(2))
    net[2].register_forward_hook(hook)
    words = rf"layer 2 \({layer.__name__}\), whose output a hook changes, stands between a neuron and this BinaryConv2d"
    with pytest.raises(bsnn.UserError, match=words):
        run(net)
    without = network(layer(2), "sltt")
    without[2].register_forward_hook(hook)
    assert run(without).abs().sum() > 0


@pytest.mark.parametrize(
    "layer",
    [
        nn.ConstantPad2d(1, 0.0),
        nn.CircularPad2d(1),
        nn.ReflectionPad2d(1),
        nn.ReplicationPad2d(1),
        nn.UpsamplingNearest2d(scale_factor=2),
        nn.UpsamplingBilinear2d(scale_factor=2),
        nn.Upsample(scale_factor=2, mode="bicubic"),
    ],
)
def test_a_trace_passes_through_linear_layers(layer: nn.Module) -> None:
    """The trace of what leaves, λ â + f(s), is f of the trace that enters."""
    net = network(layer).double()
    received: list[bsnn.Activity] = []
    net[3].register_forward_hook(lambda _layer, inputs, _output: received.append(inputs[0]))
    torch.manual_seed(1)
    state, trace = None, None
    for _ in range(4):
        _, state = net(2 * torch.randn(2, 1, 8, 8, dtype=torch.float64), state)
        spikes = received[-1].spikes.detach()
        trace = spikes if trace is None else 0.5 * trace + spikes
        torch.testing.assert_close(received[-1].trace, trace)
    assert trace is not None
    assert trace.abs().sum() > 0


def test_padding_by_another_constant_does_not_pass_it_on() -> None:
    zero = nn.ZeroPad2d(1)
    zero.value = 1.0  # pyright: ignore[reportAttributeAccessIssue]
    for layer in (nn.ConstantPad2d(1, 0.5), zero):
        with pytest.raises(bsnn.UserError, match=rf"layer 2 \({type(layer).__name__}\) stands between"):
            run(network(layer))


def test_a_full_backward_hook_on_a_neuron_is_not_called_but_one_on_its_spikes_is() -> None:
    """What docs/pytorch.md says: torch looks for tensors in the output, and finds a tuple in a tuple."""
    net, called = network(nn.Identity()), []

    def watch(_neuron: nn.Module, _inputs: Any, output: Any) -> None:
        output[0].spikes.register_hook(lambda _gradient: called.append("spikes"))

    net[1].register_full_backward_hook(lambda *_: called.append("neuron"))
    net[1].register_forward_hook(watch)
    run(net, steps=2)
    assert called == ["spikes", "spikes"]
