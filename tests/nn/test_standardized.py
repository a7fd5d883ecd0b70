"""Scaled weight standardization against the formula and autograd."""

import pytest
import torch
from torch.nn import functional as F

import bsnn
from bsnn.models import nf_resnet34
from bsnn.nn.standardized import StandardizedConv2d, standardized
from bsnn.nn.trace import Activity


def test_weights_by_hand() -> None:
    weight = torch.tensor([[1.0, 2.0, 3.0, 6.0], [0.0, 0.0, 0.0, 4.0]]).view(2, 1, 2, 2)
    found = standardized(weight, torch.tensor([1.0, 2.0]))
    # Means 3 and 1; sums of squares 14 and 12, which are N · variance.
    first = [2.74 * d / 14**0.5 for d in (-2, -1, 0, 3)]
    second = [2 * 2.74 * d / 12**0.5 for d in (-1, -1, -1, 3)]
    assert found.flatten().tolist() == pytest.approx([*first, *second], rel=1e-5)


def test_the_weight_gradient_comes_from_the_trace() -> None:
    torch.manual_seed(0)
    layer = StandardizedConv2d(2, 3, 3, padding=1).double()
    spikes, trace = torch.rand(2, 4, 2, 5, 5).double()
    out = layer(Activity(spikes, trace))
    expected = F.conv2d(spikes, standardized(layer.weight, layer.gain), layer.bias, padding=1)
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    out.backward(grad)
    weight, gain = layer.weight.detach().clone().requires_grad_(), layer.gain.detach().clone().requires_grad_()
    F.conv2d(trace, standardized(weight, gain), padding=1).backward(grad)
    torch.testing.assert_close(layer.weight.grad, weight.grad)
    torch.testing.assert_close(layer.gain.grad, gain.grad)
    torch.testing.assert_close(layer.bias.grad, grad.sum((0, 2, 3)))


def test_resnet34_keeps_the_scale_of_what_flows_through_it() -> None:
    torch.manual_seed(0)
    net = nf_resnet34(num_classes=10, width=0.25, neuron=bsnn.LIF(gradient="ottt"))
    assert sum(isinstance(module, StandardizedConv2d) for module in net.modules()) == 1 + 2 * 16 + 3
    seen = []
    for name, module in net.named_children():
        if name.startswith("stage"):
            module.register_forward_hook(lambda module, inputs, output: seen.append(output[0].std().item()))
    net(torch.randn(2, 3, 64, 64), None)
    assert len(seen) == 16
    assert 0.05 < min(seen) < max(seen) < 20
