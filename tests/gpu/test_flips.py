"""Weights, momentum and flips by Triton against torch; and a GPU's way to refuse gradients without a wait."""

import copy
import functools
import itertools
import math
from typing import Any

import pytest
import torch
from flip_cases import every_rule_in_eight_bits
from torch import Tensor

import bsnn
from bsnn.kernels.bits import pack, unpack
from bsnn.kernels.triton import signs
from bsnn.optim import FlipOptimizer, NotFinite, momentum


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7, 5, 3, 3), (16, 8, 3, 3), (2, 3, 1, 2), (10, 33), (13,), (0, 4)])
def test_signs_stand_in_the_order_of_the_convolution(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    bits = pack(torch.randn(shape) >= 0)
    made = signs(bits, torch.Size(shape), dtype)
    assert made is not None
    assert torch.equal(made, unpack(bits, math.prod(shape), dtype).view(shape))
    if len(shape) == 4:
        assert made.is_contiguous(memory_format=torch.channels_last)


def trained(make: Any, backend: str, momentum_bits: int, accumulate: bool) -> tuple[FlipOptimizer, Tensor]:
    """A few updates of a parameter of an odd size."""
    random = torch.Generator().manual_seed(0)
    weight = bsnn.BinaryParameter.from_signs(torch.randn(37, 29, generator=random))
    flip = make([weight], momentum_bits=momentum_bits)
    with bsnn.backend(backend):
        for t in itertools.islice(itertools.cycle(range(3)), 6):
            weight.grad = torch.randn(weight.shape, generator=random)
            if accumulate:
                flip.accumulate(t=t)
            else:
                flip.step(t=t)
                weight.grad = None
        if accumulate:
            flip.step()
        assert sum(flip.flip_counts) > 0
    return flip, weight.bits


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("momentum_bits", [8, 32])
@every_rule_in_eight_bits
def test_momentum_and_flips_are_equal(make: Any, momentum_bits: int, accumulate: bool) -> None:
    ours, bits = trained(make, "triton", momentum_bits, accumulate)
    theirs, expected = trained(make, "fused", momentum_bits, accumulate)
    assert torch.equal(bits, expected)
    assert ours.flip_counts == theirs.flip_counts
    for one, other in zip(ours.state.values(), theirs.state.values(), strict=True):
        for name in one:
            close = dict(rtol=1e-12, atol=0) if name in ("second_moment", "noise") else dict(rtol=0, atol=0)
            torch.testing.assert_close(one[name], other[name], **close)


@pytest.mark.parametrize("momentum_bits", [8, 32])
def test_parameters_of_any_size_flip_in_one_launch(momentum_bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from bsnn.kernels.triton import _flips  # which imports Triton

    launches: list[tuple[int, ...]] = []
    launch = _flips.launch

    def counted(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        launches.append(grid)
        launch(kernel, grid, *arguments, **constants)

    monkeypatch.setattr(_flips, "launch", counted)
    made = []
    for backend in ("triton", "fused"):
        random = torch.Generator().manual_seed(0)
        sizes = (37, 29), (3,), (5000,), (8, 3, 3, 3)
        weights = [bsnn.BinaryParameter.from_signs(torch.randn(size, generator=random)) for size in sizes]
        flip = bsnn.optim.TBSO(weights, time_steps=2, gamma=1e-2, momentum_bits=momentum_bits)
        with bsnn.backend(backend):
            for t in (0, 1, 0, 1):
                for weight in weights:
                    weight.grad = torch.randn(weight.shape, generator=random)
                flip.step(t=t)
            made.append(([weight.bits for weight in weights], flip.flip_counts))
    assert all(made[0][1])
    torch.testing.assert_close(*made, rtol=0, atol=0)
    assert launches == [(1 + 1 + 3 + 1,)] * 4


def test_the_kernel_rounds_by_dice_of_its_own() -> None:
    from bsnn.kernels.triton import _momentum

    gradient = torch.linspace(-1, 1, 40 * 256)
    refused = torch.zeros((), dtype=torch.float64)

    def folded(seed: int) -> Tensor:
        codes, scales = momentum.zeros(gradient.numel(), gradient.device)
        _momentum.fold_8(gradient, codes, scales, None, refused, seed, 1.0, False)
        return momentum.decode(codes, scales)

    values = torch.stack([folded(seed) for seed in range(30)])
    assert torch.equal(values[3], folded(3))
    assert not torch.equal(values[3], values[4])
    # Levels around a value are at most 2/127 of the block's largest apart, and rounding is right on average.
    scale = gradient.abs().view(-1, 256).amax(1).repeat_interleave(256)
    assert ((values - gradient).abs() <= 2 / 127 * scale).all()
    assert (values.mean(0) - gradient).div(scale).mean().abs() < 1e-4
    assert (values.mean(0) - gradient).div(scale).abs().mean() < 2 / 127 / 5


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # of the interpreter
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@every_rule_in_eight_bits
def test_a_gradient_that_is_not_finite_changes_nothing_until_the_host_asks(make: Any, bad: float) -> None:
    weights = [bsnn.BinaryParameter.from_signs(torch.randn(40)) for _ in range(2)]
    flip = make(weights)
    with bsnn.backend("triton"):
        for broken in (False, True, False):
            for weight in weights:
                weight.grad = torch.randn(40)
            if broken:
                weights[1].grad[3] = bad  # pyright: ignore[reportOptionalSubscript]
            flip.step(t=0)
            if not broken and not flip._refusals[torch.device("cpu")].isnan():
                before = copy.deepcopy([weight.bits for weight in weights]), copy.deepcopy(flip.state_dict()["state"])
        after = [weight.bits for weight in weights], {i: flip.state[weight] for i, weight in enumerate(weights)}
        torch.testing.assert_close(after, before, rtol=0, atol=0)  # pyright: ignore[reportPossiblyUnboundVariable]
        with pytest.raises(NotFinite, match="held NaN or infinite values since this was last asked"):
            _ = flip.flip_counts
        flip.zero_grad()
        weights[0].grad = weights[1].grad = torch.randn(40)
        flip.step(t=0)
        assert sum(flip.flip_counts) >= 0


def network() -> tuple[bsnn.Sequential, list[torch.optim.Optimizer]]:
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 8), bsnn.LIF(), bsnn.BinaryLinear(8, 8), bsnn.BatchNorm1d(8), bsnn.LIF()
    net = bsnn.Sequential(*layers, torch.nn.Linear(8, 3))
    binary, real = bsnn.split_parameters(net)
    return net, [bsnn.optim.TBSO(binary, time_steps=2, gamma=1e-3), torch.optim.SGD(real, lr=0.1, fused=True)]


def test_a_bad_gradient_of_real_weights_changes_no_weight_at_all() -> None:
    net, optimizers = network()
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])

    def loss(logits: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits, y)

    with bsnn.backend("triton"):
        bsnn.online_update(net, [x, x], loss, optimizers)
        before = [p.clone() if p.is_leaf and not isinstance(p, bsnn.BinaryParameter) else p.bits.clone()  # pyright: ignore
                  for p in net.parameters()]  # fmt: skip
        bsnn.online_update(net, [x, x], lambda logits: loss(logits) * math.inf, optimizers)
        bsnn.online_update(net, [x, x], loss, optimizers)
        after = [p.bits if isinstance(p, bsnn.BinaryParameter) else p.detach() for p in net.parameters()]
        torch.testing.assert_close(after, [b.detach() for b in before], rtol=0, atol=0)
        assert isinstance(optimizers[0], FlipOptimizer)
        with pytest.raises(NotFinite):
            optimizers[0].check_refused()


def test_training_is_that_of_torch() -> None:
    made = []
    for backend in ("triton", "reference"):
        net, optimizers = network()
        x, y = torch.randn(4, 6, generator=torch.Generator().manual_seed(3)), torch.tensor([0, 1, 2, 0])
        loss = functools.partial(bsnn.step_loss, labels=y, time_steps=2)
        with bsnn.backend(backend):
            for _ in range(3):
                outcome = bsnn.online_update(net, [x, x], loss, optimizers)
        made.append((outcome.logits, net[2].weight.bits))  # pyright: ignore
    torch.testing.assert_close(*made, rtol=1e-5, atol=1e-5)
