"""Weight gradients from events alone, against autograd in double precision."""

from typing import Any

import pytest
import torch
from kernel_cases import LEVELS, num_threads, only
from torch import Tensor
from torch.nn import functional as F

from bsnn.kernels import _events, _library, _tiles, cpu
from bsnn.kernels.libraries import Level
from bsnn.kernels.operations import Geometry

pytestmark = pytest.mark.skipif(not _library.libraries(), reason="the C library was not built")


def inputs(batch: int, ins: int, size: tuple[int, int], share: float) -> Tensor:
    """Means of spikes, traces and negative numbers; so many of them are not zero."""
    values = torch.randint(1, 5, (batch, ins, *size)) / 4 + torch.randn(batch, ins, *size).mul(3).round() / 3
    return torch.where(torch.rand(values.shape) < share, values.where(values != 0, 1.0), 0.0)


def gradient(x: Tensor, grad: Tensor, padding: tuple[int, int] = (1, 1)) -> Tensor:
    made = cpu.weight_gradient(grad, x, torch.Size((grad.shape[1], x.shape[1], 3, 3)), Geometry(padding=padding))
    assert made is not None
    return made


def exact_gradient(x: Tensor, grad: Tensor, padding: tuple[int, int]) -> Tensor:
    weight = torch.zeros(grad.shape[1], x.shape[1], 3, 3, dtype=torch.float64, requires_grad=True)
    F.conv2d(x.double(), weight, padding=padding).backward(grad.double())
    assert weight.grad is not None
    return weight.grad


@pytest.fixture
def only_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tiles: whatever reaches for them fails."""
    monkeypatch.setattr(_tiles, "_MIN_PIXELS", 1)
    monkeypatch.setattr(_tiles, "_MIN_CHANNELS", 1)
    monkeypatch.setattr(torch, "baddbmm", None)


@pytest.mark.usefixtures("only_events")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("padding", [(1, 1), (0, 0), (2, 1), (0, 2)])
@pytest.mark.parametrize(
    ("batch", "ins", "outs", "size"),
    [(1, 48, 64, (20, 20)), (7, 33, 70, (11, 7)), (70, 32, 35, (7, 12)), (2, 130, 32, (4, 8)), (3, 40, 5, (16, 3))],
)
def test_gradients_from_events(
    level: Level, padding: tuple[int, int], batch: int, ins: int, outs: int, size: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    x = inputs(batch, ins, size, 0.2)
    grad = torch.randn(batch, outs, *(n + 2 * p - 2 for n, p in zip(size, padding, strict=True)))
    exact = exact_gradient(x, grad, padding)
    with only(level):
        ours = gradient(x, grad, padding)
    assert ours.is_contiguous()
    assert (ours - exact).norm() <= 1e-6 * exact.norm()
    assert (ours - exact).abs().max() <= 5e-6 * exact.abs().max()


@pytest.mark.usefixtures("only_events")
def test_whole_numbers_are_exact_with_any_number_of_images_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, grad = (torch.rand(9, 70, 6, 6) < 0.2).float(), torch.randint(-8, 9, (9, 80, 6, 6)).float()
    exact = exact_gradient(x, grad, (1, 1)).float()
    for chunk_bytes in (1, 20_000, 1 << 20):
        monkeypatch.setattr(_events, "_CHUNK_BYTES", chunk_bytes)
        for threads in (1, 2, 3):
            with num_threads(threads):
                assert gradient(x, grad).equal(exact)


@pytest.mark.usefixtures("only_events")
def test_additions_do_not_depend_on_the_number_of_threads() -> None:
    torch.manual_seed(0)
    x, grad = inputs(40, 64, (8, 8), 0.2), torch.randn(40, 100, 8, 8)
    with num_threads(1):
        alone = gradient(x, grad)
    with num_threads(3):
        assert gradient(x, grad).equal(alone)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gets an element for each product in tiles."""
    calls, multiply = [], torch.baddbmm

    def counted(*factors: Tensor, **options: Any) -> Tensor:
        calls.append("product")
        return multiply(*factors, **options)

    monkeypatch.setattr(torch, "baddbmm", counted)
    return calls


@pytest.mark.parametrize(("share", "in_tiles"), [(0.25, False), (0.35, True)])
def test_tiles_take_over_from_many_events(products: list[str], share: float, in_tiles: bool) -> None:
    torch.manual_seed(0)
    x, grad = inputs(4, 64, (8, 8), share), torch.randn(4, 64, 8, 8)
    exact = exact_gradient(x, grad, (1, 1))
    assert (gradient(x, grad) - exact).norm() <= 2e-6 * exact.norm()
    assert bool(products) == in_tiles


def test_tiles_take_over_if_their_room_is_too_small_for_events(
    products: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(_tiles, "_POINTS", 1)  # room for one image, where the lists of 64 do not fit
    monkeypatch.setattr(_tiles, "_SUMS", 36 * 64)
    x, grad = inputs(64, 64, (8, 8), 0.29), torch.randn(64, 64, 8, 8)
    exact = exact_gradient(x, grad, (1, 1))
    assert (gradient(x, grad) - exact).norm() <= 2e-6 * exact.norm()
    assert products


@pytest.mark.usefixtures("only_events")
def test_silence_has_no_gradient() -> None:
    assert not gradient(torch.zeros(2, 64, 8, 8), torch.randn(2, 64, 8, 8)).any()


@pytest.mark.usefixtures("only_events")
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_is_seen(value: float) -> None:
    x, grad = inputs(2, 64, (8, 8), 0.2), torch.randn(2, 64, 8, 8)
    x[0, 3, 4, 4] = 1
    broken = grad.clone()
    broken[0, 5, 4, 4] = value
    assert not gradient(x, broken)[5].isfinite().all()
    x[1, 7, 2, 2] = value
    assert not gradient(x, grad)[:, 7].isfinite().all()
