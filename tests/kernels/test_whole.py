"""What a GPU without Triton runs, whole tensors in torch, against what a CPU runs; here on a CPU's tensors."""

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from flip_cases import every_rule_in_eight_bits
from torch import Tensor

import bsnn
from bsnn.kernels import loss, pieces
from bsnn.optim import FlipOptimizer, NotFinite

X = torch.randn(5, 2, 8, 8, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 3, 0])


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Called with whether tensors are worked on as a whole from now on."""
    return lambda yes: monkeypatch.setattr(pieces, "_is_whole_on_cpu", lambda: yes)


def network(leak: float = 0.5, rule: Any = "ottt") -> bsnn.ImageNetwork:
    torch.manual_seed(0)
    neuron = bsnn.LIF(leak=leak, gradient=rule)
    return bsnn.models.vgg((6, 9, "pool", 7), in_channels=2, num_classes=4, neuron=neuron)


def trained(make: Any, *, accumulate: bool = False, leak: float = 0.5, rule: Any = "ottt", **settings: Any) -> Any:
    """Everything that a few updates leave."""
    net = network(leak, rule)
    binary, real = bsnn.split_parameters(net)
    flip = make(binary, **settings)
    optimizers = [flip, torch.optim.SGD(real, lr=0.1, fused=True)]
    step_loss = functools.partial(bsnn.step_loss, labels=Y, time_steps=3)
    with bsnn.backend("fused"):
        for _ in range(2):
            outcome = bsnn.online_update(net, itertools.repeat(X, 3), step_loss, optimizers, accumulate=accumulate)
    bits = [weight.bits for weight in binary]
    moments = [flip.momentum(weight) for weight in binary]
    rest = {name: value for name, value in net.state_dict().items() if value.is_floating_point()}
    counted = [module.num_batches_tracked for module in net.modules() if isinstance(module, bsnn.BatchNorm2d)]
    return bits, flip.flip_counts, counted, [moments, rest, outcome.loss, outcome.logits]


@pytest.mark.parametrize("accumulate", [False, True])
@every_rule_in_eight_bits
def test_updates_are_those_of_a_cpu(make: Any, accumulate: bool, whole: Any) -> None:
    made = []
    for kind in (False, True):
        whole(kind)
        made.append(trained(make, accumulate=accumulate, gamma=1e-6))
    assert sum(made[0][1]) > 0
    torch.testing.assert_close(made[1][:3], made[0][:3], rtol=0, atol=0)
    torch.testing.assert_close(made[1][3], made[0][3], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", ["ottt", "ndot", "sltt"])
@pytest.mark.parametrize("leak", [0.5, 0.6])
def test_every_rule_and_leak(leak: float, rule: str, whole: Any) -> None:
    make = functools.partial(bsnn.optim.TBSO, time_steps=3, gamma=1e-2)
    made = []
    for kind in (False, True):
        whole(kind)
        made.append(trained(make, leak=leak, rule=rule))
    torch.testing.assert_close(made[1][:3], made[0][:3], rtol=0, atol=0)
    torch.testing.assert_close(made[1][3], made[0][3], rtol=1e-4, atol=1e-6)


def test_a_momentum_in_eight_bits_is_rounded_by_the_same_dice(whole: Any) -> None:
    made = []
    for kind in (False, True):
        whole(kind)
        made.append(trained(functools.partial(bsnn.optim.BSO, gamma=1e-3), momentum_bits=8))
    torch.testing.assert_close(made[1][:2], made[0][:2], rtol=0, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("lean", [False, True])
@every_rule_in_eight_bits
def test_a_gradient_that_is_not_finite_changes_no_weight_of_any_optimizer(
    make: Any, lean: bool, bad: float, whole: Any
) -> None:
    whole(True)
    layers = [bsnn.BinaryLinear(12, 5), bsnn.BinaryLinear(12, 5)]
    flips: list[FlipOptimizer] = [make([layer.weight]) for layer in layers]
    before = [layer.weight.bits.clone() for layer in layers]
    x = torch.ones(3, 12)
    with bsnn.backend("fused"), bsnn.optim.drive.Updates(flips, None if lean else 1e9) as updates:  # pyright: ignore
        (layers[0](x).sum() + bad * layers[1](x).sum()).backward()
        updates.update(0)
        for flip, layer, bits in zip(flips, layers, before, strict=True):
            assert torch.equal(layer.weight.bits, bits)
            assert not flip.momentum(layer.weight).any()  # pyright: ignore[reportArgumentType]
            with pytest.raises(NotFinite, match="held NaN or infinite values since this was last asked"):
                _ = flip.flip_counts


def labels(kind: str) -> Tensor:
    mixed = torch.rand(5, 4, generator=torch.Generator().manual_seed(2))
    return {"indices": Y, "distributions": mixed / mixed.sum(1, keepdim=True), "others": mixed}[kind]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["indices", "distributions", "others"])
def test_the_loss_and_its_gradient_are_those_of_torch(kind: str, smoothing: float, whole: Any) -> None:
    made = []
    for is_whole in (True, False):
        whole(is_whole)
        logits = (3 * torch.randn(5, 4, generator=torch.Generator().manual_seed(3))).requires_grad_()
        value = bsnn.step_loss(logits, labels(kind), time_steps=3, mse_share=0.2, label_smoothing=smoothing)
        (2 * value).backward()
        assert ("MixedLoss" in type(value.grad_fn).__name__) == is_whole
        made.append((value.detach(), logits.grad))
    torch.testing.assert_close(*made, rtol=1e-5, atol=1e-7)


def test_what_the_short_loss_does_not_compute_is_left_to_torch(whole: Any) -> None:
    whole(True)
    mixture = loss.Mixture(0.05, 0.0, 4)
    learned = torch.rand(5, 4, requires_grad=True)
    for logits, given in ((torch.randn(5, 4).double(), Y), (torch.randn(5, 4), learned), (torch.randn(0, 4), Y[:0])):
        assert loss.mixed_loss(logits, given, mixture) is None
