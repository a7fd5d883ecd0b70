"""Means of gradients over processes: small ones are sent together, once per backward pass."""

import pytest
import torch
from torch import Tensor, distributed, nn

import bsnn
from bsnn.train.averaging import average_gradients

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is sent, in a world of two whose other process has gradients five times as large."""
    found: list[int] = []

    def all_reduce(tensor: Tensor) -> None:
        found.append(tensor.numel())
        tensor *= 6

    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    return found


def network() -> bsnn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), bsnn.LIF(), bsnn.BinaryLinear(8, 8), bsnn.BatchNorm1d(8), bsnn.LIF(), nn.Linear(8, 3)
    return bsnn.Sequential(*layers)


def gradients(net: bsnn.Sequential, passes: int = 1) -> list[Tensor]:
    for _ in range(passes):
        net(X, None)[0].square().sum().backward()
    found = [parameter.grad for parameter in net.parameters()]
    assert all(gradient is not None for gradient in found)
    return [gradient for gradient in found if gradient is not None]


@pytest.mark.parametrize("passes", [1, 3])
def test_all_small_gradients_are_one_message(sent: list[int], passes: int) -> None:
    expected = gradients(network(), passes)
    net = network()
    average_gradients(net.parameters())
    found = gradients(net, passes)
    torch.testing.assert_close(found, [3 * gradient for gradient in expected])
    small = sum(p.numel() for p in net.parameters() if not isinstance(p, bsnn.BinaryParameter))
    assert sent == [64, small] * passes


def test_gradients_keep_adding_up_in_the_same_tensor(sent: list[int]) -> None:
    net = network()
    average_gradients(net.parameters())
    first = gradients(net)
    assert all(one is other for one, other in zip(first, gradients(net), strict=True))


def test_a_large_gradient_is_sent_at_once(sent: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bsnn.train.averaging._SMALL", 40)
    net = network()
    average_gradients(net.parameters())
    gradients(net)
    assert sent == [64, 48, 51]


def test_asking_for_gradients_leaves_those_that_are_there(sent: list[int]) -> None:
    net = network()
    average_gradients(net.parameters())
    before = [gradient.clone() for gradient in gradients(net)]
    del sent[:]
    weight = next(net.parameters())
    (local,) = torch.autograd.grad(net(X, None)[0].square().sum(), [weight])
    assert not sent
    torch.testing.assert_close(3 * local, before[0])
    torch.testing.assert_close([p.grad for p in net.parameters()], before, rtol=0, atol=0)


def test_a_backward_pass_that_fails_leaves_nothing_behind(sent: list[int]) -> None:
    net = network()
    average_gradients(net.parameters())
    before = [gradient.clone() for gradient in gradients(net)]

    def fail(_: Tensor) -> None:
        raise RuntimeError("a hook of the user's")

    handle = next(net.parameters()).register_hook(fail)
    with pytest.raises(RuntimeError, match="a hook of the user's"):
        net(X, None)[0].square().sum().backward()
    handle.remove()
    net.zero_grad()
    torch.testing.assert_close(gradients(net), before)
