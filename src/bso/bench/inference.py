"""Seconds a call of the engine takes, against the best eager torch we know, in turns, in one process.

The rival computes the same network in single precision with all that helps it there: BatchNorm folded into the
convolutions, what does not change over time computed once, channels last, neurons in place, no autograd. That it is the
same network is checked first: both must fire alike.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bso.artifact import Add, Artifact, AveragePool, Concat, InputSpec, Layer, Lif, MaxPool, Scale, Synapse

_VGG11 = (64, 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512)
_TIME_STEPS, _THRESHOLD = 4, 2**16


class EagerTorch:
    """A deployed network in single precision, as fast as eager torch runs it.

    Args:
        artifact: The network.
        together: Whether all time steps of a layer are computed as one batch, before the next layer; else all layers of
            a time step, before the next time step.
    """

    def __init__(self, artifact: Artifact, together: bool) -> None:
        self.artifact = artifact
        self._parameters = [_parameters(layer) for layer in artifact.layers]
        self._together = together
        self._still = [True]
        for layer in artifact.layers:
            self._still.append(not isinstance(layer, Lif) and all(self._still[i] for i in layer.inputs))

    @torch.inference_mode()
    def run(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Outputs `[B, classes]`, summed over the time steps, and the spikes of each layer of neurons and step."""
        layers, time_steps = self.artifact.layers, self.artifact.time_steps
        values: list[Any] = [images] + [None] * len(layers)
        membranes: dict[int, Tensor] = {}
        spikes: list[Tensor] = []
        total = torch.zeros(len(images), len(self.artifact.classes))
        steps = time_steps if self._together else 1
        for t in range(0, time_steps, steps):
            for i, layer in enumerate(layers):
                if t and self._still[i + 1]:
                    continue
                inputs = [values[k] for k in layer.inputs]
                if isinstance(layer, Lif):
                    if t == 0:
                        membranes[i] = torch.zeros_like(inputs[0][: len(images)])
                    values[i + 1] = _fire(layer, inputs[0], membranes[i], steps)
                    spikes.append(values[i + 1])
                    continue
                if len({len(x) for x in inputs}) > 1:
                    inputs = [x.repeat(steps, 1, 1, 1) if len(x) == len(images) else x for x in inputs]
                values[i + 1] = self._apply(i, inputs)
            output = values[-1].flatten(1).unflatten(0, (-1, len(images))).sum(0)
            total += output * steps if self._still[-1] else output
        return total, spikes

    def _apply(self, i: int, inputs: list[Tensor]) -> Tensor:
        layer, numbers, x = self.artifact.layers[i], self._parameters[i], inputs[0]
        if isinstance(layer, Synapse):
            if layer.input_shift:
                x = (x * 2.0**-layer.input_shift).clamp_(-32768, 32767)
            return F.conv2d(x, *numbers, layer.stride, layer.padding, layer.dilation, layer.groups)
        if isinstance(layer, AveragePool):
            fixed = self.artifact.values[layer.inputs[0]].kind == "fixed"
            windows = layer.kernel, layer.stride, layer.padding, layer.ceil, layer.count_padding
            return F.avg_pool2d(x, *windows, None if fixed else 1)
        if isinstance(layer, MaxPool):
            return F.max_pool2d(x, layer.kernel, layer.stride, layer.padding, ceil_mode=layer.ceil)
        if isinstance(layer, Add):
            return inputs[0] + inputs[1]
        if isinstance(layer, Concat):
            return torch.cat(inputs, 1)
        return x * numbers[0].view(1, -1, 1, 1) + numbers[1].view(1, -1, 1, 1)


def _parameters(layer: Layer) -> tuple[Tensor, ...]:
    """Weights `[O, C/G, kh, kw]` with the multipliers folded in, and offsets."""
    if not isinstance(layer, Synapse | Scale):
        return ()
    gain = torch.from_numpy(layer.multiplier / 2.0**layer.shift)
    offset = torch.from_numpy(layer.offset).float()
    if isinstance(layer, Scale):
        return gain.float(), offset
    rows, outs = layer.weight, layer.out // layer.groups
    if layer.weights == "bits":
        rows = np.unpackbits(rows, axis=1, count=outs, bitorder="little") * 2.0 - 1
    grouped = torch.from_numpy(rows.astype(np.float64)).view(*layer.kernel, layer.groups, -1, outs)
    weight = grouped.permute(2, 4, 3, 0, 1).reshape(layer.out, -1, *layer.kernel) * gain.view(-1, 1, 1, 1)
    return weight.float().contiguous(memory_format=torch.channels_last), offset


