"""What the tests of flip rules share: every rule of the registry, built alike, and small parameters and networks."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import bsnn
from bsnn.nn.bits import BinaryParameter
from bsnn.optim import FlipOptimizer, rules
from bsnn.train.config import Config

Make = Callable[..., FlipOptimizer]

# A rule takes from a config what its constructor has arguments for. These are large enough for a short test.
SETTINGS: dict[str, Any] = {
    **dataclasses.asdict(Config()),
    **dict(gamma=0.02, one_minus_beta1=0.1, one_minus_beta2=0.01, time_steps=3),
}


def _make(name: str, params: Any, **changes: Any) -> FlipOptimizer:
    return rules.build(rules.find(name), params, {**SETTINGS, **changes})


_MAKERS: dict[str, Make] = {name: partial(_make, name) for name in rules.names()}
_EIGHT_BITS = [name for name in _MAKERS if "momentum_bits" in rules.config_fields(rules.find(name))]

every_rule = pytest.mark.parametrize("make", _MAKERS.values(), ids=_MAKERS)
every_rule_in_eight_bits = pytest.mark.parametrize("make", [_MAKERS[name] for name in _EIGHT_BITS], ids=_EIGHT_BITS)


def parameter(*values: float) -> BinaryParameter:
    """A binary parameter with these signs."""
    return BinaryParameter.from_signs(torch.tensor(values))


def give(weight: BinaryParameter, *gradient: float) -> None:
    """Sets the gradient of a parameter."""
    weight.grad = torch.tensor(gradient)


def chain() -> tuple[bsnn.Sequential, Tensor]:
    """A network of four binary layers, and inputs for it."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (bsnn.BinaryLinear(30, 30), bsnn.LIF())]
    return bsnn.Sequential(*layers).double(), torch.rand(5, 30, dtype=torch.float64) * 3
