"""What each layer holds in training, by hand: the numbers from which memory is predicted."""

import pytest
import torch
from torch import nn

import bsnn
from bsnn.online.ledger import _layers


@pytest.mark.parametrize(("gradient", "kept"), [("ottt", [0, 64]), ("sltt", [128, 64])])
def test_bytes_of_each_layer_by_hand(gradient: str, kept: list[int]) -> None:
    def neurons() -> nn.Module:
        return bsnn.LIF(gradient=gradient)  # pyright: ignore[reportArgumentType]

    net = bsnn.Sequential(
        nn.Conv2d(1, 2, 1), neurons(), bsnn.BinaryConv2d(2, 4, 3, padding=1), neurons(), nn.AvgPool2d(2),
        bsnn.BinaryConv2d(4, 3, 1), neurons(), nn.Flatten(), nn.Linear(12, 2),
    )  # fmt: skip
    real, first, second = _layers(net, torch.zeros(5, 1, 4, 4))
    # One sample, four bytes each. A trace is the neurons' own unless it was pooled; without one, the spikes are kept.
    assert (real.entering, real.leaving, real.kept, real.weights, real.neurons) == (0, 0, 0, 0, 4 * 2 * 16)
    numbers = [(layer.entering, layer.leaving, layer.weights, layer.neurons) for layer in (first, second)]
    assert numbers == [
        (4 * 2 * 16, 4 * 4 * 16, 4 * 4 * 2 * 9, 4 * 4 * 16),
        (4 * 4 * 4, 4 * 3 * 4, 4 * 3 * 4, 4 * 3 * 4),
    ]
    assert [first.kept, second.kept] == kept
    assert first.tiles is not None
    assert first.tiles[:3] == ((4, 2, 3, 3), (4, 4), (4, 4))
    assert not any(module._forward_hooks for module in net.modules())


class Own(bsnn.Stateful):
    def __init__(self, net: bsnn.Sequential) -> None:
        super().__init__()
        self.net = net

    def forward(self, x, state):
        return self.net(x, state)


@pytest.mark.parametrize("own", [False, True])
def test_a_state_that_code_of_ones_own_sees_is_there_twice(own: bool) -> None:
    net = bsnn.Sequential(nn.Linear(4, 8), bsnn.LIF(), bsnn.BinaryLinear(8, 6), bsnn.LIF(), nn.Linear(6, 2))
    copied = [layer.copied for layer in _layers(Own(net) if own else net, torch.zeros(5, 4))]
    assert copied == [own * 2 * 4 * 8, own * 2 * 4 * 6]  # a membrane and a trace, four bytes each
