"""The `triton` backend: operations on CUDA devices, each kernel an operator of torch (`torch.ops.bsnn`).

Spikes, membranes, traces and flips equal those of `_whole` and of the flip rules to the bit; gradients agree within
1e-5. With `TRITON_INTERPRET=1` Triton's interpreter runs the kernels on CPU tensors, which is how they are tested.
"""

import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bsnn.kernels import is_interpreted
from bsnn.kernels.operations import Flippable, Geometry, Neuron, NeuronKernel

_MOST_CLASSES = 1 << 14


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


def folds(gradient: Tensor) -> bool | None:
    """See `operations.folds`."""
    return (supports(gradient) and gradient.dtype != torch.float64) or None


def mean_square(gradient: Tensor, refused: Tensor) -> Tensor | None:
    """See `operations.mean_square`."""
    if not folds(gradient) or not gradient.numel():
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
    if not folds(gradient) or momentum.dtype == torch.float64:
        return None
    from bsnn.kernels.triton import _momentum

    flat = gradient.reshape(-1)
    if "scales" in stored:
        dice, own_seed = None, seed()
        if gradient.device.type == "cpu":  # the interpreter rounds as a CPU does, so that they can be compared
            dice = torch.rand(momentum.shape, generator=torch.Generator().manual_seed(own_seed))
        _momentum.fold_8(flat, momentum, stored["scales"], dice, refused, own_seed, rate, adding)
    else:
        _momentum.fold(flat, momentum, refused, rate, adding)
    return True


def mixed_loss(logits: Tensor, labels: Tensor, mixture: Any) -> tuple[Tensor, Tensor] | None:
    """See `operations.mixed_loss`; a row of logits must fit into one program."""
    if not supports(logits) or logits.shape[1] > _MOST_CLASSES:
        return None
    from bsnn.kernels.triton import _loss

    return _loss.loss_and_gradient(logits, labels, mixture)


def flip(weights: Sequence[Flippable], refused: Tensor) -> list[Tensor] | None:
    """See `operations.flip`; one launch for all parameters with the same γ and ε."""
    if not all(_supports_flips(parameter) for parameter in weights):
        return None
    from bsnn.kernels.triton import _flips

    made: dict[int, Tensor] = {}
    launches: dict[Any, list[int]] = {}
    for index, (_, number, stored, threshold) in enumerate(weights):
        kind = "scales" in stored, threshold.moment is None, threshold.gamma, threshold.eps
        if number:
            launches.setdefault(kind, []).append(index)
    for (eight_bits, no_moment, gamma, eps), indices in launches.items():
        together = [weights[index] for index in indices]
        counts = torch.empty(len(together), dtype=torch.int64, device=refused.device)
        _flips.flip(
            [parameter.bits for parameter in together],
            [parameter.stored["momentum"] for parameter in together],
            [parameter.stored["scales"] for parameter in together] if eight_bits else None,
            None if no_moment else [parameter.threshold.moment for parameter in together],
            refused, counts, [parameter.number for parameter in together], gamma, eps,
        )  # fmt: skip
        made |= dict(zip(indices, counts.unbind(), strict=True))
    nothing = refused.new_zeros((), dtype=torch.int64) if len(made) < len(weights) else refused
    return [made.get(index, nothing) for index in range(len(weights))]


def _supports_flips(parameter: Flippable) -> bool:
    bits, _, stored, threshold = parameter
    return supports(bits) and stored["momentum"].dtype != torch.float64 and not isinstance(threshold.gamma, Tensor)
