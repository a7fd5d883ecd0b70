"""A time step of neurons by Triton against the same step in whole tensors of torch."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import bsnn
from bsnn.kernels import operations, triton
from bsnn.kernels._whole import WholeNeurons
from bsnn.nn.fused import as_numbers

SHAPES = [(3, 16, 4, 6), (2, 7, 4, 2), (5, 70, 2, 2), (6, 37), (1, 8)]
SURROGATES = [
    bsnn.nn.surrogate.Sigmoid(),
    bsnn.nn.surrogate.Rectangle(0.7),
    bsnn.nn.surrogate.Triangle(0.9),
    bsnn.nn.surrogate.Arctan(3.0),
]


class Unfused(bsnn.OTTT):
    """OTTT's trace with its product and its sum rounded one by one, as a GPU's kernel rounds them."""

    elementwise = True
    kernel = "leaky"

    def trace(self, past: Tensor, spikes: Tensor, membrane: Tensor, previous: Tensor, leak: float) -> Tensor:
        return past * leak + spikes


RULES = {"ottt": Unfused, "ndot": bsnn.NDOT, "free ndot": functools.partial(bsnn.NDOT, clamp=False), "sltt": bsnn.SLTT}


def images(shape: tuple[int, ...], seed: int) -> Tensor:
    made = 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return made.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else made


def numbers(norm: bool, channels: int) -> operations.Norm | None:
    """BatchNorm in evaluation: a scale and a shift, which both sides apply alike."""
    if not norm:
        return None
    scale, shift = torch.linspace(0.5, 1.5, channels), torch.linspace(-0.3, 0.3, channels)

    def normalize(x: Tensor, _spare: bool) -> tuple[Tensor, None, None]:
        axes = (1, -1) + (1,) * (x.dim() - 2)
        return x * scale.view(axes) + shift.view(axes), None, None

    return operations.Norm(scale, shift, normalize, lambda: (scale, shift), None, None, 1e-5)


def packed(fired: Tensor) -> Tensor:
    """Bits of spikes, each pixel beginning with a byte."""
    rows = fired.movedim(1, -1).reshape(-1, fired.shape[1])
    rows = torch.nn.functional.pad(rows.int(), (0, -rows.shape[1] % 8)).view(len(rows), -1, 8)
    return (rows << torch.arange(8)).sum(-1).to(torch.uint8)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("leak", [0.5, 0.6])
@pytest.mark.parametrize("shape", SHAPES)
def test_spikes_membranes_traces_and_bits_are_equal(shape: tuple[int, ...], leak: float, rule: str) -> None:
    for pooled in (False, True) if len(shape) == 4 else (False,):
        made = []
        for kind in ("triton", "torch"):
            lif = bsnn.LIF(leak=leak, threshold=0.8, gradient=RULES[rule]())
            neuron = as_numbers(lif)
            kernel: Any = triton.neurons(images(shape, 0), neuron, pooled)
            if kind == "torch":
                kernel = WholeNeurons(neuron, pooled)
            membrane, trace = images(shape, 1), None if rule == "sltt" else images(shape, 2)
            membrane[0, 0] = 0  # where NDOT's ratio has no denominator
            sent, sent_trace, saved = kernel.forward(
                images(shape, 0), membrane, trace, numbers(True, shape[1]), learning=True, spare=False
            )
            bits = saved.bits[0] if kind == "triton" else packed(~saved.bits[0])
            saturation = lif.gradient.saturation if isinstance(lif.gradient, bsnn.NDOT) else None
            made.append((sent, sent_trace, membrane, trace, bits, saturation))
        torch.testing.assert_close(*made, rtol=0, atol=0)


@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda surrogate: type(surrogate).__name__)
@pytest.mark.parametrize("shape", [(3, 16, 4, 6), (2, 7, 4, 2), (6, 37)])
def test_gradients_behind_batchnorm_agree(shape: tuple[int, ...], surrogate: Any) -> None:
    for pooled in (False, True) if len(shape) == 4 else (False,):
        made = []
        for backend in ("triton", "reference"):
            norm = (bsnn.BatchNorm2d if len(shape) == 4 else bsnn.BatchNorm1d)(shape[1])
            torch.nn.init.uniform_(norm.weight, 0.5, 1.5, generator=torch.Generator().manual_seed(1))
            lif = bsnn.LIF(leak=0.5, surrogate=surrogate)
            net = bsnn.Sequential(norm, lif, *([torch.nn.AvgPool2d(2)] if pooled else []))
            x = images(shape, 0).requires_grad_()
            with bsnn.backend(backend):
                _, state = net(images(shape, 3), None)
                sent, state = net(x, state)
                (sent.spikes * torch.linspace(-1, 1, sent.spikes.numel()).view_as(sent.spikes)).sum().backward()
            assert x.grad is not None
            found = [x.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var]
            made.append([*found, sent.spikes, norm.num_batches_tracked, state[0].membrane])
        *ours, spikes, batches, membrane = made[0]
        *theirs, other_spikes, other_batches, other_membrane = made[1]
        assert torch.equal(spikes, other_spikes)
        assert batches == other_batches == 2
        torch.testing.assert_close(membrane, other_membrane, rtol=1e-5, atol=1e-6)
        for one, other in zip(ours, theirs, strict=True):
            assert (one - other).norm() <= 1e-5 * other.norm()


def test_statistics_keep_their_digits_beside_a_large_mean() -> None:
    x, norm = torch.randn(600, 3) + 1000, bsnn.BatchNorm1d(3, momentum=None)
    with bsnn.backend("triton"):
        bsnn.Sequential(norm, bsnn.LIF())(x, None)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    torch.testing.assert_close(norm.running_mean.double(), x.double().mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(norm.running_var.double(), x.double().var(0), rtol=1e-4, atol=0)


def test_evaluation_folds_batchnorm_as_torch_does() -> None:
    norm = bsnn.BatchNorm2d(37).eval()
    for values in (norm.running_mean, norm.running_var, norm.weight, norm.bias):
        assert values is not None
        torch.nn.init.uniform_(values, 0.1, 2.0)
    with torch.no_grad():
        with bsnn.backend("triton"):
            ours = norm.folded()
        with bsnn.backend("fused"):
            torch.testing.assert_close(ours, norm.folded(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_currents_in_half_precision(dtype: torch.dtype) -> None:
    from bsnn.kernels.triton._fire import fire

    x, membrane = images((3, 16), 0).to(dtype), torch.zeros(3, 16)
    sent, bits = torch.empty_like(x), torch.empty(3, 2, dtype=torch.uint8)
    fire(x, None, None, membrane, None, sent, None, bits, None, 0.5, 1.0, 0)
    assert torch.equal(sent, (x.float() >= 1).to(dtype))
    assert torch.equal(membrane, x.float() - (x.float() >= 1).float())


def test_nothing_enters_and_nothing_is_launched() -> None:
    neuron = as_numbers(bsnn.LIF())
    for shape in ((0, 4), (0, 4, 2, 2)):
        x = torch.empty(shape)
        kernel = triton.neurons(x, neuron, pooled=False)
        assert kernel is not None
        sent, _, saved = kernel.forward(x, x.clone(), x.clone(), None, learning=True, spare=False)
        assert sent.shape == x.shape
        gradient, _, _ = kernel.backward(sent, x.clone(), None, saved)
        assert gradient.shape == x.shape


def test_what_triton_does_not_know_is_left_to_torch() -> None:
    class Late(bsnn.OTTT):
        def trace(self, past: Tensor, *others: Any) -> Tensor:
            return past

    assert triton.neurons(torch.ones(2, 3), as_numbers(bsnn.LIF(gradient=Late())), pooled=False) is None
    assert triton.neurons(torch.ones(2, 3).double(), as_numbers(bsnn.LIF()), pooled=False) is None
    assert triton.neurons(torch.ones(2, 3, 3, 2), as_numbers(bsnn.LIF()), pooled=True) is None
