"""The time of one call of the engine, compared with the fastest eager torch we know, in turns, in one process.

The rival computes the same network in single precision, with everything that helps it: BatchNorm folded into the
convolutions, what does not change over time computed once, all time steps of a layer in one batch, channels last,
neurons in place, no autograd. First it is checked that both compute the same network.
"""

import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import bsnn
from bsnn.data.subset import spread_over_classes
from bsnn.deploy.engine import Engine, Kernel
from bsnn.deploy.schema import Add, Artifact, AveragePool, Concat, InputSpec, Layer, Lif, MaxPool, Scale, Synapse
from bsnn.errors import UserError
from bsnn.models.vgg import VGG11

FIRING_RATES = (0.05, 0.15, 0.3)
BATCHES = (1, 64)
THREADS = (1, 2)
_TIME_STEPS, _THRESHOLD = 4, 2**16
# A single image is shown this often in a row, and the mean counts. The first calls pay for cold caches and for threads:
# the rival's go on spinning for a while, and ours may wake up on one processor, from which the system moves them only
# after some milliseconds.
_CALLS = 32
_EXACT = 2 ** (_TIME_STEPS - 1)  # multiples of it can be halved exactly at every step


class EagerTorch:
    """A deployed network in single precision, as fast as eager torch runs it.

    Args:
        artifact: The network.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        self._parameters = [_parameters(layer) for layer in artifact.layers]
        self._still = artifact.unchanging(True)

    @torch.inference_mode()
    def run(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Gives the outputs `[B, classes]`, summed over time, and the spikes of each layer, `[T · B, C, H, W]`."""
        time_steps, batch = self.artifact.time_steps, len(images)
        values, spikes = [images], []
        for i, layer in enumerate(self.artifact.layers):
            inputs = [values[k] for k in layer.inputs]
            if isinstance(layer, Lif):
                spikes.append(_fire(layer, inputs[0], batch, time_steps))
                values.append(spikes[-1])
                continue
            if len({len(x) for x in inputs}) > 1:
                inputs = [x.repeat(time_steps, 1, 1, 1) if len(x) == batch else x for x in inputs]
            values.append(self._apply(i, inputs))
        total = values[-1].flatten(1).unflatten(0, (-1, batch)).sum(0)
        return total * time_steps if self._still[-1] else total, spikes

    def _apply(self, i: int, inputs: list[Tensor]) -> Tensor:
        layer, numbers, x = self.artifact.layers[i], self._parameters[i], inputs[0]
        if isinstance(layer, Synapse):
            if layer.input_shift:
                x = (x * 2.0**-layer.input_shift).clamp_(-32768, 32767)
            weight, bias = numbers
            return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)
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
    offset = torch.from_numpy(layer.offset.astype(np.float32))
    if isinstance(layer, Scale):
        return gain.float(), offset
    weight = torch.from_numpy(layer.dense().astype(np.float64)) * gain.view(-1, 1, 1, 1)
    return weight.float().contiguous(memory_format=torch.channels_last), offset


def _fire(layer: Lif, currents: Tensor, batch: int, time_steps: int) -> Tensor:
    """Spikes of all time steps, `[T · B, C, H, W]`, from the currents of all steps, or of one that stands for all."""
    membrane, threshold = torch.zeros_like(currents[:batch]), float(layer.threshold)
    spikes = torch.empty((time_steps * batch, *currents.shape[1:]), memory_format=torch.channels_last)
    for t in range(time_steps):
        current = currents if len(currents) == batch else currents[t * batch : (t + 1) * batch]
        membrane.mul_(layer.leak / 2**16).add_(current)
        now = torch.ge(membrane, threshold, out=spikes[t * batch : (t + 1) * batch])
        membrane.sub_(now, alpha=threshold)
    return spikes


