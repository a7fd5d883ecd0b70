"""Products on tensor cores: exact forward, wherever that is known, and as many digits backward as are asked for."""

import functools
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import bsnn
from bsnn.errors import UserError
from bsnn.kernels import precision
from bsnn.kernels.precision import is_exact, mark_levels
from bsnn.kernels.torch_internals import multiplies_bf16


def tf32(x: Tensor) -> Tensor:
    """A number as TF32 has it: eleven significant bits, the leading one included."""
    fraction, exponent = x.double().frexp()
    return (fraction * 2**11).round().div(2**11).ldexp(exponent).float()


@pytest.mark.parametrize("levels", [1, 4, 16, 1024])
def test_factors_lose_no_digit_and_the_bound_on_sums_is_sharp(levels: int) -> None:
    values = torch.arange(levels + 1) / levels
    assert torch.equal(tf32(values), values)
    most = 2**24 // levels
    assert is_exact(levels, most)
    assert not is_exact(levels, most + 1)
    # The largest sum, and every whole number of 1/L below it, is a single-precision number; above it some are not.
    largest = torch.tensor(most, dtype=torch.float64)
    for number, kept in ((largest, True), (largest - 1 / levels, True), (largest + 1 / levels, False)):
        assert (number.float().double() == number) == kept


def test_what_is_no_power_of_two_is_not_exact() -> None:
    assert not is_exact(3, 9)
    assert not is_exact(9, 9)
    assert not is_exact(2**11, 9)


@pytest.mark.parametrize("pooled", [False, True])
def test_a_binary_convolution_in_tf32_gives_the_same_bits(pooled: bool) -> None:
    random = torch.Generator().manual_seed(0)
    spikes = (torch.rand(2, 64, 8, 8, generator=random) < 0.3).float()
    spikes = F.avg_pool2d(spikes, 2) if pooled else spikes
    weight = torch.randn(8, 64, 3, 3, generator=random).sign()
    expected = F.conv2d(spikes.double(), weight.double(), padding=1)
    assert torch.equal(F.conv2d(tf32(spikes), tf32(weight), padding=1).double(), expected)


class Watched:
    """Stands for torch's switches of tensor cores, which a CPU does not have."""

    fp32_precision = "none"


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Watched:
    watched = Watched()
    monkeypatch.setattr(torch.backends.cudnn, "conv", watched)
    monkeypatch.setattr(torch.backends.cuda, "matmul", watched)
    return watched


class OnGpu:
    """Stands for a tensor on a GPU."""

    device, dtype = torch.device("cuda"), torch.float32


@pytest.mark.parametrize(
    ("levels", "products", "binary", "asked", "used"),
    [
        (4, 4608, True, "fp32", "tf32"),
        (1, 4608, True, "bf16", "tf32"),
        (None, 4608, True, "fp32", "ieee"),  # who knows what enters
        (4, 4608, False, "fp32", "ieee"),  # real-valued weights
        (4, 2**22 + 1, True, "fp32", "ieee"),
        (None, 4608, False, "tf32", "tf32"),
        (None, 4608, False, "bf16", "tf32"),
    ],
)
def test_tensor_cores_are_used_where_that_is_exact(
    levels: int | None, products: int, binary: bool, asked: str, used: str, switch: Watched
) -> None:
    x: Any = OnGpu()
    if levels is not None:
        mark_levels(x, levels)
    with bsnn.precision(asked):
        with precision.multiplying_forward(x, products, binary) as rounded:
            assert switch.fp32_precision == used
            assert rounded == (torch.bfloat16 if asked == "bf16" and not binary else None)
        assert switch.fp32_precision == "none"
        with precision.multiplying_backward(x) as rounded:
            assert switch.fp32_precision == ("ieee" if asked == "fp32" else "tf32")
            assert rounded == (torch.bfloat16 if asked == "bf16" else None)
    assert switch.fp32_precision == "none"


def test_spikes_of_fused_neurons_say_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    forward = precision.multiplying_forward

    def watched(x: Tensor, products: int, binary: bool) -> Any:
        seen.append((getattr(x, "bsnn_levels", None), products, binary))
        return forward(x, products, binary)

    monkeypatch.setattr("bsnn.kernels.product.multiplying_forward", watched)
    net = bsnn.models.vgg((4, 6, "pool", 8), in_channels=1)
    with bsnn.backend("fused"):
        net(torch.randn(2, 1, 8, 8), None)
    assert seen == [(1, 36, True), (4, 54, True)]


