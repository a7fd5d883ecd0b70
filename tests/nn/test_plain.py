"""The ordinary network that others learn from: its formula, its precision, and how fast its shifts learn."""

import sys

import pytest
import torch
from torch.nn import functional as F

import bsnn
from bsnn.kernels.precision import precision
from bsnn.models.plain import plain
from bsnn.online.evaluate import predict
from bsnn.train.whitening import whiten

plain_module = sys.modules["bsnn.models.plain"]  # its function has the same name


def test_the_network_is_its_formula() -> None:
    torch.manual_seed(0)
    net = plain(num_classes=3, in_channels=1, width=1 / 16).double()
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    x = torch.randn(4, 1, 10, 10, dtype=torch.float64)

    def rectified(value: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        variance = value.var((0, 2, 3), keepdim=True, unbiased=False)
        normal = (value - value.mean((0, 2, 3), keepdim=True)) / (variance + 1e-5).sqrt()
        return (normal + shift[:, None, None]).relu()

    value = rectified(F.conv2d(x, net.stem.weight), net.norm.bias)
    for index in (1, 2, 3):
        layer = lambda name, index=index: getattr(net.body, name.format(index))  # noqa: E731
        pooled = F.max_pool2d(F.conv2d(value, layer("conv{}a").weight, padding=1), 2)
        value = rectified(pooled, 8 * layer("norm{}a").bias)
        value = rectified(F.conv2d(value, layer("conv{}b").weight, padding=1), 8 * layer("norm{}b").bias)
    expected = value.amax((2, 3)) @ net.body.classifier.weight.T / 9
    torch.testing.assert_close(net(x, None)[0], expected)


def test_convolutions_begin_as_the_identity() -> None:
    convolution = plain(width=1 / 8).body.conv1b
    x = torch.randn(1, 8, 5, 5)
    torch.testing.assert_close(convolution(x), x)
    wider = plain(width=1 / 8).body.conv2a
    torch.testing.assert_close(wider(x)[:, :8], x)
    assert wider(x)[:, 8:].abs().min() > 0


def test_shifts_learn_64_times_as_fast() -> None:
    x, usual = torch.randn(8, 4, 3, 3), torch.nn.BatchNorm2d(4)
    fast = type(plain(width=1 / 16).body.norm1a)(4)
    moved = []
    for norm in (usual, fast):
        torch.nn.init.zeros_(norm.bias)
        before = norm(x).detach()
        (norm(x) * torch.arange(4.0)[:, None, None]).sum().backward()
        with torch.no_grad():
            norm.bias -= 1e-3 * norm.bias.grad
        moved.append(norm(x).detach() - before)
    torch.testing.assert_close(moved[1], 64 * moved[0], rtol=1e-3, atol=1e-4)
    assert fast.weight.grad is None


@pytest.mark.parametrize("momentum", [0.1, None])
def test_statistics_are_those_of_torch(momentum: float | None) -> None:
    usual, fast = torch.nn.BatchNorm2d(4, momentum=momentum), type(plain(width=1 / 16).body.norm1a)(4)
    fast.momentum = momentum
    for _ in range(3):
        x = torch.randn(8, 4, 3, 3)
        usual(x), fast(x)
    for name, expected in usual.named_buffers():
        torch.testing.assert_close(dict(fast.named_buffers())[name], expected)
    torch.testing.assert_close(fast.eval()(x), usual.eval()(x))


@pytest.mark.parametrize("supported", [True, False])
def test_bf16_rounds_what_is_behind_the_first_layer(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(plain_module, "multiplies_bf16", lambda: supported)
    net, x = plain(width=0.25), torch.randn(4, 3, 16, 16)
    whiten(net, [x])
    assert not net.stem.weight.requires_grad
    seen = {}
    for name in ("stem", "norm", "body"):
        getattr(net, name).register_forward_hook(lambda *found, name=name: seen.setdefault(name, []).append(found[2]))
    exact = predict(net, x, 1)
    with precision("bf16"):
        rounded = predict(net, x, 1)
        net(x, None)[0].sum().backward()
    assert rounded.dtype == torch.float32
    assert torch.equal(*seen["norm"][:2])
    assert torch.equal(exact, rounded) != supported
    assert (exact - rounded).norm() < 0.05 * exact.norm()
    assert all(parameter.grad is not None for parameter in net.parameters() if parameter.requires_grad)


def test_images_that_are_too_small_are_refused() -> None:
    net = plain()
    assert net(torch.zeros(2, 3, 9, 9), None)[0].shape == (2, 10)
    with pytest.raises(bsnn.errors.UserError, match="at least 9 pixels"):
        net(torch.zeros(2, 3, 8, 8), None)


def test_export_names_what_has_no_deployed_form() -> None:
    with pytest.raises(
        bsnn.UserError, match=r"export: layer body\.lif \(Rectifier\) has no deployed form; expected conv"
    ):
        bsnn.export(plain(width=1 / 16).eval(), "model.bsnn", input_shape=(3, 32, 32))
