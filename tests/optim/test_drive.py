"""One call for all optimizers: a bad gradient of any of them reaches none."""

from collections.abc import Sequence

import pytest
import torch
from torch import nn

import bsnn
from bsnn.optim import BSO, TBSO, FlipOptimizer, NotFinite
from bsnn.optim.drive import Updates


@pytest.mark.parametrize("bad", ["binary", "real"])
@pytest.mark.parametrize("flip_first", [True, False])
def test_a_bad_gradient_changes_nothing(bad: str, flip_first: bool) -> None:
    binary, real = bsnn.BinaryLinear(8, 4).weight, nn.Parameter(torch.ones(4))
    flip, sgd = bsnn.optim.BSO([binary], gamma=0.0), torch.optim.SGD([real], lr=0.1)
    for name, parameter in (("binary", binary), ("real", real)):
        parameter.grad = torch.full(parameter.shape, torch.nan if name == bad else 1.0)
    signs = bsnn.signs(binary)
    with pytest.raises(NotFinite), Updates([flip, sgd] if flip_first else [sgd, flip]) as updates:
        updates.update(None)
    assert torch.equal(bsnn.signs(binary), signs)
    assert torch.equal(real.detach(), torch.ones(4))
    assert binary.grad is None
    assert real.grad is None


def _two() -> tuple[nn.Sequential, list[BSO]]:
    layers = nn.Sequential(bsnn.BinaryLinear(4, 4), bsnn.BinaryLinear(4, 4))
    return layers, [BSO([layer.weight], gamma=0.0) for layer in layers]


def _update(layers: nn.Module, flips: Sequence[FlipOptimizer], clip_norm: float | None, t: int) -> None:
    with Updates(flips, clip_norm) as updates:
        layers(torch.ones(2, 4)).square().sum().backward()
        updates.update(t)


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("clip_norm", [None, 1e9])
def test_a_bad_gradient_of_one_flip_optimizer_flips_nothing_in_the_others(bad: int, clip_norm: float | None) -> None:
    layers, flips = _two()
    layers[bad].weight.register_hook(lambda gradient: gradient * torch.nan)
    before = [bsnn.signs(layer.weight) for layer in layers]
    with pytest.raises(NotFinite, match="No weight was flipped"):
        _update(layers, flips, clip_norm, t=0)
    assert all(torch.equal(bsnn.signs(layer.weight), signs) for layer, signs in zip(layers, before, strict=True))
    assert all(layer.weight.grad is None for layer in layers)
    assert not flips[bad].momentum(layers[bad].weight).any()
    # Folded, the other's gradient is in its momentum already; kept to be clipped, none is.
    assert flips[1 - bad].momentum(layers[1 - bad].weight).any() == (clip_norm is None)


def test_a_time_step_that_one_of_them_does_not_have_flips_nothing() -> None:
    layers, _ = _two()
    flips = [BSO([layers[0].weight], gamma=0.0), TBSO([layers[1].weight], time_steps=2)]
    before = bsnn.signs(layers[0].weight)
    with pytest.raises(bsnn.UserError, match="received t=2"):
        _update(layers, flips, None, t=2)
    assert torch.equal(bsnn.signs(layers[0].weight), before)


def test_optimizers_may_come_from_a_generator() -> None:
    layer, real = bsnn.BinaryLinear(4, 2), nn.Parameter(torch.zeros(2))
    flip, ordinary = BSO([layer.weight], beta=0.0, gamma=0.0), torch.optim.SGD([real], lr=1.0)
    with Updates(optimizer for optimizer in (flip, ordinary)) as updates:
        (layer(torch.ones(1, 4)).sum() + real.sum()).backward()
        updates.update(0)
    assert real.tolist() == [-1.0, -1.0]
    assert (bsnn.signs(layer.weight) == -1).all()
