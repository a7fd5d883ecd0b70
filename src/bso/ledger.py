"""What training a network will hold in memory, told from shapes, and a check that it does not grow with time."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bso.bits import BinaryParameter
from bso.errors import UserError
from bso.fused import recycling_state
from bso.layers import TracedLayer
from bso.memory import peak_bytes
from bso.momentum import BLOCK
from bso.network import ImageNetwork
from bso.neuron import LIF, Stateful, map_state
from bso.trace import Activity


def predict_memory(net: Stateful, sample: Tensor, batch: int, *, momentum_bits: int = 32) -> dict[str, int]:
    """Bytes that an online update holds at its peak, by kind of tensor, without running it.

    Scratch space inside kernels is not in it. One sample passes through the network to find shapes.

    Args:
        net: The network.
        sample: An input of one time step; its first sample is used.
        batch: Samples in a batch.
        momentum_bits: Of the flip optimizer.

    Returns:
        Weights (with BatchNorm's statistics), momentum, gradients (the largest of a binary layer, twice while it
        changes its memory order, and the real-valued ones), membrane, trace, workspace (what backward needs beside
        the state, and the largest that is made on the way), and their total.

    Example:
        >>> net = bso.models.vgg11(width=0.125)
        >>> predict_memory(net, torch.zeros(1, 3, 32, 32), batch=32)["membrane"]  # 51,200 neurons, four bytes each
        6553600
    """
    binary = [p.numel() for p in net.parameters() if isinstance(p, BinaryParameter)]
    real = sum(p.numel() * p.element_size() for p in net.parameters() if not isinstance(p, BinaryParameter))
    buffers = sum(b.numel() * b.element_size() for b in net.buffers())
    momentum = 4 * sum(binary) if momentum_bits == 32 else sum(math.ceil(n / BLOCK) * (BLOCK + 4) for n in binary)
    entering = _entering(net, sample)
    states: list[Tensor] = []
    map_state(states.append, net.initial_state(sample[:1]))
    rules = [m.gradient for m in net.modules() if isinstance(m, LIF)]
    traced = any(rule.has_trace for rule in rules)
    neurons = [s.numel() * s.element_size() * batch for s in (states[::2] if traced else states)]
    sent = sum(elements * 4 * batch for elements in entering)
    # Currents, bits and what the synapses keep; at the largest layer normal values or gradients, and the image.
    kept = sum(neurons) + sum(neurons) // 32 + sent
    passing = 2 * max(neurons, default=0) + sample[:1].numel() * 4 * batch
    kinds = {
        "weights": sum(math.ceil(n / 8) for n in binary) + real + buffers,
        "momentum": momentum,
        "gradients": 8 * max(binary, default=0) + real,
        "membrane": sum(neurons),
        "trace": sum(neurons) if traced else 0,
        "workspace": kept + passing,
    }
    return {**kinds, "total": sum(kinds.values())}


def _entering(net: Stateful, sample: Tensor) -> list[int]:
    """How many values of a sample each synapse keeps that no neuron holds: pooled traces, or spikes without trace."""
    found: list[int] = []
    held: list[Tensor] = []

    def synapse(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        if isinstance(inputs[0], Activity):
            kept = inputs[0].spikes if inputs[0].trace is None else inputs[0].trace
            if all(kept is not trace for trace in held):
                found.append(kept.numel())

    def neuron(_module: nn.Module, _inputs: tuple[Any, ...], output: tuple[Activity, Any]) -> None:
        if output[0].trace is not None:
            held.append(output[0].trace)

    handles = [m.register_forward_pre_hook(synapse) for m in net.modules() if isinstance(m, TracedLayer)]
    handles += [m.register_forward_hook(neuron) for m in net.modules() if isinstance(m, LIF)]
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
        >>> assert_memory_constant(bso.models.vgg((8, "pool", 8)), time_steps=[1, 8, 64])
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
            with recycling_state():
                logits, state = net(frame, state)
            logits.square().mean().backward()
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