def gradients(name: str) -> list[Tensor]:
    torch.manual_seed(0)
    layers = bsnn.BinaryConv2d(64, 64, 3, padding=1), bsnn.BatchNorm2d(64), bsnn.LIF(), torch.nn.Flatten()
    net = bsnn.Sequential(bsnn.LIF(), *layers, bsnn.BinaryLinear(1024, 8))
    x = torch.randn(2, 64, 4, 4, requires_grad=True)
    with bsnn.precision(name):
        net(x, None)[0].square().sum().backward()
    return [gradient for gradient in (x.grad, *(p.grad for p in net.parameters())) if gradient is not None]


def test_gradients_in_bf16_have_two_digits_and_keep_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    # On any CPU: one without instructions for bf16 leaves tiles in single precision.
    monkeypatch.setattr("bsnn.kernels._synapse.multiplies_bf16", lambda: True)
    pairs = list(zip(gradients("bf16"), gradients("fp32"), strict=True))
    for rounded, full in pairs:
        assert rounded.dtype == full.dtype
        assert (rounded - full).norm() < 0.02 * full.norm()
    assert not torch.equal(*pairs[0])


def of_dense_weights(name: str) -> list[Tensor]:
    """Output and gradients of a layer of real-valued weights, whose inputs are real-valued too."""
    torch.manual_seed(0)
    layer, x = bsnn.TracedConv2d(64, 64, 3, padding=1, weights="real"), torch.randn(2, 64, 8, 8, requires_grad=True)
    with bsnn.precision(name):
        output = layer(x)
        output.square().sum().backward()
    assert x.grad is not None
    assert layer.weight.grad is not None
    return [output.detach(), x.grad, layer.weight.grad]


def test_in_bf16_real_valued_weights_are_multiplied_with_two_digits() -> None:
    for rounded, full in zip(of_dense_weights("bf16"), of_dense_weights("fp32"), strict=True):
        assert rounded.dtype == full.dtype
        assert 0 < (rounded - full).norm() < 0.01 * full.norm()


def test_without_instructions_for_bf16_numbers_are_rounded_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = [*of_dense_weights("bf16"), *gradients("bf16")]
    monkeypatch.setattr(precision, "multiplies_bf16", lambda: not multiplies_bf16())
    for emulated, expected in zip([*of_dense_weights("bf16"), *gradients("bf16")], usual, strict=True):
        # The same factors, added in another order: a sum that is rounded the other way is off by one in eight bits.
        torch.testing.assert_close(emulated, expected, rtol=2**-6, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("machine", "emulated_at_least", "instructions", "expected"),
    [
        ("x86_64", True, True, True),
        ("x86_64", True, False, False),  # AVX-512 from before there was bf16
        ("AMD64", True, False, False),
        ("x86_64", False, False, False),
        ("aarch64", True, False, True),
    ],
)
def test_emulated_bf16_is_not_taken_for_instructions(
    machine: str, emulated_at_least: bool, instructions: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: emulated_at_least, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions, raising=False)
    assert multiplies_bf16.__wrapped__() is expected


def test_on_a_cpu_tf32_changes_nothing() -> None:
    torch.testing.assert_close(gradients("tf32"), gradients("fp32"), rtol=0, atol=0)


def test_what_is_no_precision_is_refused() -> None:
    with pytest.raises(UserError, match="received 'fp16'; expected one of fp32, tf32, bf16"):
        bsnn.precision("fp16")
    assert bsnn.precision() == "fp32"


def test_training_in_bf16_learns() -> None:
    net = bsnn.models.vgg((8, 8), in_channels=1)
    binary, real = bsnn.split_parameters(net)
    optimizers = [bsnn.optim.TBSO(binary, time_steps=2), torch.optim.SGD(real, lr=0.1)]
    x, y = torch.randn(4, 1, 8, 8), torch.arange(4)
    loss = functools.partial(bsnn.step_loss, labels=y, time_steps=2)
    with bsnn.precision("bf16"):
        losses = [bsnn.online_update(net, itertools.repeat(x, 2), loss, optimizers).loss for _ in range(10)]
    assert losses[-1] < losses[0]
