"""In which precision the weights of synapses are multiplied.

Forward, a binary layer multiplies ±1 with whole numbers of 1/L: spikes (L = 1), or means of four of them (L = 4). TF32
keeps eleven significant bits of each factor, all that these have, and adds in single precision, which is exact as long
as no sum can exceed 2²⁴ of 1/L. So tensor cores give the same bits as single precision, and are used wherever that is
known. In half precision the products would be exact too, but PyTorch's convolutions would round their sums to eleven
bits. Backward, factors are real numbers: single precision, unless less is asked for.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, overload

import torch
from torch import Tensor

from bsnn.errors import UserError
from bsnn.kernels.switch import Switch
from bsnn.kernels.torch_internals import mark, multiplies_bf16

PRECISIONS = ("fp32", "tf32", "bf16")

_SIGNIFICANT = 11  # bits of a number in TF32
_EXACT = 2**24  # whole numbers up to it are exact in single precision

# The attribute of a tensor that holds whole numbers of 1/L from 0 to 1, where L is its value.
_LEVELS = "bsnn_levels"

_name = "fp32"


@overload
def precision() -> str: ...


@overload
def precision(name: str) -> AbstractContextManager[None]: ...


def precision(name: str | None = None) -> str | AbstractContextManager[None]:
    """Says or sets in which precision synapses compute their gradients.

    `"fp32"`, the default, is single precision. `"tf32"` rounds factors to eleven significant bits on NVIDIA's GPUs from
    Ampere on, and changes nothing elsewhere; `"bf16"` rounds factors and results to eight, on any device. Forward
    products of one-bit weights and spikes are exact whatever is set; those of latent and real weights are rounded like
    gradients. A choice holds for all threads, from the call on or, as a context manager, within it; a backward pass
    belongs in the same block as its forward pass.

    Args:
        name: What to set; None only asks.

    Returns:
        The name in use or, if one was given, a context manager that restores the previous one.

    Example:
        >>> with precision("bf16"):
        ...     precision()
        'bf16'
    """
    return _name if name is None else Switch(_set, name, _name)


def _set(name: str) -> None:
    global _name
    if name not in PRECISIONS:
        raise UserError(f"precision: received {name!r}; expected one of {', '.join(PRECISIONS)}.")
    _name = name


def mark_levels(spikes: Tensor, levels: int) -> Tensor:
    """Marks a tensor as whole numbers of 1/`levels` from 0 to 1; use the one that is returned."""
    return mark(spikes, _LEVELS, levels)


def levels_of(x: Tensor) -> int:
    """What `mark_levels` has marked a tensor with; 0 if nothing has."""
    return getattr(x, _LEVELS, 0)


def is_exact(levels: int, products: int) -> bool:
    """Whether TF32 adds up so many products of ±1 and whole numbers of 1/`levels`, from 0 to 1, without rounding.

    Example:
        >>> is_exact(4, 512 * 9), is_exact(4, 2**22), is_exact(4, 2**22 + 1)
        (True, True, False)
    """
    return levels.bit_count() == 1 and levels < 2**_SIGNIFICANT and levels * products <= _EXACT


@contextmanager
def multiplying_forward(x: Tensor, products: int, binary: bool) -> Iterator[torch.dtype | None]:
    """Within it, a product with one-bit weights is computed on tensor cores of a GPU if that is exact.

    One with other weights is computed in the precision that is set; yields a type if factors are to be rounded to it.

    Args:
        x: What enters a synapse.
        products: Of which each output is a sum.
        binary: Whether weights have one bit each.
    """
    levels = levels_of(x)
    exact = binary and levels > 0 and is_exact(levels, products)
    with _tensor_cores(x, exact or _name != "fp32"):
        yield None if binary else _rounded(x)


@contextmanager
def multiplying_backward(x: Tensor) -> Iterator[torch.dtype | None]:
    """Within it, gradients are computed in the precision that is set; yields a type if factors are to be rounded to it.

    Args:
        x: A factor.
    """
    with _tensor_cores(x, _name != "fp32"):
        yield _rounded(x)


def _rounded(x: Tensor) -> torch.dtype | None:
    return torch.bfloat16 if _name == "bf16" and x.dtype == torch.float32 else None


def as_factor(x: Tensor, rounded: torch.dtype | None) -> Tensor:
    """A factor of a product, rounded to a type; widened again if the device does not multiply numbers of that type."""
    if rounded is None or x.dtype == rounded:
        return x
    narrow = x.to(rounded)
    return narrow if x.device.type != "cpu" or multiplies_bf16() else narrow.to(x.dtype)


def as_result(product: Tensor, rounded: torch.dtype | None, dtype: torch.dtype) -> Tensor:
    """What came of such factors: rounded likewise, as numbers of `dtype`."""
    return product if rounded is None else product.to(rounded).to(dtype)


@contextmanager
def _tensor_cores(x: Tensor, allowed: bool) -> Iterator[None]:
    """Allows TF32 on CUDA devices, or forbids it, and restores what was set before."""
    if x.device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn  # which torch replaces by an object with more attributes
    convolution, product = cudnn.conv, torch.backends.cuda.matmul
    before = convolution.fp32_precision, product.fp32_precision
    convolution.fp32_precision = product.fp32_precision = "tf32" if allowed else "ieee"
    try:
        yield
    finally:
        convolution.fp32_precision, product.fp32_precision = before
