"""The product of a synapse, W x, and its gradients, with dense weights or with bits: a convolution or a matrix product.

Both are operators for the compiler, and what these make of images has its channels last, whatever computes it.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bsnn.kernels import operations
from bsnn.kernels.compiler import operator
from bsnn.kernels.images import channels_last
from bsnn.kernels.operations import Geometry
from bsnn.kernels.precision import (
    as_factor,
    as_result,
    levels_of,
    mark_levels,
    multiplying_backward,
    multiplying_forward,
)
from bsnn.kernels.torch_internals import constant

Numbers = Sequence[int]


def multiply(x: Tensor, weight: Tensor, bits: Tensor | None, geometry: Geometry | None) -> Tensor:
    """The product of weights and what enters a synapse.

    Args:
        x: What enters, spikes or real numbers.
        weight: Of the synapse; only its shape and type count if there are bits.
        bits: Its signs, if it has one bit per weight.
        geometry: Of a convolution; None for a matrix product.
    """
    dense, dtype, levels = weight if bits is None else None, weight.dtype, levels_of(x)
    if torch.compiler.is_compiling() and torch.is_autocast_enabled(x.device.type):
        # What autocast does to torch's product, but not to one that is counted, is part of the graph.
        groups = 0 if geometry is None else geometry.groups
        counts = bits is not None and x.dtype == dtype and (geometry is not None or x.dim() == 2)
        if not counts or not _is_counted(x.device.type, dtype, tuple(weight.shape), groups):
            dtype = torch.get_autocast_dtype(x.device.type)
            x = x.to(dtype)
    return product(x, dense, bits, weight.shape, dtype, _as_ints(geometry), levels)


@constant
def _is_counted(device: str, dtype: torch.dtype, shape: tuple[int, ...], groups: int) -> bool:
    """Whether a backend counts products of spikes and one-bit weights of a shape; `groups` is 0 for a matrix."""
    bits = torch.zeros(-(-torch.Size(shape).numel() // 8), dtype=torch.uint8, device=device)
    size = shape[1] * max(1, groups), *shape[2:]
    geometry = Geometry(groups=groups) if groups else None
    return _counted(torch.zeros(1, *size, dtype=dtype, device=device), bits, torch.Size(shape), geometry) is not None


def gradients(
    grad: Tensor, x: Tensor, weight: Tensor, bits: Tensor | None, geometry: Geometry | None, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of what enters and of the weights, those that are wanted.

    Args:
        grad: Gradient of the product.
        x: What the weight gradient is made of: what entered, or its trace.
        weight: As in `multiply`.
        bits: As in `multiply`.
        geometry: As in `multiply`.
        wanted: Which of the two.
    """
    dense = weight if bits is None else None
    made = product_gradients(grad, x, dense, bits, weight.shape, weight.dtype, _as_ints(geometry), *wanted)
    return made[0] if wanted[0] else None, made[1] if wanted[1] else None


def _as_ints(geometry: Geometry | None) -> list[int]:
    return [] if geometry is None else [*geometry.stride, *geometry.padding, *geometry.dilation, geometry.groups]


def _from_ints(numbers: Numbers) -> Geometry | None:
    if not numbers:
        return None
    high, wide, above, left, down, right, groups = numbers
    return Geometry((high, wide), (above, left), (down, right), groups)


def _in_torch(x: Tensor, weight: Tensor, geometry: Geometry | None) -> Tensor:
    return F.linear(x, weight) if geometry is None else F.conv2d(x, weight, None, *geometry)


def _fake_product(
    x: Tensor, weight: Tensor | None, bits: Tensor | None, shape: Numbers, dtype: torch.dtype, geometry: Numbers,
    levels: int,
) -> Tensor:  # fmt: skip
    return channels_last(_in_torch(x, x.new_empty(shape, dtype=dtype), _from_ints(geometry)))


@operator(
    "(Tensor x, Tensor? weight, Tensor? bits, SymInt[] shape, ScalarType dtype, int[] geometry, int levels) -> Tensor",
    _fake_product,
    channels_last,
)
def product(
    x: Tensor, weight: Tensor | None, bits: Tensor | None, shape: Numbers, dtype: torch.dtype, geometry: Numbers,
    levels: int,
) -> Tensor:  # fmt: skip
    """See `multiply`; there is a weight or there are bits.

    Args:
        x: What enters.
        weight: Dense weights.
        bits: Signs.
        shape: Of the weights.
        dtype: Of the weights.
        geometry: Of a convolution, one number after another; none for a matrix product.
        levels: Of what enters, see `precision.mark_levels`; 0 if it is not known.
    """
    shape, moved, made = torch.Size(shape), _from_ints(geometry), None
    if bits is not None and x.dtype == dtype:
        made = _counted(x, bits, shape, moved)
    if made is None:
        entering = mark_levels(x, levels) if levels else x
        number = shape[1] if moved is None else shape[1:].numel()
        with multiplying_forward(entering, number, binary=bits is not None) as rounded:
            factors = as_factor(x, rounded), as_factor(_dense(weight, bits, shape, dtype), rounded)
            made = as_result(_in_torch(*factors, moved), rounded, dtype)
    return made