def _fire(layer: Lif, currents: Tensor, membrane: Tensor, steps: int) -> Tensor:
    """Spikes of some time steps, `[steps · B, C, H, W]`; the membrane is changed in place."""
    batch, threshold = len(membrane), float(layer.threshold)
    spikes = torch.empty((steps * batch, *membrane.shape[1:]), memory_format=torch.channels_last)
    for t in range(steps):
        current = currents if len(currents) == batch else currents[t * batch : (t + 1) * batch]
        membrane.mul_(layer.leak / 2**16).add_(current)
        now = torch.ge(membrane, threshold, out=spikes[t * batch : (t + 1) * batch])
        membrane.sub_(now, alpha=threshold)
    return spikes


def random_vgg11(firing_rate: float, seed: int = 0) -> Artifact:
    """The paper's VGG-11 with random weights, in which every layer fires at about the same rate.

    Layer by layer, the multipliers make the currents as large as BatchNorm would, and one number that is added to all
    of them sets the rate, measured on random images.

    Args:
        firing_rate: Spikes a neuron and time step.
        seed: Of weights and images.
    """
    generator = torch.Generator().manual_seed(seed)
    spec = InputSpec("image", (3, 32, 32), 8, 1.0, (0.0,) * 3, (1.0,) * 3, (1,) * 3, (0,) * 3, 0, {})
    x = random_images(spec, 2, seed).float()
    layers: list[Layer] = []
    for item in _VGG11:
        inputs = (len(layers),)
        if isinstance(item, str):
            layers.append(AveragePool(f"pool{len(layers)}", inputs, (2, 2), (2, 2), (0, 0), False, False))
            x = F.avg_pool2d(x, 2, divisor_override=1)
            continue
        first, shift = not layers, 0 if layers else 10
        weight = torch.randint(-99 if first else 0, 100 if first else 2, (9 * x.shape[1], item), generator=generator)
        signed = (weight if first else 2 * weight - 1).float().view(3, 3, -1, item).permute(3, 2, 0, 1)
        sums = F.conv2d(x, signed, padding=1)
        multiplier = torch.round(_THRESHOLD * 2**shift / sums.std((0, 2, 3)))
        gain, mean = multiplier / 2**shift, sums.mean((0, 2, 3))
        currents = (sums - mean.view(1, -1, 1, 1)) * gain.view(1, -1, 1, 1)
        lif = Lif(f"lif{len(layers)}", (len(layers) + 1,), 2**15, _THRESHOLD)
        low, high = -8.0 * _THRESHOLD, 8.0 * _THRESHOLD
        while high - low > 8:
            middle = (low + high) / 2
            x = _fire(lif, currents + middle, torch.zeros(2, *currents.shape[1:]), _TIME_STEPS)
            low, high = (middle, high) if x.mean() < firing_rate else (low, middle)
        rows = weight.short().numpy() if first else np.packbits(weight.byte().numpy(), axis=1, bitorder="little")
        numbers = [torch.round(v).int().numpy() for v in (multiplier, low - mean * gain)]
        kind, pairs = "int16" if first else "bits", ((3, 3), (1, 1), (1, 1), (1, 1))
        layers += [Synapse(f"conv{len(layers)}", inputs, item, *pairs, 1, kind, 0, shift, rows, *numbers), lif]
    layers.append(AveragePool("pool", (len(layers),), (4, 4), (4, 4), (0, 0), False, False))
    rows = torch.randint(-999, 1000, (x.shape[1], 10), generator=generator).short().numpy()
    numbers = [np.full(10, 100, np.int32), np.zeros(10, np.int32)]
    pairs = (1, 1), (1, 1), (0, 0), (1, 1)
    layers.append(Synapse("classifier", (len(layers),), 10, *pairs, 1, "int16", 0, 4, rows, *numbers))
    return Artifact("random VGG-11", tuple(map(str, range(10))), _TIME_STEPS, 16, spec, tuple(layers), 1.0)


def random_images(spec: InputSpec, batch: int, seed: int) -> Tensor:
    """Integers that are spread like normalized pixels, `[B, C, H, W]`, int16."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(batch, *spec.shape, generator=generator) * 2**spec.fraction_bits).clamp(-32768, 32767).short()