def random_vgg11(firing_rate: float, seed: int = 0) -> Artifact:
    """The paper's VGG-11 with random weights, in which every layer fires at about the same rate.

    Layer by layer, multipliers scale the currents as BatchNorm would, and one number that is added to all of them sets
    the rate, measured on random images. All numbers are chosen so that single precision is exact.

    Args:
        firing_rate: Spikes per neuron and time step.
        seed: Seed of weights and images.
    """
    generator = torch.Generator().manual_seed(seed)
    spec = InputSpec("image", (3, 32, 32), 8, 1.0, (0.0,) * 3, (1.0,) * 3, (1,) * 3, (0,) * 3, 0, {})
    x = random_images(spec, 2, seed).float()
    layers: list[Layer] = []
    for item in VGG11:
        inputs = (len(layers),)
        if isinstance(item, str):
            layers.append(AveragePool(f"pool{len(layers)}", inputs, (2, 2), (2, 2), (0, 0), False, False))
            x = F.avg_pool2d(x, 2, divisor_override=1)
            continue
        first = not layers
        weight = torch.randint(-9 if first else 0, 10 if first else 2, (9 * x.shape[1], item), generator=generator)
        signed = (weight if first else 2 * weight - 1).float().view(3, 3, -1, item).permute(3, 2, 0, 1)
        sums = F.conv2d(x, signed, padding=1)
        multiplier = _exact(_THRESHOLD / sums.std((0, 2, 3))).clamp(min=_EXACT)
        mean = _exact(sums.mean((0, 2, 3)) * multiplier)
        currents = sums * multiplier.view(1, -1, 1, 1) - mean.view(1, -1, 1, 1)
        lif = Lif(f"lif{len(layers)}", (len(layers) + 1,), 2**15, _THRESHOLD)
        low, high = -8.0 * _THRESHOLD, 8.0 * _THRESHOLD
        while high - low > _EXACT:
            middle = (low + high) / 2
            x = _fire(lif, currents + middle, 2, _TIME_STEPS)
            low, high = (middle, high) if x.mean() < firing_rate else (low, middle)
        rows = weight.short().numpy() if first else np.packbits(weight.byte().numpy(), axis=1, bitorder="little")
        numbers = [v.int().numpy() for v in (multiplier, _exact(low - mean))]
        kind, pairs = "int16" if first else "bits", ((3, 3), (1, 1), (1, 1), (1, 1))
        layers += [Synapse(f"conv{len(layers)}", inputs, item, *pairs, 1, kind, 0, 0, rows, *numbers), lif]
    layers.append(AveragePool("pool", (len(layers),), (4, 4), (4, 4), (0, 0), False, False))
    rows = torch.randint(-999, 1000, (x.shape[1], 10), generator=generator).short().numpy()
    numbers = [np.ones(10, np.int32), np.zeros(10, np.int32)]
    pairs = (1, 1), (1, 1), (0, 0), (1, 1)
    layers.append(Synapse("classifier", (len(layers),), 10, *pairs, 1, "int16", 0, 0, rows, *numbers))
    return Artifact("random VGG-11", tuple(map(str, range(10))), _TIME_STEPS, 16, spec, tuple(layers), 1.0)


def _exact(x: Tensor) -> Tensor:
    return torch.round(x / _EXACT) * _EXACT


def random_images(spec: InputSpec, batch: int, seed: int) -> Tensor:
    """Random integers, distributed like normalized pixels, `[B, C, H, W]`, int16."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(batch, *spec.shape, generator=generator) * 2**spec.fraction_bits).clamp(-32768, 32767).short()


def test_images(root: str | Path) -> np.ndarray:
    """Images of the test set in a folder, spread over its classes, enough for the largest batch."""
    data = spread_over_classes(bsnn.data.load(root, "test"), max(BATCHES))
    return np.stack([data.read(index) for index in range(len(data))])


def bench_inference(
    model: Artifact | None = None,
    images: np.ndarray | None = None,
    *,
    repetitions: int = 5,
    firing_rates: Iterable[float] = FIRING_RATES,
    batches: Sequence[int] = BATCHES,
    threads: Iterable[int] = THREADS,
    kernels: Sequence[Kernel] = ("auto",),
) -> dict[str, Any]:
    """Times the engine and eager torch on VGG-11 at several firing rates, and on a trained network if there is one.

    Args:
        model: A trained network.
        images: What it is shown, `[N, C, H, W]`, raw; random numbers by default.
        repetitions: Timed turns, after one that does not count.
        firing_rates: Firing rates of the random networks.
        batches: Images per call.
        threads: Threads for both.
        kernels: Kernels of the engine that take turns with torch.
    """
    largest = max(2, *batches)
    # First of all, so that unsuitable images are refused before anything is timed.
    trained = {} if model is None else {"trained": (model, _integers(model, largest, images))}
    made = {f"random VGG-11 at {rate:.0%}": random_vgg11(rate) for rate in firing_rates}
    networks = {
        name: (artifact, random_images(artifact.input, largest, 1)) for name, artifact in made.items()
    } | trained
    before, points = torch.get_num_threads(), []
    try:
        for name, (artifact, shown) in networks.items():
            rate, agreement = _compare(artifact, shown)
            for batch in batches:
                for number in threads:
                    torch.set_num_threads(number)
                    point = {"network": name, "batch": batch, "threads": number, "firing_rate": round(rate, 4)}
                    point["same_spikes"] = round(agreement, 5)
                    points += [
                        point | result for result in _race(artifact, shown[:batch], number, repetitions, kernels)
                    ]
    finally:
        torch.set_num_threads(before)
    return {
        "points": points,
        "time_steps": _TIME_STEPS,
        "repetitions": repetitions,
        "calls_in_a_row": {"single images": _CALLS, "batches": 1},
        "seed": 0,
        "load_average": os.getloadavg(),
        "processors": os.cpu_count(),
        "machine": platform.platform(),
        "versions": {"bsnn": bsnn.__version__, "torch": torch.__version__, "numpy": np.__version__},
    }


def _integers(artifact: Artifact, number: int, images: np.ndarray | None) -> Tensor:
    """This many inputs as the network's own integers, `[N, C, H, W]`; if there are fewer images, they are repeated."""
    if images is None:
        return random_images(artifact.input, number, 1)
    frames = Engine(artifact).integers(images)
    if len(frames) != 1:
        raise UserError(f"images: received shape {images.shape}; expected still ones, [N, C, H, W].")
    return torch.from_numpy(np.moveaxis(frames[0][np.arange(number) % len(images)], -1, 1).copy())


