"""The neurons of a step as the compiler sees them: one operator forward and one backward, on any backend.

Which backend computes them is found while a network is traced, and is part of the graph. An operator's results must
not depend on numbers in type or shape, so currents are kept as they are, not in 16 bits. Nothing is written over: an
operator makes a new state and new statistics, which leaves compilers free in their order.
"""

import importlib
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bsnn.kernels import operations
from bsnn.kernels._chunked import ChunkedNeurons, chunk_bytes, packed_bytes
from bsnn.kernels._whole import WholeNeurons
from bsnn.kernels.batch_norm import evaluation_norm, training_norm
from bsnn.kernels.compiler import alone, operator
from bsnn.kernels.formulas import NamedTrace, derivative
from bsnn.kernels.images import channels_last, halved_images
from bsnn.kernels.memory import make_room
from bsnn.kernels.operations import Neuron, NeuronKernel, Norm, Saved
from bsnn.kernels.pieces import is_whole
from bsnn.kernels.torch_internals import constant, count_together

_TENSORS = (
    "Tensor current, Tensor membrane, Tensor? trace, Tensor? weight, Tensor? bias, Tensor? running_mean, "
    "Tensor? running_var, Tensor? num_batches, float? rate, float eps"
)
_NEURON = "float leak, float threshold, str surrogate, float parameter, str trace_name, bool pooled, str backend"
_RATIOS = ("ratio", "clamped ratio")


