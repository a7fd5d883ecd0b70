"""The forward pass on the engine's kernel gives the bits of torch's convolution."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import bso
from bso import counting
from bso.bits import pack
from bso.engine.native import libraries

pytestmark = pytest.mark.skipif(not libraries(), reason="the C kernel was not built")

GEOMETRIES = {
    "usual": dict(ins=64, outs=64, kernel=(3, 3), padding=(1, 1)),
    "wide": dict(ins=70, outs=600, kernel=(3, 3), padding=(1, 1)),
    "odd": dict(ins=5, outs=67, kernel=(2, 3), padding=(0, 2), stride=(1, 2), dilation=(2, 1)),
    "groups": dict(ins=12, outs=130, kernel=(3, 1), padding=(1, 0), groups=2),
    "pointwise": dict(ins=130, outs=70, kernel=(1, 1)),
}


def case(name: str, *, pooled: bool) -> tuple[Tensor, Tensor, torch.Size, dict]:
    torch.manual_seed(0)
    geometry = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1} | GEOMETRIES[name]
    ins, outs, kernel = (geometry.pop(key) for key in ("ins", "outs", "kernel"))
    x = (torch.rand(3, ins, 14, 10) < 0.3).float()
    x = F.avg_pool2d(x, 2) if pooled else x
    x[1] = 0
    x[2] = 1  # every count at its largest
    weight = torch.randn(outs, ins // geometry["groups"], *kernel)
    return x, pack(weight.flatten() >= 0), weight.shape, geometry


def expected(x: Tensor, bits: Tensor, shape: torch.Size, geometry: dict) -> Tensor:
    return F.conv2d(x, bso.bits.unpack(bits, shape.numel()).view(shape), None, **geometry)


@pytest.mark.parametrize("library", ["baseline", "avx2", "avx512"])
@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("pooled", [False, True])
def test_counts_are_convolutions(library: str, name: str, pooled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = libraries()
    if library not in found:
        pytest.skip(f"this processor or compiler has no {library}")
    monkeypatch.setattr(counting, "libraries", lambda: {library: found[library]})
    x, bits, shape, geometry = case(name, pooled=pooled)
    made = counting.convolve(x, bits, shape, **geometry)
    assert made is not None
    assert torch.equal(made, expected(x, bits, shape, geometry))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_share_the_images(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        arguments = case("usual", pooled=False)
        made = counting.convolve(*arguments[:3], **arguments[3])
        assert made is not None
        assert torch.equal(made, expected(*arguments))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("value", [0.5, -1.0, 2.0, 0.3, torch.nan, torch.inf])
@pytest.mark.parametrize("pooled", [False, True])
def test_other_numbers_are_left_to_torch(value: float, pooled: bool) -> None:
    x, bits, shape, geometry = case("odd", pooled=pooled)
    x[-1, -1, -1, -1] = value
    served = counting.convolve(x, bits, shape, **geometry)
    assert (served is None) == (value != 0.5)  # a mean of four spikes may be a half


def test_what_the_kernel_does_not_serve() -> None:
    x, bits, shape, geometry = case("usual", pooled=False)
    assert counting.convolve(x.double(), bits, shape, **geometry) is None
    assert counting.convolve(x[:0], bits, shape, **geometry) is None
    few = torch.Size((8, *shape[1:]))
    assert counting.convolve(x, bits[: few.numel() // 8], few, **geometry) is None


@pytest.mark.parametrize(
    ("layer", "size"), [(bso.BinaryConv2d(8, 64, 3, padding=1), (8, 2, 2)), (bso.BinaryLinear(30, 64), (30,))]
)
def test_layers_count_and_their_gradients_stay(
    layer: bso.layers.TracedLayer, size: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, found = (torch.rand(3, *size) < 0.5).float().requires_grad_(), []
    for built in (libraries(), {}):
        monkeypatch.setattr(counting, "libraries", lambda built=built: built)
        x.grad = layer.weight.grad = None
        currents = layer(x)
        currents.square().sum().backward()
        found.append([currents, x.grad, layer.weight.grad])
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