def _compare(artifact: Artifact, images: Tensor) -> tuple[float, float]:
    """The firing rate over all neurons and time steps, and the share of spikes on which torch agrees."""
    record: dict[str, np.ndarray] = {}
    Engine(artifact, threads=1).outputs(images.numpy(), record, normalized=True)
    _, found = EagerTorch(artifact).run(images.float().contiguous(memory_format=torch.channels_last))
    same = [np.mean(a.reshape(b.shape) == b.numpy()) for a, b in zip(record.values(), found, strict=True)]
    # A spike that rounding flips changes many that follow, so only the first layer is conclusive.
    assert same[0] > 0.999, f"torch computes another network: {same}"
    sizes = [spikes.size for spikes in record.values()]
    rates = [spikes.mean() for spikes in record.values()]
    return float(np.average(rates, weights=sizes)), float(np.average(same, weights=sizes))


def _race(
    artifact: Artifact, images: Tensor, threads: int, turns: int, kernels: Sequence[Kernel]
) -> Iterator[dict[str, Any]]:
    """Medians and quartiles of wall-clock seconds, and, for busy machines, the ratio of processor seconds."""
    ours, floats = images.numpy(), images.float().contiguous(memory_format=torch.channels_last)
    rival = EagerTorch(artifact)
    engines = [Engine(artifact, kernel, threads) for kernel in kernels]
    calls = _CALLS if len(images) == 1 else 1
    racers: dict[str, Callable[[], Any]] = {"torch": lambda: rival.run(floats)}
    racers |= {engine.kernel: lambda engine=engine: engine.outputs(ours, normalized=True) for engine in engines}
    wall: dict[str, list[float]] = {name: [] for name in racers}
    busy: dict[str, list[float]] = {name: [] for name in racers}
    order, chance = list(racers.items()), random.Random(0)
    for turn in range(turns + 1):
        chance.shuffle(order)
        for name, run in order:
            start = time.perf_counter(), time.process_time()
            for _ in range(calls):
                run()
            if turn:
                wall[name].append((time.perf_counter() - start[0]) / calls)
                busy[name].append((time.process_time() - start[1]) / calls)
    seconds = {name: statistics.median(times) for name, times in wall.items()}
    cpu = {name: statistics.median(times) for name, times in busy.items()}
    quartiles = {name: [round(q, 6) for q in statistics.quantiles(times, n=4)[::2]] for name, times in wall.items()}
    for engine in engines:
        name = engine.kernel
        yield {
            "kernel": name,
            "ours_seconds": seconds[name],
            "torch_seconds": seconds["torch"],
            "ratio": round(seconds["torch"] / seconds[name], 2),
            "ours_cpu_seconds": cpu[name],
            "torch_cpu_seconds": cpu["torch"],
            "cpu_ratio": round(cpu["torch"] / cpu[name], 2),
            "quartiles": {"ours": quartiles[name], "torch": quartiles["torch"]},
        }


def inference_text(result: dict[str, Any]) -> str:
    """Words the points as a table."""
    head = f"{'batch':>5} {'threads':>7} {'ours':>10} {'torch':>11} {'ratio':>6}"
    lines = [f"{'network':22} {'kernel':8} {'firing':>7} {head}"]
    for p in result["points"]:
        ours, theirs = (f"{1e3 * p[key] / p['batch']:.2f} ms" for key in ("ours_seconds", "torch_seconds"))
        rate = f"{100 * p['firing_rate']:.1f} %"
        figures = f"{p['batch']:>5} {p['threads']:>7} {ours:>10} {theirs:>11} {p['ratio']:>5.1f}×"
        lines.append(f"{p['network']:22} {p['kernel']:8} {rate:>7} {figures}")
    return "\n".join([*lines, f"milliseconds per image; T = {result['time_steps']}"])
