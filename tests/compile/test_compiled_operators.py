"""What the compiler sees of our kernels is what torch wants of an operator: schema, fake, and the function itself."""

from typing import Any

import pytest
import torch
from compile_cases import QUIET
from torch import Tensor

import bsnn
import bsnn.kernels.step  # defines them
from bsnn.kernels import _library, product
from bsnn.kernels.bits import pack

pytestmark = [*QUIET, pytest.mark.filterwarnings("ignore::FutureWarning")]

OPERATORS: Any = torch.ops.bsnn
BACKENDS = [
    pytest.param("cpu", marks=pytest.mark.skipif(not _library.libraries(), reason="the C library was not built")),
    "chunked",
    "whole",
]


def images(*shape: int) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return made.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else made


def binary(x: Tensor, shape: tuple[int, ...], geometry: list[int]) -> tuple[Any, ...]:
    bits = pack(torch.randn(shape, generator=torch.Generator().manual_seed(1)) >= 0)
    return (x > 0).float(), None, bits, shape, torch.float32, geometry


PRODUCTS = {
    "bits": binary(images(2, 4, 6, 6), (64, 4, 3, 3), [1, 1, 1, 1, 1, 1, 1]),
    "a stride": binary(images(2, 4, 6, 6), (5, 4, 3, 3), [2, 2, 0, 0, 1, 1, 1]),
    "one pixel": binary(images(2, 4, 1, 1), (3, 4, 1, 1), [1, 1, 0, 0, 1, 1, 1]),
    "a matrix": binary(images(3, 8), (64, 8), []),
    "dense": (images(3, 8), images(4, 8), None, (4, 8), torch.float32, []),
}


@pytest.mark.parametrize("given", PRODUCTS.values(), ids=PRODUCTS)
def test_a_product_and_its_gradients(given: Any) -> None:
    torch.library.opcheck(OPERATORS.product.default, (*given, 0))
    grad = torch.randn_like(product.product(*given, 0))
    for wanted in ((True, True), (False, True)):
        torch.library.opcheck(OPERATORS.product_gradients.default, (grad, *given, *wanted))


def test_the_gradient_of_a_bias() -> None:
    torch.library.opcheck(OPERATORS.bias_gradient.default, (images(3, 8),))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shape", "pooled", "trace", "norm"),
    [
        ((3, 5, 4, 6), True, "leaky", "training"),
        ((3, 8, 1, 1), False, "none", "evaluation"),
        ((4, 7), False, "clamped ratio", None),
    ],
)
def test_a_step_of_neurons(backend: str, shape: tuple[int, ...], pooled: bool, trace: str, norm: str | None) -> None:
    if backend == "cpu" and trace == "clamped ratio":
        pytest.skip("C has no ratios")
    channels = torch.rand(shape[1]), torch.rand(shape[1])
    running = torch.zeros(shape[1]), torch.ones(shape[1]), torch.tensor(3), None
    numbers: tuple[Any, ...] = {
        "training": (*channels, *running, 1e-5),
        "evaluation": (*channels, None, None, None, None, 1e-5),
        None: (None,) * 6 + (0.0,),
    }[norm]
    neuron = 0.5, 1.0, "sigmoid", 4.0, trace, pooled, backend
    membrane, kept = images(*shape), images(*shape)
    past = None if trace == "none" else images(*shape).abs()
    torch.library.opcheck(OPERATORS.neuron_step.default, (2 * images(*shape), membrane, past, *numbers, *neuron))
    made = OPERATORS.neuron_step(2 * kept, membrane, past, *numbers, *neuron)
    sent, _, membrane, _, bits, mean, deviation, *_ = made
    behind = (kept, channels[0], mean, deviation) if norm == "training" else (None,) * 4
    torch.library.opcheck(OPERATORS.neuron_gradients.default, (sent, membrane, bits, *behind, *neuron))


@pytest.mark.parametrize("shape", [(3, 5, 4, 6), (6, 5)])
def test_batch_norm(shape: tuple[int, ...]) -> None:
    weights, running = (torch.rand(5), torch.rand(5)), (torch.zeros(5), torch.ones(5), torch.tensor(3))
    x = images(*shape)
    for rate in (0.1, None):
        torch.library.opcheck(OPERATORS.batch_norm.default, (x, *weights, *running, rate, 1e-5))
    normal, mean, deviation, *_ = OPERATORS.batch_norm(x, *weights, *running, 0.1, 1e-5)
    torch.library.opcheck(OPERATORS.batch_norm_gradients.default, (normal, x, weights[0], mean, deviation))
    torch.library.opcheck(OPERATORS.folded_norm.default, (*weights, *running[:2], 1e-5))


@pytest.mark.parametrize("name", ["sigmoid", "rectangle", "triangle", "arctan"])
def test_surrogates(name: str) -> None:
    torch.library.opcheck(OPERATORS.surrogate.default, (images(2, 3), name, 2.0))


def test_binary_parameters_are_taken_apart_and_put_together() -> None:
    weight = bsnn.BinaryLinear(4, 3).weight
    assert isinstance(weight, bsnn.BinaryParameter)
    names, kind = weight.__tensor_flatten__()
    parts = {name: getattr(weight, name) for name in names}
    again = bsnn.BinaryParameter.__tensor_unflatten__(parts, kind, weight.shape, weight.stride())
    assert (again.shape, again.dtype, again.requires_grad) == ((3, 4), torch.float32, True)
    assert torch.equal(bsnn.signs(again), bsnn.signs(weight))
    with pytest.raises(bsnn.UserError, match="one bit per weight"):
        again + 1
