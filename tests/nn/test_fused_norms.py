"""Norms that the fused step does not compute: the network gives the numbers of its plain modules all the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import bsnn


def hooked(norm: nn.Module) -> nn.Module:
    """A norm whose output somebody doubles."""
    norm.register_forward_hook(lambda _module, _inputs, output: 2 * output)
    return norm


def passed(backend: str, make: Callable[[], nn.Module]) -> list[torch.Tensor]:
    """Logits, state and gradients of two time steps of training."""
    torch.manual_seed(0)
    net = bsnn.Sequential(nn.Linear(6, 5), make(), bsnn.LIF(), nn.Linear(5, 3)).double()
    state: Any = None
    with bsnn.backend(backend):
        for frame in torch.randn(2, 4, 6, dtype=torch.float64):
            logits, state = net(frame, state)
            logits.square().sum().backward()
    parts: list[torch.Tensor] = []
    bsnn.nn.neuron.map_state(parts.append, state)
    return [logits, *parts, *(p.grad for p in net.parameters()), *net.buffers()]


@pytest.mark.filterwarnings("ignore::bsnn.BackendWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: bsnn.BatchNorm1d(5),
        lambda: bsnn.BatchNorm1d(5, affine=False),
        lambda: bsnn.BatchNorm1d(5, track_running_stats=False),
        lambda: hooked(bsnn.BatchNorm1d(5)),
    ],
    ids=["plain", "without weights", "without statistics", "hooked"],
)
def test_every_norm_gives_the_numbers_of_the_plain_modules(make: Callable[[], nn.Module]) -> None:
    for fused, plain in zip(passed("fused", make), passed("reference", make), strict=True):
        torch.testing.assert_close(fused, plain)
