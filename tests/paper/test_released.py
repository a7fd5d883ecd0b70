"""What the authors' code does differently, by hand-computed values."""

import pytest
import torch
from torch import nn

import bsnn
from bsnn.models import resnet18
from bsnn.nn.synapse import TracedLinear
from bsnn.paper.released import TwiceResetLIF, vgg11


def test_the_trace_sees_a_membrane_that_was_reset_twice() -> None:
    neuron, plain, states, traces = TwiceResetLIF(gradient="ndot"), bsnn.LIF(gradient="ndot"), [None, None], []
    for current in (1.2, 0.9, 0.3):
        activity, states[0] = neuron(torch.tensor([[current]]), states[0])
        expected, states[1] = plain(torch.tensor([[current]]), states[1])
        assert torch.equal(activity.spikes, expected.spikes)
        assert torch.equal(states[0].membrane, states[1].membrane)
        traces.append(activity.trace.item())
    # u = 1.2 fires: m = 0.2, twice −0.8, and the trace is 1. u = 0.1 + 0.9 = 1 fires: m = 0, twice −1; the ratio
    # −1/−0.8 is clamped to 0.5, so the trace is 1.5. u = 0.3: the ratio 0.3/−1 = −0.3, so it is −0.45.
    assert traces == pytest.approx([1, 1.5, -0.45], abs=1e-6)


def test_the_first_convolution_has_a_bias_and_the_head_a_trace() -> None:
    torch.manual_seed(0)
    net = vgg11(3, 10, width=0.25, weights="binary", neuron=TwiceResetLIF(gradient="ndot"))
    assert [name for name, _ in net.named_children()][-1] == "classifier"
    assert net.conv1.bias is not None
    assert isinstance(net.classifier, TracedLinear)
    assert net.classifier.weight.std().item() == pytest.approx(0.01, rel=0.1)
    logits, _ = net(torch.randn(2, 3, 16, 16), None)
    logits.sum().backward()
    assert net.classifier.weight.grad is not None


def test_the_resnet_has_a_small_stem_and_no_neurons_before_pooling() -> None:
    net = resnet18(width=0.125, released=True)
    assert net.stem.kernel_size == (3, 3)
    assert net.stem.stride == (1, 1)
    assert isinstance(net.stem.bias, nn.Parameter)
    assert not hasattr(net, "lif")
    assert net(torch.zeros(1, 3, 32, 32), None)[0].shape == (1, 1000)
