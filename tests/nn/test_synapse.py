import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bsnn
from bsnn.nn.bits import BinaryParameter


@pytest.mark.parametrize(
    "geometry",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": (3, 1), "stride": (2, 1), "padding": (1, 0)},
        {"kernel_size": 3, "dilation": 2, "groups": 2},
        {"kernel_size": 1, "stride": 2},
    ],
)
def test_convolution_equals_torch_on_the_signs(geometry) -> None:
    layer = bsnn.BinaryConv2d(4, 6, **geometry)
    x = (torch.rand(2, 4, 9, 8) < 0.3).float().requires_grad_()
    plain, dense = x.detach().clone().requires_grad_(), bsnn.signs(layer.weight).requires_grad_()
    options = {name: value for name, value in geometry.items() if name != "kernel_size"}
    expected = F.conv2d(plain, dense, **options)
    assert torch.equal(layer(x), expected)
    upstream = torch.randn_like(expected)
    layer(x).backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(x.grad, plain.grad)
    torch.testing.assert_close(layer.weight.grad, dense.grad)


def test_linear_equals_torch_on_the_signs_with_leading_axes() -> None:
    layer = bsnn.BinaryLinear(5, 3)
    x = torch.randn(2, 4, 5, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(layer(x), F.linear(x, bsnn.signs(layer.weight)))
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, x.detach().sum((0, 1)).expand(3, 5))


def test_layers_have_no_bias_and_one_bit_a_weight() -> None:
    layer = bsnn.BinaryConv2d(16, 32, 3)
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    assert isinstance(layer.weight, BinaryParameter)
    assert layer.weight.bits.numel() == 16 * 32 * 9 // 8


def test_initial_weights_are_balanced_and_seeded() -> None:
    torch.manual_seed(7)
    first = bsnn.signs(bsnn.BinaryLinear(100, 100).weight)
    torch.manual_seed(7)
    second = bsnn.signs(bsnn.BinaryLinear(100, 100).weight)
    assert torch.equal(first, second)
    assert abs(first.mean()) < 0.05


def test_one_convolution_a_step_and_nothing_dense_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = F.conv2d
    monkeypatch.setattr(F, "conv2d", lambda *args: calls.append(1) or original(*args))
    layer = bsnn.BinaryConv2d(8, 16, 3, padding=1)
    spikes, trace = torch.ones(2, 8, 6, 6, requires_grad=True), torch.rand(2, 8, 6, 6)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        layer(bsnn.Activity(spikes, trace))
    assert len(calls) == 1
    kept = [t.untyped_storage().data_ptr() for t in saved if t.untyped_storage().nbytes() > 8]
    assert kept == [trace.data_ptr(), layer.weight.bits.data_ptr()]


def test_a_flip_between_forward_and_backward_is_noticed() -> None:
    layer = bsnn.BinaryLinear(4, 4)
    output = layer(torch.ones(1, 4, requires_grad=True))
    layer.weight.flip_(torch.ones(16, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_latent_weights_pass_straight_through_within_one() -> None:
    layer = bsnn.TracedLinear(4, 1, weights="latent")
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[0.0, -0.5, 1.5, -1.5]]))
    output = layer(torch.ones(1, 4))
    assert output.item() == 1 - 1 + 1 - 1
    output.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[1, 1, 0, 0]]


@pytest.mark.parametrize("inside", [True, False])
def test_the_loop_of_the_design_runs_in_mixed_precision(inside: bool) -> None:
    net = bsnn.models.vgg((8, "pool", 8), in_channels=1)
    binary, real = bsnn.split_parameters(net)
    flip, sgd = bsnn.optim.TBSO(binary, time_steps=2), torch.optim.SGD(real, lr=0.1)
    x, y = torch.randn(4, 1, 8, 8), torch.arange(4)
    with torch.autocast("cpu", torch.bfloat16, enabled=inside):
        state = net.initial_state(x)
    for t in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            logits, state = net(x, state)
        F.cross_entropy(logits.float(), y).backward()
        flip.step(t=t)
        sgd.step()
        flip.zero_grad()
        sgd.zero_grad()
    assert state[0].membrane.dtype == torch.float32
    assert sum(flip.flip_counts) > 0


def test_a_network_in_half_precision_trains() -> None:
    net = bsnn.models.vgg((8, 8), in_channels=1).to(torch.bfloat16)
    binary, real = bsnn.split_parameters(net)
    optimizers = [bsnn.optim.BSO(binary), torch.optim.SGD(real, lr=0.1)]
    x = torch.randn(4, 1, 8, 8, dtype=torch.bfloat16)
    bsnn.online_update(net, [x, x], lambda logits: F.cross_entropy(logits.float(), torch.arange(4)), optimizers)


def test_a_single_sample_without_batch_axis() -> None:
    layer = bsnn.BinaryLinear(4, 2)
    layer(torch.ones(4, requires_grad=True)).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.eq(1).all()
    with pytest.raises(bsnn.UserError, match=r"received input of shape \(2, 5, 5\)"):
        bsnn.BinaryConv2d(2, 4, 3)(torch.ones(2, 5, 5))


def test_autocast_gives_gradients_of_the_parameters_type() -> None:
    layer = bsnn.BinaryConv2d(2, 4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        layer(torch.ones(1, 2, 5, 5)).float().sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bsnn.BinaryConv2d(3, 4, 3, groups=2), "groups: received 2 for 3 to 4"),
        (lambda: bsnn.BinaryConv2d(3, 4, 3, padding="same"), "received 'same'; expected a whole number"),
        (lambda: bsnn.BinaryLinear(0, 4), "expected positive sizes"),
        (lambda: bsnn.TracedLinear(2, 2, weights="ternary"), "expected 'binary', 'latent' or 'real'"),
    ],
)
def test_bad_geometry_is_refused(make, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        make()


def test_a_binary_layer_refuses_ordinary_weights() -> None:
    layer = bsnn.BinaryLinear(4, 3)
    values = bsnn.signs(layer.weight) / 2
    with pytest.raises(bsnn.UserError, match="received a Tensor as the weight of a binary layer"):
        torch.func.functional_call(layer, {"weight": values}, (torch.ones(1, 4),))
    layer.weight = torch.nn.Parameter(values)
    with pytest.raises(bsnn.UserError, match=r"BinaryParameter\.from_signs"):
        layer(torch.ones(1, 4))
    layer.weight = bsnn.BinaryParameter.from_signs(values)
    assert torch.equal(layer(torch.ones(1, 4)), 2 * values.sum(dim=1)[None])


def test_a_users_own_binary_layer() -> None:
    class Scaled(bsnn.BinaryModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = BinaryParameter.from_signs(torch.randn(3, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.linear(x, bsnn.signs(self.weight)) / 2

    assert Scaled().double()(torch.ones(1, 4, dtype=torch.float64)).dtype == torch.float64
    assert isinstance(nn.Sequential(Scaled())[0].weight, BinaryParameter)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stride": 0}, r"stride: received \(0, 0\); expected 1 or more"),
        ({"padding": (1, -1)}, r"padding: received \(1, -1\); expected 0 or more"),
        ({"dilation": (0, 2)}, r"dilation: received \(0, 2\); expected 1 or more"),
    ],
)
def test_a_geometry_that_cannot_be_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        bsnn.BinaryConv2d(2, 4, 3, **settings)
