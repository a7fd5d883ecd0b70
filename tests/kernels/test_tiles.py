"""Gradients of convolutions by Winograd's algorithm, against torch in double precision."""

from typing import Any

import pytest
import torch
from kernel_cases import LEVELS, default_dtype, num_threads, only
from torch import Tensor
from torch.nn import functional as F

import bsnn
from bsnn.kernels import _library, _synapse, _tiles, cpu
from bsnn.kernels.bits import pack
from bsnn.kernels.libraries import Level
from bsnn.kernels.memory import peak_bytes
from bsnn.kernels.operations import Geometry

pytestmark = pytest.mark.skipif(not _library.libraries(), reason="the C library was not built")


def gradients(
    batch: int, ins: int, outs: int, size: tuple[int, int], padding: tuple[int, int]
) -> list[tuple[Tensor, Tensor]]:
    """Those of what enters a convolution and of its weights, in tiles and from autograd in double precision."""
    torch.manual_seed(0)
    x = torch.randn(batch, ins, *size, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(outs, ins, 3, 3, dtype=torch.float64).sign().requires_grad_()
    made = F.conv2d(x, weight, padding=padding)
    grad = torch.randn(made.shape, dtype=torch.float64).float()
    made.backward(grad.double())
    bits, geometry = pack(weight.detach().flatten() >= 0), Geometry(padding=padding)
    of_input = cpu.input_gradient(grad, bits, weight.shape, size, geometry)
    x_trace = x.detach().float()
    of_weight = cpu.weight_gradient(grad, x_trace, weight.shape, geometry)
    found = []
    for ours, exact in ((of_input, x.grad), (of_weight, weight.grad)):
        assert ours is not None
        assert exact is not None
        assert ours.dtype == torch.float32
        assert ours.shape == exact.shape
        found.append((ours, exact))
    assert of_weight is not None
    assert of_weight.is_contiguous()
    return found


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("padding", [(1, 1), (0, 0), (2, 1), (0, 2)])
@pytest.mark.parametrize(
    ("batch", "ins", "outs", "size"),
    [(1, 48, 64, (20, 20)), (7, 33, 70, (11, 7)), (70, 32, 35, (7, 12)), (2, 130, 32, (4, 8)), (3, 40, 41, (16, 3))],
)
def test_gradients_in_tiles(
    level: Level, padding: tuple[int, int], batch: int, ins: int, outs: int, size: tuple[int, int], monkeypatch
) -> None:
    monkeypatch.setattr(_tiles, "_MIN_PIXELS", 1)
    monkeypatch.setattr(_tiles, "_MIN_CHANNELS", 1)
    with only(level):
        found = gradients(batch, ins, outs, size, padding)
    for ours, exact in found:
        assert (ours - exact).norm() <= 2e-6 * exact.norm()
        assert (ours - exact).abs().max() <= 1e-5 * exact.abs().max()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("ins", "size"), [(64, (16, 16)), (70, (9, 13))])
def test_in_bf16_the_gradient_of_what_enters_has_two_digits(
    level: Level, ins: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_synapse, "multiplies_bf16", lambda: True)
    layer, x = bsnn.BinaryConv2d(ins, 80, 3, padding=1), torch.randn(5, ins, *size)
    grad, geometry = torch.randn(5, 80, *size), Geometry(padding=(1, 1))
    with only(level), bsnn.precision("bf16"):
        found = cpu.input_gradient(grad, layer.weight.bits, layer.weight.shape, size, geometry)
        assert cpu.weight_gradient(grad, x, layer.weight.shape, geometry) is None
        few = cpu.weight_gradient(grad, x * (x > 1), layer.weight.shape, geometry)
    exact = F.conv_transpose2d(grad.double(), bsnn.signs(layer.weight).double(), padding=1)
    assert found is not None
    assert 1e-3 * exact.norm() < (found - exact).norm() < 0.02 * exact.norm()
    assert few is not None


def test_without_instructions_for_bf16_tiles_are_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_synapse, "multiplies_bf16", lambda: False)
    with bsnn.precision("bf16"):
        for ours, exact in gradients(2, 64, 64, (8, 8), (1, 1)):
            assert (ours - exact).norm() <= 2e-6 * exact.norm()


def test_gradients_of_some_images_and_channels_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gradients(5, 64, 80, (8, 12), (1, 1))
    monkeypatch.setattr(_tiles, "_POINTS", 1)
    monkeypatch.setattr(_tiles, "_SUMS", 36 * 64 * 30)  # blocks of 27, 27 and 26 channels
    for (ours, _), (other, exact) in zip(whole, gradients(5, 64, 80, (8, 12), (1, 1)), strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-5 * float(exact.abs().max()))


def test_gradients_of_nothing_are_nothing() -> None:
    x, grad, shape = torch.randn(2, 64, 8, 8), torch.randn(2, 64, 8, 8), torch.Size((64, 64, 3, 3))
    x[:, 5] = 0
    grad[:, 7] = 0
    made = cpu.weight_gradient(grad, x, shape, Geometry(padding=(1, 1)))
    assert made is not None
    assert not made[7].any()
    assert not made[:, 5].any()
    assert made.count_nonzero() > 0.9 * made.numel()


