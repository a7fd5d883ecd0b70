"""The `triton` backend: operations on CUDA devices, each kernel an operator of torch (`torch.ops.bsnn`).

Spikes, membranes, traces and flips equal those of `_whole` and of the flip rules to the bit; gradients agree within
1e-5. With `TRITON_INTERPRET=1` Triton's interpreter runs the kernels on CPU tensors, which is how they are tested.
"""

import importlib.util
from typing import Any

import torch
from torch import Tensor

from bsnn.kernels import is_interpreted
from bsnn.kernels.operations import FlipThreshold, Geometry, Neuron, NeuronKernel


def available() -> bool:
    """Whether Triton is installed, and a GPU is there for it or its interpreter is asked for."""
    if importlib.util.find_spec("triton") is None:
        return False
    return is_interpreted() or torch.cuda.is_available()


def supports(x: Tensor) -> bool:
    """Whether kernels may be given a tensor; those without storage take the same way, to be counted."""
    return x.device.type in ("cuda", "meta") or (is_interpreted() and x.device.type == "cpu")


def convolve(x: Tensor, bits: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor | None:
    """Left to torch."""


def input_gradient(grad: Tensor, bits: Tensor, shape: torch.Size, size: Any, geometry: Geometry) -> Tensor | None:
    """Left to torch."""


def weight_gradient(grad: Tensor, x: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor | None:
    """Left to torch."""


def tile_bytes(batch: int, shape: torch.Size, entering: Any, leaving: Any, geometry: Geometry) -> int | None:
    """Left to others: this backend has no tiles."""


def signs(bits: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor | None:
    """See `operations.signs`."""
    if not supports(bits) or dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return None
    from bsnn.kernels.triton import _signs

    return _signs.signs(bits, shape, dtype)


def neurons(x: Tensor, neuron: Neuron, pooled: bool) -> NeuronKernel | None:
    """See `operations.neurons`; a user's own surrogate or trace is left to torch, and double precision."""
    if not supports(x) or x.dtype != torch.float32:
        return None
    from bsnn.kernels.triton import _neurons

    return _neurons.neurons(x, neuron, pooled)


def folded(weight: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
    """See `operations.folded`; what is learning is left to torch."""
    if not supports(mean) or mean.dtype != torch.float32 or torch.is_grad_enabled():
        return None
    from bsnn.kernels.triton import _moments

    made = torch.empty(2, len(mean), device=mean.device)
    _moments.fold_norm(weight.detach(), bias.detach(), mean, variance, made, eps)
    return made[0], made[1]


def mean_square(gradient: Tensor, refused: Tensor) -> Tensor | None:
    """See `operations.mean_square`."""
    if not supports(gradient) or not gradient.numel() or gradient.dtype == torch.float64:
        return None
    from bsnn.kernels.triton import _momentum

    square = torch.empty((), dtype=torch.float64, device=gradient.device)
    _momentum.mean_square(gradient.contiguous(), square, refused)
    return square


def fold(
    gradient: Tensor, stored: dict[str, Any], refused: Tensor, rate: float, adding: bool, seed: Any
) -> bool | None:
    """See `operations.fold`."""
    momentum = stored["momentum"]
    if not supports(gradient) or gradient.dtype == torch.float64 or momentum.dtype == torch.float64:
        return None
    from bsnn.kernels.triton import _momentum

    flat = gradient.reshape(-1)
    if "scales" in stored:
        random = None if gradient.is_meta else torch.Generator(gradient.device).manual_seed(seed())
        dice = torch.rand(momentum.shape, generator=random, device=gradient.device)
        _momentum.fold_8(flat, momentum, stored["scales"], dice, refused, rate, adding)
    else:
        _momentum.fold(flat, momentum, refused, rate, adding)
    return True


def flip(bits: Tensor, number: int, stored: dict[str, Any], threshold: FlipThreshold, refused: Tensor) -> Tensor | None:
    """See `operations.flip`."""
    if not supports(bits) or stored["momentum"].dtype == torch.float64 or isinstance(threshold.gamma, Tensor):
        return None
    from bsnn.kernels.triton import _flips

    made = torch.empty((), dtype=torch.int64, device=bits.device)
    scales = stored.get("scales")
    _flips.flip(
        bits, stored["momentum"], scales, threshold.moment, refused, made, number, threshold.gamma, threshold.eps
    )
    return made
