"""Conversion of a network with rectifiers into a spiking one, by layerwise calibration ("SNN-Calibration, light").

An IF neuron with threshold V that is given x for T steps sends V/T · clip(⌊x T/V⌋, 0, T) on average. For each layer, V
is the one of a grid that comes nearest to the rectifier's output. Weights and biases are then rescaled so that every
threshold is 1, half a spike is added to each bias (V/2T, which turns the floor into rounding), and each bias is
corrected, layer by layer, by what the mean of its channel is off.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bsnn.errors import UserError
from bsnn.nn.network import Sequential
from bsnn.nn.neuron import Neuron, evaluating

_CANDIDATES = 50


@torch.no_grad()
def convert(net: Sequential, inputs: Tensor, time_steps: int) -> list[float]:
    """Turns weights that were trained with rectifiers into those of the same network with IF neurons, in place.

    Args:
        net: Layers in a chain: convolutions or linear layers with a bias, IF neurons of threshold 1, average pooling.
        inputs: A batch of training samples.
        time_steps: T of the spiking network.

    Returns:
        The thresholds that were found, layer by layer, in units of the rectifiers' outputs.
    """
    with evaluating(net):
        wanted = _rectified(net, inputs)
        thresholds = [best_threshold(output, time_steps) for output in wanted]
        weighted = [layer for layer in net if isinstance(getattr(layer, "weight", None), Tensor)]
        if len(weighted) != len(thresholds) + 1 or any(layer.bias is None for layer in weighted):
            raise UserError(
                f"convert: received {len(weighted)} layers with weights for {len(thresholds)} layers of neurons; "
                "expected a chain with a bias in every layer, and one more layer than neurons: the classifier."
            )
        for layer, before, after in zip(weighted, [1.0, *thresholds], [*thresholds, 1.0], strict=True):
            _scale(layer, before / after, 1 / after)
        for layer in weighted[:-1]:
            _tensor(layer, "bias").add_(0.5 / time_steps)
        _correct(net, [inputs] * time_steps, [o / v for o, v in zip(wanted, thresholds, strict=True)])
    return thresholds


def best_threshold(output: Tensor, time_steps: int) -> float:
    """The V of a grid up to the largest output that makes the mean squared error of the spiking neuron smallest.

    Example:
        >>> best_threshold(torch.tensor([0.5, 1.0]), time_steps=2)
        1.0
    """
    largest = float(output.max())
    if largest <= 0:
        return 1.0
    best = (float("inf"), largest)
    for candidate in range(_CANDIDATES, 0, -1):
        threshold = largest * candidate / _CANDIDATES
        levels = (output * time_steps / threshold + 0.5).floor().clamp(0, time_steps)
        error = float((levels * threshold / time_steps - output).square().mean())
        best = min(best, (error, threshold))
    return best[1]


def _rectified(net: Sequential, inputs: Tensor) -> list[Tensor]:
    """What every layer of rectifiers sends on."""
    sent, x = [], inputs
    for layer in net:
        x = x.clamp(min=0) if isinstance(layer, Neuron) else layer(x)
        if isinstance(layer, Neuron):
            sent.append(x)
    return sent


def _tensor(layer: nn.Module, name: str) -> Tensor:
    found: Any = getattr(layer, name)
    return found.data


def _scale(layer: nn.Module, weight: float, bias: float) -> None:
    _tensor(layer, "weight").mul_(weight)
    _tensor(layer, "bias").mul_(bias)


def _correct(net: Sequential, frames: list[Tensor], wanted: list[Tensor]) -> None:
    """Moves each bias by the difference of its channel's means, rectifiers' minus neurons'."""
    waiting: Iterator[Tensor] = iter(wanted)
    layers = list(net)
    for before, layer in zip([None, *layers], layers, strict=False):
        if isinstance(layer, Neuron) and before is not None:
            spikes, _ = layer.sequence(frames, None)
            rates = torch.stack(spikes).mean(0)
            error = (next(waiting).clamp(max=1) - rates).transpose(0, 1).flatten(1).mean(1)
            _tensor(before, "bias").add_(error)
            shape = (1, -1) + (1,) * (frames[0].dim() - 2)
            frames, _ = layer.sequence([frame + error.view(shape) for frame in frames], None)
        else:
            frames = [layer(frame) for frame in frames]