def test_shapes_that_do_not_fit_are_refused() -> None:
    layer, spikes = bsnn.BinaryConv2d(64, 64, 3, padding=1), torch.zeros(2, 64, 8, 8)
    for trace in (torch.zeros(4, 64, 8, 8), torch.zeros(2, 96, 8, 8), torch.zeros(2, 64, 8, 9)):
        with pytest.raises(bsnn.UserError, match=r"trace of shape \(.*expected the same"):
            layer(bsnn.Activity(spikes, trace))
        grad, bits, usual = torch.zeros(2, 64, 8, 8), torch.zeros(8 * 64 * 9, dtype=torch.uint8), (1, 1)
        geometry = Geometry(padding=usual)
        assert cpu.weight_gradient(grad, trace, layer.weight.shape, geometry) is None
        assert cpu.input_gradient(trace[:, :63], bits, layer.weight.shape, (8, 8), geometry) is None
    net = bsnn.Sequential(bsnn.BinaryConv2d(64, 64, 3, padding=1), bsnn.BatchNorm2d(32), bsnn.LIF())
    with pytest.raises(RuntimeError, match="running_mean"):
        net(torch.zeros(4, 64, 8, 8), None)


def test_the_room_of_tiles_lives_as_long_as_a_backward_pass() -> None:
    layer, x = bsnn.BinaryConv2d(64, 64, 3, padding=1), (torch.rand(2, 64, 8, 8) < 0.3).float().requires_grad_()
    alive = []
    x.register_hook(lambda _: alive.append(_tiles.rooms.own.floats.numel()))
    layer(x).sum().backward()
    assert alive[0] > 0
    counted = peak_bytes(lambda: layer(x).sum().backward())
    assert counted > 4 * alive[0]
    assert _tiles.rooms.own.floats.numel() == 0


@pytest.mark.parametrize("channels", [64, 65])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38, float.fromhex("0x1.fffffep+127")])
def test_a_gradient_that_is_not_finite_is_seen(
    value: float, precision: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_synapse, "multiplies_bf16", lambda: True)
    x, grad, shape = torch.randn(2, 64, 8, 8), torch.randn(2, channels, 8, 8), torch.Size((channels, 64, 3, 3))
    grad[1, channels - 1, 4, 5] = value
    geometry = Geometry(padding=(1, 1))
    of_weight = cpu.weight_gradient(grad, x, shape, geometry)
    bits = torch.zeros(8 * channels * 9, dtype=torch.uint8)
    with bsnn.precision(precision):
        of_input = cpu.input_gradient(grad, bits, shape, (8, 8), geometry)
    for made in (of_weight, of_input):
        assert made is not None
        assert not made.isfinite().all()


def test_gradients_that_are_left_to_torch() -> None:
    x, grad, shape = torch.zeros(2, 64, 8, 8), torch.zeros(2, 64, 8, 8), torch.Size((64, 64, 3, 3))
    bits, usual = torch.zeros(8 * 64 * 9, dtype=torch.uint8), Geometry(padding=(1, 1))

    def supported(grad: Tensor, x: Tensor, shape: torch.Size, geometry: Geometry) -> list[bool]:
        of_weight = cpu.weight_gradient(grad, x, shape, geometry)
        of_input = cpu.input_gradient(grad, bits, shape, (x.shape[2], x.shape[3]), geometry)
        return [made is not None for made in (of_weight, of_input)]

    assert supported(grad, x, shape, usual) == [True, True]
    assert supported(grad.double(), x.double(), shape, usual) == [False, False]
    assert supported(grad[..., :2, :2], x[..., :2, :2], shape, usual) == [False, False]
    for other in (torch.Size((32, 64, 3, 3)), torch.Size((64, 32, 3, 3)), torch.Size((64, 64, 3, 1))):
        assert supported(grad, x, other, usual) == [False, False]
    others: list[dict[str, Any]] = [{"stride": (2, 2)}, {"dilation": (2, 1)}, {"groups": 2}, {"padding": (3, 1)}]
    for changed in others:
        assert supported(grad, x, shape, usual._replace(**changed)) == [False, False]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("openmp", [True, False])
def test_threads_share_the_work(threads: int, openmp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not openmp:
        monkeypatch.setattr(_library, "_openmp", lambda: None)
    with num_threads(threads):
        for ours, exact in gradients(7, 70, 80, (9, 13), (1, 1)):
            assert (ours - exact).norm() <= 2e-6 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_type_of_torch_changes_nothing(dtype: torch.dtype) -> None:
    with default_dtype(dtype):
        for ours, exact in gradients(2, 64, 64, (8, 8), (1, 1)):
            assert (ours - exact).norm() <= 2e-6 * exact.norm()
