"""Backward passes of our own have no derivative: asking for one is an error, never a wrong number."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, distributed

import bsnn
from bsnn.nn.synapse import TracedLinear


def norm_over_processes() -> Callable[[Tensor], Tensor]:
    norm = bsnn.BatchNorm1d(4)
    norm.synchronized = True
    return norm


@pytest.mark.parametrize(
    "make",
    [
        lambda: bsnn.BinaryLinear(4, 4),
        lambda: TracedLinear(4, 4, weights="latent"),
        lambda: lambda x: bsnn.LIF(gradient="bptt")(x, None)[0].spikes,
        norm_over_processes,
    ],
    ids=["binary", "latent", "spikes", "norm"],
)
def test_a_second_derivative_is_refused(
    make: Callable[[], Callable[[Tensor], Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "all_reduce", lambda tensor: None)
    x = torch.randn(3, 4, requires_grad=True)
    (first,) = torch.autograd.grad(make()(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
