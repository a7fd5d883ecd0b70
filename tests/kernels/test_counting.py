"""The convolution of spikes with one-bit weights in C gives the bits of torch's convolution."""

from typing import Any

import pytest
import torch
from kernel_cases import LEVELS, default_dtype, num_threads, only
from torch import Tensor
from torch.nn import functional as F

import bsnn
from bsnn.kernels import _library, cpu, operations
from bsnn.kernels.bits import pack, unpack
from bsnn.kernels.libraries import Level
from bsnn.kernels.operations import Geometry

pytestmark = pytest.mark.skipif(not _library.libraries(), reason="the C library was not built")


GEOMETRIES: dict[str, dict[str, Any]] = {
    "usual": dict(ins=64, outs=64, kernel=(3, 3), padding=(1, 1)),
    "wide": dict(ins=70, outs=600, kernel=(3, 3), padding=(1, 1)),
    "odd": dict(ins=5, outs=67, kernel=(2, 3), padding=(0, 2), stride=(1, 2), dilation=(2, 1)),
    "groups": dict(ins=12, outs=130, kernel=(3, 1), padding=(1, 0), groups=2),
    "pointwise": dict(ins=130, outs=70, kernel=(1, 1)),
}


def case(name: str, *, pooled: bool) -> tuple[Tensor, Tensor, torch.Size, Geometry]:
    torch.manual_seed(0)
    settings = dict(GEOMETRIES[name])
    ins, outs, kernel = (settings.pop(key) for key in ("ins", "outs", "kernel"))
    geometry = Geometry(**settings)
    x = (torch.rand(3, ins, 14, 10) < 0.3).float()
    x = F.avg_pool2d(x, 2) if pooled else x
    x[1] = 0
    x[2] = 1  # every count at its largest
    weight = torch.randn(outs, ins // geometry.groups, *kernel)
    return x, pack(weight.flatten() >= 0), weight.shape, geometry


def expected(x: Tensor, bits: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor:
    return F.conv2d(x, unpack(bits, shape.numel()).view(shape), None, *geometry)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("pooled", [False, True])
def test_counts_are_convolutions(level: Level, name: str, pooled: bool) -> None:
    x, bits, shape, geometry = case(name, pooled=pooled)
    with only(level):
        made = cpu.convolve(x, bits, shape, geometry)
    assert made is not None
    assert torch.equal(made, expected(x, bits, shape, geometry))


@pytest.mark.parametrize("value", [0.5, -1.0, 2.0, 0.3, torch.nan, torch.inf])
@pytest.mark.parametrize("pooled", [False, True])
def test_other_numbers_are_left_to_torch(value: float, pooled: bool) -> None:
    x, bits, shape, geometry = case("odd", pooled=pooled)
    x[-1, -1, -1, -1] = value
    supported = cpu.convolve(x, bits, shape, geometry)
    assert (supported is None) == (value != 0.5)  # a mean of four spikes may be a half


def test_what_c_does_not_support() -> None:
    x, bits, shape, geometry = case("usual", pooled=False)
    assert cpu.convolve(x.double(), bits, shape, geometry) is None
    assert cpu.convolve(x[:0], bits, shape, geometry) is None
    few = torch.Size((8, *shape[1:]))
    assert cpu.convolve(x, bits[: few.numel() // 8], few, geometry) is None


@pytest.mark.parametrize(
    ("layer", "size"), [(bsnn.BinaryConv2d(8, 64, 3, padding=1), (8, 2, 2)), (bsnn.BinaryLinear(30, 64), (30,))]
)
def test_layers_count_and_their_gradients_stay(layer: bsnn.nn.synapse.TracedLayer, size: tuple[int, ...]) -> None:
    x, found = (torch.rand(3, *size) < 0.5).float().requires_grad_(), []
    for backend in ("cpu", "reference"):
        x.grad = layer.weight.grad = None
        with bsnn.backend(backend):
            currents = layer(x)
            currents.square().sum().backward()
        found.append([currents, x.grad, layer.weight.grad])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (bsnn.BinaryLinear(4096, 64), (2, 64)),
        (bsnn.BinaryLinear(64, 64), (2, 128)),
        (bsnn.BinaryConv2d(64, 64, 3), (2, 96, 5, 5)),
        (bsnn.BinaryConv2d(8, 64, 3), (1, 8, 2, 2)),
        (bsnn.BinaryLinear(64, 64).double(), (2, 64)),
    ],
)
def test_what_torch_refuses_is_refused(layer: bsnn.nn.synapse.TracedLayer, size: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError):
        layer(torch.ones(size))


def test_placeholders_without_memory_are_left_to_torch() -> None:
    layer = bsnn.BinaryLinear(64, 64).to("meta")
    for device in ("meta", "cpu"):
        assert layer(torch.ones(2, 64, device=device)).shape == (2, 64)


@pytest.mark.parametrize("number", [1, 8, 77])
def test_signs_are_those_of_the_bits(number: int) -> None:
    bits = pack(torch.rand(number) < 0.5)
    assert torch.equal(operations.signs(bits, number, torch.float32), unpack(bits, number))


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("openmp", [True, False])
def test_threads_share_the_work(threads: int, openmp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not openmp:
        monkeypatch.setattr(_library, "_openmp", lambda: None)
    with num_threads(threads):
        for pooled in (False, True):
            arguments = case("usual", pooled=pooled)
            made = cpu.convolve(*arguments)
            assert made is not None
            assert torch.equal(made, expected(*arguments))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_type_of_torch_changes_nothing(dtype: torch.dtype) -> None:
    net, x = bsnn.BinaryConv2d(64, 64, 3, padding=1), (torch.rand(3, 64, 4, 4) < 0.3).float()
    expected_currents = net(x)
    with default_dtype(dtype):
        assert torch.equal(net(x), expected_currents)