def _counted(x: Tensor, bits: Tensor, shape: torch.Size, geometry: Geometry | None) -> Tensor | None:
    """The product with one-bit weights, if a backend can count it."""
    if geometry is not None:
        return operations.convolve(x, bits, shape, geometry)
    if x.dim() != 2:
        return None
    currents = operations.convolve(x[..., None, None], bits, torch.Size((*shape, 1, 1)), Geometry())
    return None if currents is None else currents.flatten(1)


def _dense(weight: Tensor | None, bits: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    if weight is not None:
        return weight.to(dtype)
    assert bits is not None
    return operations.signs(bits, shape, dtype)


def _fake_gradients(
    grad: Tensor, x: Tensor, weight: Tensor | None, bits: Tensor | None, shape: Numbers, dtype: torch.dtype,
    geometry: Numbers, of_input: bool, of_weight: bool,
) -> list[Tensor]:  # fmt: skip
    nothing = partial(grad.new_empty, 0, dtype=torch.float32)
    entered = channels_last(torch.empty_like(x, dtype=dtype)) if of_input else nothing()
    return [entered, grad.new_empty(shape, dtype=dtype) if of_weight else nothing()]


def _finish_gradients(made: tuple[Tensor | None, Tensor | None]) -> list[Tensor]:
    some = next(gradient for gradient in made if gradient is not None)
    entered, weights = (some.new_empty(0, dtype=torch.float32) if part is None else part for part in made)
    return [channels_last(entered), weights]


@operator(
    "(Tensor grad, Tensor x, Tensor? weight, Tensor? bits, SymInt[] shape, ScalarType dtype, int[] geometry, "
    "bool of_input, bool of_weight) -> Tensor[]",
    _fake_gradients,
    _finish_gradients,
)
def product_gradients(
    grad: Tensor, x: Tensor, weight: Tensor | None, bits: Tensor | None, shape: Numbers, dtype: torch.dtype,
    geometry: Numbers, of_input: bool, of_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """See `gradients`, and for what describes the weights, `product`."""
    shape, moved = torch.Size(shape), _from_ints(geometry)
    grad, x = grad.to(dtype), x.to(dtype)
    of_x = of_weights = None
    with multiplying_backward(grad) as rounded:
        # Backends take numbers as they are; torch is given them rounded, if that is set.
        factors = cache(lambda: (as_factor(grad, rounded), as_factor(x, rounded)))
        if of_input:  # first, so that dense weights and their gradient are never there together
            if bits is not None and moved is not None:
                of_x = operations.input_gradient(grad, bits, shape, (x.shape[2], x.shape[3]), moved)
            if of_x is None:
                dense = _dense(None if weight is None else as_factor(weight, rounded), bits, shape, factors()[0].dtype)
                of_x = as_result(_input_gradient(*factors(), dense, moved), rounded, dtype)
        if of_weight:
            if moved is not None:
                of_weights = operations.weight_gradient(grad, x, shape, moved)
            if of_weights is None:
                of_weights = as_result(_weight_gradient(*factors(), shape, moved), rounded, dtype)
    return of_x, of_weights


def _input_gradient(grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry | None) -> Tensor:
    if geometry is None:
        return grad @ weight
    return _through_convolution(grad, x, weight, geometry, (True, False, False))[0]


def _weight_gradient(grad: Tensor, x: Tensor, shape: torch.Size, geometry: Geometry | None) -> Tensor:
    if geometry is None:
        return grad.reshape(-1, shape[0]).T @ x.reshape(-1, shape[1])
    shaped = grad.new_empty(()).expand(shape)  # only its shape is read
    return _through_convolution(grad, x, shaped, geometry, (False, True, False))[1].contiguous()


@operator("(Tensor grad) -> Tensor", lambda grad: grad.new_empty(grad.shape[-1]), lambda made: made)
def bias_gradient(grad: Tensor) -> Tensor:
    """The gradient of a bias, in the order of additions that torch has without the compiler."""
    return grad.sum(tuple(range(grad.dim() - 1)))


class _Biased(torch.autograd.Function):
    """Hands a product on that a bias was added to already; backward is that of the addition."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, bias: Tensor) -> Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad_outputs[0], bias_gradient(grad_outputs[0])


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What `nn.Linear` computes, for the compiler: in the gradient of the bias, torch adds up the batch itself."""
    if bias is None:
        return F.linear(x, weight)
    made: Any = _Biased.apply(F.linear(x, weight, bias.detach()), bias)
    return made


def _through_convolution(
    grad: Tensor, x: Tensor, weight: Tensor, geometry: Geometry, wanted: tuple[bool, bool, bool]
) -> Any:
    stride, padding, dilation, groups = geometry
    return torch.ops.aten.convolution_backward(
        grad, x, weight, None, stride, padding, dilation, False, (0, 0), groups, wanted
    )
