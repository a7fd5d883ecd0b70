"""Whether two layers compute the same: both run over the same random sequence, in evaluation and double precision.

In double precision, two ways to round the same formula almost never put a membrane on different sides of its threshold,
so what differs differs in meaning.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bsnn.kernels import backend
from bsnn.nn.network import Sequential
from bsnn.nn.neuron import evaluating
from bsnn.nn.trace import as_output

TOLERATED = 1e-4
"""Share of values that may differ, for layers that round to single precision on the way."""


def random_currents(*size: int, time_steps: int = 16, scale: float = 1.0) -> Tensor:
    """A sequence `[T, *size]` in double precision that makes neurons with a threshold of about `scale` fire.

    The first time step holds multiples of a quarter of `scale` only, so that u > V_th and u ≥ V_th differ.

    Example:
        >>> random_currents(2, 3, time_steps=4).shape
        torch.Size([4, 2, 3])
    """
    x = torch.randn(time_steps, *size, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.25
    x[0] = (4 * x[0]).round() / 4
    return scale * x


def double_copy(module: nn.Module) -> nn.Module:
    """A copy in double precision. Tensors that hang on a graph, such as a state kept by the module, are cut from it."""
    found = (value for part in module.modules() for held in _holders(part) for value in held.values())
    memo: dict[int, Any] = {id(t): t.detach().clone() for t in found if isinstance(t, Tensor) and not t.is_leaf}
    return copy.deepcopy(module, memo).double()


def _holders(module: nn.Module) -> Iterable[dict[str, Any]]:
    return (vars(module), *(held for held in vars(module).values() if isinstance(held, dict)))


@torch.no_grad()
def outputs(module: nn.Module, sequence: Tensor) -> Tensor:
    """What a layer or network makes of a sequence, from a state of zeros; of a layer of neurons, the spikes.

    Example:
        >>> outputs(bsnn.LIF(), torch.ones(3, 1, 1, dtype=torch.float64)).flatten()
        tensor([1., 1., 1.], dtype=torch.float64)
    """
    net = Sequential(module)
    made, state = [], None
    with evaluating(net), backend("reference"):
        for frame in sequence:
            x, state = net(frame, state)
            made.append(as_output(x))
    return torch.stack(made)


def share_differing(ours: Tensor, theirs: Tensor) -> float:
    """Share of the values that differ by more than rounding; 1 if the shapes differ.

    Example:
        >>> share_differing(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))
        0.5
    """
    if ours.shape != theirs.shape:
        return 1.0
    close = torch.isclose(ours.double(), theirs.double(), rtol=1e-6, atol=1e-6 * float(theirs.abs().max()))
    return 1.0 - float(close.double().mean())
