"""BatchNorm over processes, in a world of one: there it must be torch's own, in every number."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn

import bsnn
from bsnn.nn.norm import synchronize_statistics


@pytest.fixture
def _one_process() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("_one_process")
@pytest.mark.parametrize(
    ("ours", "theirs", "shape"),
    [
        (bsnn.BatchNorm2d, nn.BatchNorm2d, (4, 3, 5, 2)),
        (bsnn.BatchNorm1d, nn.BatchNorm1d, (6, 3)),
        (bsnn.BatchNorm1d, nn.BatchNorm1d, (4, 3, 5)),
    ],
)
@pytest.mark.parametrize(
    "settings", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"eps": 0.3}]
)
def test_alone_it_is_torchs_own(ours: Any, theirs: Any, shape: tuple[int, ...], settings: dict[str, Any]) -> None:
    norm, plain = (kind(3, **settings, dtype=torch.float64) for kind in (ours, theirs))
    if plain.affine:
        nn.init.normal_(plain.weight)
        nn.init.normal_(plain.bias)
    norm.load_state_dict(plain.state_dict())
    synchronize_statistics(nn.Sequential(norm))
    assert norm.synchronized
    for _ in range(2):
        x = (2 * torch.randn(shape, dtype=torch.float64) + 1).requires_grad_()
        weights = torch.randn(shape, dtype=torch.float64)
        results = []
        for module in (norm, plain):
            leaves = [x, *module.parameters()]
            made = module(x)
            results.append([made, *torch.autograd.grad((made * weights).sum(), leaves), *module.buffers()])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other)


def test_two_processes_are_one_with_both_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that hold the same batch: a sum over processes is twice one's own."""
    monkeypatch.setattr(distributed, "all_reduce", lambda tensor: tensor.mul_(2))
    norm, plain = (kind(3, dtype=torch.float64) for kind in (bsnn.BatchNorm2d, nn.BatchNorm2d))
    synchronize_statistics(norm)
    x = torch.randn(4, 3, 5, 2, dtype=torch.float64, requires_grad=True)
    weights = torch.randn_like(x)
    ours, theirs = norm(x), plain(torch.cat([x, x]))
    torch.testing.assert_close(ours, theirs[:4])
    (one,) = torch.autograd.grad((ours * weights).sum(), x)
    (both,) = torch.autograd.grad((theirs * torch.cat([weights, weights])).sum(), x)
    torch.testing.assert_close(2 * one, both)
    for statistic, expected in zip(norm.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(statistic, expected)
