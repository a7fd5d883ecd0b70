"""What training a network will hold in memory, told from shapes, and a check that it does not grow with time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bsnn.errors import UserError
from bsnn.kernels.memory import peak_bytes
from bsnn.kernels.operations import Geometry, neurons, tile_bytes
from bsnn.nn.bits import BinaryParameter
from bsnn.nn.fused import as_numbers, is_fusable, recyclable, recycling_state
from bsnn.nn.network import ImageNetwork
from bsnn.nn.neuron import Neuron, SoftResetNeuron, Stateful, map_state
from bsnn.nn.synapse import TracedConv2d, TracedLayer
from bsnn.nn.trace import Activity, as_output
from bsnn.optim.momentum import BLOCK

_Pair = tuple[int, int]

# Copies of the weights that a backward convolution of oneDNN works on, as measured with torch 2.13; more than the one
# of their gradient in the order of the bits, which is made afterwards.
_REORDERS = 3


def predict_memory(net: Stateful, sample: Tensor, batch: int, *, momentum_bits: int = 32) -> dict[str, int]:
    """Bytes that an online update holds at its peak, by kind of tensor, without running it.

    One sample passes through the network to find shapes. Python and torch themselves are not in it, nor freed memory
    that the allocator keeps (docs/memory.md).

    Args:
        net: The network.
        sample: An input of one time step; its first sample is used.
        batch: Samples in a batch.
        momentum_bits: Bits per weight of the flip optimizer's momentum.

    Returns:
        Weights (with BatchNorm's statistics), momentum, gradients (of the binary layer at which the peak lies, and the
        real-valued ones), membrane (with whatever else neurons carry), trace, workspace (what backward needs beside the
        state, and what is made on the way), and their total.

    Example:
        >>> net = bsnn.models.vgg11(width=0.125)
        >>> predict_memory(net, torch.zeros(1, 3, 32, 32), batch=32)["membrane"]  # 51,200 neurons, four bytes each
        6553600
    """
    binary = [p.numel() for p in net.parameters() if isinstance(p, BinaryParameter)]
    real = sum(p.nbytes for p in net.parameters() if not isinstance(p, BinaryParameter))
    buffers = sum(b.nbytes for b in net.buffers())
    momentum = 4 * sum(binary) if momentum_bits == 32 else sum(math.ceil(n / BLOCK) * (BLOCK + 4) for n in binary)
    state, trace = _state_bytes(net.initial_state(sample[:1]))
    layers = _layers(net, sample)
    kept, instants = batch * sample[:1].numel() * 4, [(0, 0)]
    in_c = sample.device.type == "cpu" and sample.dtype == torch.float32
    rooms = [tile_bytes(batch, *layer.tiles) if layer.tiles and in_c else 0 for layer in layers]
    for layer, room in zip(layers, rooms, strict=True):
        # When backward is at the synapse: what came before, what it keeps, both gradients, and, if these are not made
        # in tiles, its weights: dense, and in the orders that a convolution works in; their gradient is told apart.
        kept += batch * layer.kept
        passing = batch * (layer.entering + layer.leaving)
        dense = 0 if room else (1 + (_REORDERS if layer.tiles else 0)) * layer.weights
        instants.append((kept + passing + dense, layer.weights))
        # When it is at the neurons, or forward at BatchNorm: the current and the spikes' bits, and as much again.
        halved = layer.weights and layer.neurons_in_c
        kept += batch * (layer.neurons // (2 if halved else 1) + layer.neurons // 32)
        instants.append((kept + batch * layer.neurons, 0))
    workspace, gradient = max(instants, key=sum)
    # A state that is not written over is there twice while a time step is computed.
    twice = batch * sum(layer.copied for layer in layers)
    kinds = {
        "weights": sum(math.ceil(n / 8) for n in binary) + real + buffers,
        "momentum": momentum,
        "gradients": gradient + real,
        "membrane": batch * (state - trace),
        "trace": batch * trace,
        "workspace": workspace + max(rooms, default=0) + twice,
    }
    return {**kinds, "total": sum(kinds.values())}


@dataclass
class _Layer:
    """Bytes that a synapse and the neurons behind it hold, for one sample; weights are counted once."""

    entering: int = 0
    leaving: int = 0
    kept: int = 0
    """What the synapse keeps that no neuron holds: a pooled trace, or spikes without trace."""
    weights: int = 0
    """One dense copy of the binary weights."""
    tiles: tuple[torch.Size, _Pair, _Pair, Geometry] | None = None
    """What tells how a convolution makes its gradients."""
    neurons: int = 0
    neurons_in_c: bool = False
    copied: int = 0
    """What a step makes anew that is not fused or may not write over its state: the state and, if neurons learn, the
    membrane again."""


def _state_bytes(state: Any) -> tuple[int, int]:
    """Bytes of a state, and those of its traces, which are the fields whose name ends so."""
    if isinstance(state, Tensor):
        return state.nbytes, 0
    if not isinstance(state, tuple | list | dict):
        return 0, 0
    names = getattr(state, "_fields", None) or (state if isinstance(state, dict) else range(len(state)))
    values = state.values() if isinstance(state, dict) else state
    total = traces = 0
    for name, value in zip(names, values, strict=True):
        own, own_traces = _state_bytes(value)
        total += own
        traces += own if str(name).endswith("trace") else own_traces
    return total, traces


def _tiles(layer: TracedConv2d, x: Tensor, made: Tensor) -> tuple[torch.Size, _Pair, _Pair, Geometry]:
    return layer.weight.shape, (x.shape[2], x.shape[3]), (made.shape[2], made.shape[3]), layer.convolution


def _layers(net: Stateful, sample: Tensor) -> list[_Layer]:
    """The layers in the order in which they run."""
    found: list[_Layer] = []
    held: list[Tensor] = []
    recycled = recyclable(net)

    def synapse(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        weight = module.weight
        if not isinstance(inputs[0], Activity) or not isinstance(weight, BinaryParameter):
            return
        spikes, trace = inputs[0]
        sent = spikes if trace is None else trace
        found.append(
            _Layer(
                entering=spikes.nbytes,
                leaving=output.nbytes,
                kept=0 if any(sent is trace for trace in held) else sent.nbytes,
                weights=weight.nbytes,
                tiles=_tiles(module, spikes, output) if isinstance(module, TracedConv2d) else None,
            )
        )

    def neuron(module: nn.Module, _inputs: tuple[Any, ...], output: tuple[Activity, Any]) -> None:
        if output[0].trace is not None:
            held.append(output[0].trace)
        if not found or found[-1].neurons:
            found.append(_Layer())
        found[-1].neurons = output[1].membrane.nbytes
        assert isinstance(module, Neuron)
        if isinstance(module, SoftResetNeuron) and is_fusable(module):
            found[-1].neurons_in_c = neurons(output[1].membrane, as_numbers(module), pooled=False) is not None
            found[-1].copied = 0 if module in recycled else _state_bytes(output[1])[0]
        else:
            learns = any(True for _ in module.parameters())
            found[-1].copied = _state_bytes(output[1])[0] + learns * output[1].membrane.nbytes

    handles = [m.register_forward_hook(synapse) for m in net.modules() if isinstance(m, TracedLayer)]
    handles += [m.register_forward_hook(neuron) for m in net.modules() if isinstance(m, Neuron)]
    try:
        net.initial_state(sample[:1])
    finally:
        for handle in handles:
            handle.remove()
    return found


def assert_memory_constant(
    net: Stateful, time_steps: Sequence[int] = (1, 8, 64), inputs: Tensor | None = None, *, tolerance: float = 0.02
) -> None:
    """Fails if an online update of a network takes more memory over more time steps; for your own tests.

    Every tensor is counted, forward and backward, for each number of time steps.

    Args:
        net: The network; its weights stay as they are.
        time_steps: Lengths to compare.
        inputs: A batch of one time step; two small images by default, for a network on images.
        tolerance: How much the largest may be over the smallest.

    Raises:
        AssertionError: With the bytes by number of time steps.

    Example:
        >>> assert_memory_constant(bsnn.models.vgg((8, "pool", 8)), time_steps=[1, 8, 64])
    """
    if inputs is None:
        if not isinstance(net, ImageNetwork):
            raise UserError(
                f"assert_memory_constant: received a {type(net).__name__} and no inputs; expected a batch of one time "
                "step, as in assert_memory_constant(net, [1, 8, 64], torch.zeros(2, 10))."
            )
        size = max(8, net.minimum_size)
        parameter = next(p for p in net.parameters() if not isinstance(p, BinaryParameter))
        inputs = torch.zeros(2, net.in_channels, size, size, dtype=parameter.dtype, device=parameter.device)
    frame = inputs

    def train(length: int, start: Any) -> Any:
        state = map_state(Tensor.clone, start)
        for _ in range(length):
            with recycling_state(net):
                output, state = net(frame, state)
            as_output(output).square().mean().backward()
            net.zero_grad()
        return state

    before = {name: value.clone() for name, value in net.named_buffers()}
    # What is made once and kept; and a state, so that one step has one from its beginning, as each of many has.
    start = train(1, None)
    peaks = {length: peak_bytes(lambda length=length: train(length, start)) for length in time_steps}
    for name, value in net.named_buffers():
        value.copy_(before[name])
    if max(peaks.values()) > (1 + tolerance) * min(peaks.values()):
        table = ", ".join(f"T = {length}: {number:,} bytes" for length, number in peaks.items())
        raise AssertionError(f"memory grows with time: {table}. Something keeps the graph or a list of past steps.")