class _Described(NamedTuple):
    """A neuron as operators take it, and what computes it."""

    leak: float
    threshold: float
    surrogate: str
    parameter: float
    trace: str
    pooled: bool
    backend: str
    """`"cpu"` or `"triton"`, or `"chunked"` or `"whole"` for torch."""

    def neuron(self, trace: NamedTrace) -> Neuron:
        """With functions for torch."""
        return Neuron(
            leak=self.leak,
            threshold=self.threshold,
            derivative=partial(_derivative, self.surrogate, self.parameter),
            surrogate=self.surrogate,
            parameter=self.parameter,
            update_trace=trace.update,
            trace=self.trace,
            needs_membrane=self.trace in _RATIOS,
            count_ratios=trace.count,
        )

    def kernel(self, x: Tensor, trace: NamedTrace) -> NeuronKernel:
        """What computes neurons that `x` enters."""
        if self.backend in ("chunked", "whole"):
            return (WholeNeurons if self.backend == "whole" else ChunkedNeurons)(self.neuron(trace), self.pooled)
        made = importlib.import_module(f"bsnn.kernels.{self.backend}").neurons(x, self.neuron(trace), self.pooled)
        assert made is not None
        return made

    def empty_bits(self, x: Tensor) -> Tensor:
        """Room for the spikes that `backward` is given."""
        size, channels = x.shape[1:].numel(), x.shape[1]
        if self.backend == "whole":
            return torch.empty_like(x, dtype=torch.bool)
        if self.backend == "chunked":
            return x.new_empty(packed_bytes(x), dtype=torch.uint8)
        rows, of_bits = (x.shape[0], size) if self.backend == "cpu" else (x.numel() // channels, channels)
        return x.new_empty(rows, (of_bits + 7) // 8, dtype=torch.uint8)


def _derivative(name: str, parameter: float, x: Tensor) -> Tensor:
    return derivative(x, name, parameter)


@constant
def _backend_for(device: str, dtype: torch.dtype, surrogate: str, trace: str, pooled: bool) -> str:
    """What computes such neurons now. It does not depend on their numbers, which the compiler may not know."""
    sample = torch.empty(2, 2, 2, 2, dtype=dtype, device=device)
    numbers = _Described(0.5, 1.0, surrogate, 1.0, trace, pooled, "")
    kernel = operations.neurons(sample, numbers.neuron(NamedTrace(numbers.trace)), numbers.pooled)
    if kernel is None:
        return "whole" if is_whole(sample) else "chunked"
    return "cpu" if type(kernel).__module__ == "bsnn.kernels._neurons" else "triton"


class TracedNeurons:
    """See `operations.NeuronKernel`.

    Args:
        x: What enters.
        neuron: What each neuron does; its surrogate and its trace have names.
        pooled: Whether means of two by two pixels are sent on.
    """

    def __init__(self, x: Tensor, neuron: Neuron, pooled: bool) -> None:
        described = neuron.leak, neuron.threshold, neuron.surrogate, neuron.parameter, neuron.trace, pooled
        assert neuron.surrogate is not None
        assert neuron.trace is not None
        backend = _backend_for(x.device.type, x.dtype, neuron.surrogate, neuron.trace, pooled)
        self._described = *described, backend
        self._count_ratios = neuron.count_ratios
        self._pooled = pooled
        self.state: tuple[Tensor, Tensor | None] | None = None
        """The new membrane and trace, which are not those that `forward` was given."""

    def forward(
        self, current: Tensor, membrane: Tensor, trace: Tensor | None, norm: Norm | None, *, learning: bool, spare: bool
    ) -> tuple[Tensor, Tensor | None, Saved]:
        """See `operations.NeuronKernel`."""
        numbers: tuple[Any, ...] = (None,) * 6 + (0.0,)
        if norm is not None and norm.running is not None:
            numbers = norm.weight, norm.bias, *norm.running, norm.rate, norm.eps
        elif norm is not None:
            numbers = *norm.folded(), None, None, None, None, norm.eps
        made = neuron_step(current, membrane, trace, *numbers, *self._described)
        sent, pooled_trace, moved, moved_trace, bits, mean, deviation, ratios, *running = made
        if norm is not None and norm.running is not None:
            for target, value in zip(norm.running, running, strict=True):
                target.copy_(value)
        if trace is not None and self._count_ratios is not None:
            self._count_ratios(*ratios.unbind())
        new_trace = None if trace is None else moved_trace
        self.state = moved, new_trace
        sent_trace = pooled_trace if trace is not None and self._pooled else new_trace
        kept = current if norm is not None and learning else None
        return sent, sent_trace, Saved(kept, [bits], mean, deviation)

    def backward(
        self, sent: Tensor, membrane: Tensor, weight: Tensor | None, saved: Saved
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """See `operations.NeuronKernel`."""
        normed = saved.current is not None
        kept = (saved.current, weight, saved.mean, saved.deviation) if normed else (None,) * 4
        gradient, of_weight, of_bias = neuron_gradients(sent, membrane, saved.bits[0], *kept, *self._described)
        return gradient, of_weight if normed else None, of_bias if normed else None


def _fake_step(
    current: Tensor, membrane: Tensor, trace: Tensor | None, weight: Any, bias: Any, *rest: Any
) -> tuple[Tensor, ...]:
    described, running = _Described(*rest[5:]), rest[:3]
    sent = halved_images(current) if described.pooled else torch.empty_like(current)
    counts = 2 if trace is not None and described.trace in _RATIOS else 0
    statistics = None if running[0] is None else weight
    like = membrane, trace, None, statistics, statistics, None, *running
    made = [current.new_empty(0) if tensor is None else torch.empty_like(tensor) for tensor in like]
    made[2], made[5] = described.empty_bits(current), current.new_empty(counts, dtype=torch.int64)
    return sent, torch.empty_like(sent) if described.pooled and trace is not None else current.new_empty(0), *made


@operator(f"({_TENSORS}, {_NEURON}) -> ({', '.join(['Tensor'] * 11)})", _fake_step, lambda made: made)
def neuron_step(
    current: Tensor, membrane: Tensor, trace: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    running_mean: Tensor | None, running_var: Tensor | None, num_batches: Tensor | None, rate: float | None, eps: float,
    *described: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Moves membrane and trace one step on.

    Args:
        current: What enters, channels last, as all images here.
        membrane: Of the neurons.
        trace: Of their spikes, if there is one.
        weight: Of BatchNorm; in evaluation its scale; None without BatchNorm.
        bias: Of BatchNorm; in evaluation its shift.
        running_mean: Of BatchNorm; None in evaluation.
        running_var: Likewise.
        num_batches: Likewise.
        rate: Share of the batch in the running statistics; None for one over the number of batches.
        eps: Of BatchNorm.
        described: The neuron; see `_Described`.

    Returns:
        Spikes, and their trace if it is pooled; the new membrane and trace; for backward, the spikes as bits, and the
        mean and 1/σ of the batch; NDOT's counts of ratios; the new running mean, variance and number of batches. What
        there is not has no elements.
    """
    numbers, norm, counted = _Described(*described), None, []
    rule, membrane, trace = NamedTrace(numbers.trace), membrane.clone(), None if trace is None else trace.clone()
    running = ()
    if running_mean is not None and running_var is not None and num_batches is not None:
        assert weight is not None
        assert bias is not None
        running = running_mean.clone(), running_var.clone(), num_batches.clone()
        norm = training_norm(weight, bias, running, rate, eps, counted)
    elif weight is not None and bias is not None:
        norm = evaluation_norm(weight, bias, weight, bias, eps)
    kernel = numbers.kernel(current, rule)
    sent, sent_trace, saved = kernel.forward(current, membrane, trace, norm, learning=False, spare=False)
    if counted:
        count_together(counted)
    ratios = torch.stack(rule.counts) if rule.counts is not None else current.new_empty(0, dtype=torch.int64)
    bits = torch.cat(list(saved.bits)) if numbers.backend == "chunked" else saved.bits[0]
    found = sent_trace if numbers.pooled else None, membrane, trace, bits, saved.mean, saved.deviation
    nothing = [None] * (3 - len(running))
    kept = [current.new_empty(0) if made is None else alone(made) for made in (*found, *running, *nothing)]
    return sent, *kept[:6], ratios, *kept[6:]


def _fake_gradients(sent: Tensor, membrane: Tensor, bits: Tensor, current: Any, weight: Any, *rest: Any) -> Any:
    made = [sent.new_empty(0) if weight is None else torch.empty_like(weight) for _ in range(2)]
    return torch.empty_like(membrane), *made


@operator(
    "(Tensor sent, Tensor membrane, Tensor bits, Tensor? current, Tensor? weight, Tensor? mean, Tensor? deviation, "
    f"{_NEURON}) -> (Tensor, Tensor, Tensor)",
    _fake_gradients,
    lambda made: made,
)
def neuron_gradients(
    sent: Tensor, membrane: Tensor, bits: Tensor, current: Tensor | None, weight: Tensor | None, mean: Tensor | None,
    deviation: Tensor | None, *described: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of the current and of BatchNorm's weight and bias; without BatchNorm, these have no elements.

    Args:
        sent: Gradient of what was sent on.
        membrane: After the step.
        bits: Spikes, as `neuron_step` has made them.
        current: What entered BatchNorm; None, and so with the next three, without it.
        weight: Of BatchNorm.
        mean: Of the batch.
        deviation: 1/σ of the batch.
        described: The neuron; see `_Described`.
    """
    make_room(membrane)
    numbers = _Described(*described)
    kernel = numbers.kernel(membrane, NamedTrace(numbers.trace))
    packed = bits.split(chunk_bytes(membrane)) if numbers.backend == "chunked" else [bits]
    made = kernel.backward(channels_last(sent), membrane, weight, Saved(current, packed, mean, deviation))
    gradient, of_weight, of_bias = made
    return channels_last(gradient), *(
        sent.new_empty(0) if part is None else alone(part) for part in (of_weight, of_bias)
    )
