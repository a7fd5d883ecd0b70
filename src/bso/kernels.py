"""What training computes in C where the engine's kernel was built, in single precision on a CPU.

Synapses: spikes are bits, so what they add up to is a count. Sums of ±1 over spikes, or over means of four spikes, are
whole numbers of quarters, which single precision holds exactly in any order of addition: the kernel gives the very bits
that torch's convolution gives. Weight gradients: from those inputs alone that are not zero, where these are few.
Neurons: all of a time step while an image is in the cache, rounded as torch rounds.
"""

import ctypes
from enum import IntEnum
from functools import cache, lru_cache, partial

import torch
from torch import Tensor, nn

from bso import surrogate as surrogates
from bso.bits import unpack
from bso.engine.native import OpTable, SynapseLayout, Threads, libraries
from bso.memory import program_with
from bso.surrogate import Surrogate
from bso.trace import OTTT, SLTT, GradientRule

# `bso_training_version` of work.c.
_VERSION = 1

# Fewer channels than this leave bits of a word of the kernel idle; then torch is as fast.
_MIN_CHANNELS = 64

# A larger share of inputs that are not zero, and a dense product is faster.
_MAX_SHARE = 0.35

# Of as many images as have so many the weight gradient is made at a time.
_PIXELS = 256

_SURROGATES = {  # as neurons.c numbers them, and the name of their parameter
    surrogates.Sigmoid: (0, "alpha"),
    surrogates.Rectangle: (1, "width"),
    surrogates.Triangle: (2, "width"),
    surrogates.Arctan: (3, "alpha"),
}

_Pair = tuple[int, int]
_threads = cache(Threads)
_layout = lru_cache(256)(SynapseLayout)


class _Function(IntEnum):
    """As work.c numbers them."""

    ROWS, CURRENTS, SIGNS, GRADIENT, REORDER, FIRE, QUARTERS, THROUGH_NEURONS, THROUGH_NORM = range(9)


class _Task(ctypes.Structure):
    """`bso_task` of train.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("function", "threads", "refused")),
        *((name, ctypes.c_void_p) for name in ("rank", "size")),
        ("arguments", ctypes.c_void_p * 9),
    ]


def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that torch has loaded, if it is one of GNU's kind."""
    return program_with("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")


def _run(
    library: ctypes.CDLL, function: _Function, *arguments: Tensor | ctypes.Structure | ctypes.Array | None
) -> bool:
    """Runs a function of the kernel on as many threads as torch takes; returns whether it served."""
    task = _Task(function, torch.get_num_threads())
    for place, argument in enumerate(arguments):
        found = argument.data_ptr() if isinstance(argument, Tensor) else argument and ctypes.addressof(argument)
        task.arguments[place] = found
    openmp = _openmp()
    if task.threads == 1 or openmp is None:
        _threads(task.threads).run(partial(library.bso_work_as, ctypes.byref(task)))
    else:
        for name, of in (("rank", openmp.omp_get_thread_num), ("size", openmp.omp_get_num_threads)):
            setattr(task, name, ctypes.cast(of, ctypes.c_void_p))
        openmp.GOMP_parallel(library.bso_work, ctypes.byref(task), task.threads, 0)
    return not task.refused


def _library(x: Tensor, dtype: torch.dtype = torch.float32) -> ctypes.CDLL | None:
    """The fastest kernel, if one serves: for plain tensors in memory, not for what stands for one while tracing."""
    if x.device.type != "cpu" or x.dtype != dtype or not x.numel() or type(x) not in (Tensor, nn.Parameter):
        return None
    library = next(reversed(libraries().values()), None)
    return library if library is not None and _version(library) == _VERSION else None


@cache
def _version(library: ctypes.CDLL) -> int:
    """Of what the library has for training; one that was built before the package was changed may differ."""
    return library.bso_training_version() if hasattr(library, "bso_training_version") else 0


def convolve(
    x: Tensor, bits: Tensor, shape: torch.Size, stride: _Pair, padding: _Pair, dilation: _Pair, groups: int
) -> Tensor | None:
    """The convolution of spikes with one-bit weights of `shape`, channels last; None where the kernel does not serve.

    It serves for spikes and means of four spikes.
    """
    library, (outs, ins, height, width) = _library(x), shape
    if library is None or _library(bits, torch.uint8) is None or outs // groups < _MIN_CHANNELS:
        return None
    if x.shape[1] != ins * groups:
        return None  # torch says what is wrong
    x = _channels_last(x.detach())
    layout = _layout(tuple(x.shape[1:]), tuple(shape), stride, padding, dilation, groups)
    if min(layout.made) < 1 or layout.weight_bytes >= 2**31:
        return None
    rows = x.new_zeros(layout.weight_bytes, dtype=torch.uint8)
    _run(library, _Function.ROWS, bits, (ctypes.c_int32 * 5)(outs, ins, height * width, groups, layout.op.row), rows)
    op = OpTable.from_buffer_copy(layout.op)
    op.weight = rows.data_ptr()
    currents = _empty_images(x, (len(x), *layout.made))
    sizes = (ctypes.c_int64 * 3)(len(x), layout.values_bytes, layout.workspace_bytes)
    workspace = x.new_empty(torch.get_num_threads(), layout.workspace_bytes, dtype=torch.uint8)
    served = _run(library, _Function.CURRENTS, op, layout.values, x, currents, sizes, workspace)
    return currents if served else None


class _ConvolutionTable(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("images", "height", "width", "ins", "outs", "down", "across")]


def weight_gradient(
    grad: Tensor, x: Tensor, shape: torch.Size, stride: _Pair, padding: _Pair, dilation: _Pair, groups: int
) -> Tensor | None:
    """The weight gradient of a convolution from those inputs that are not zero; None where that does not pay."""
    library, (outs, ins, down, across) = _library(x), shape
    plain = stride == dilation == (1, 1) and groups == 1 and padding[0] < down and padding[1] < across
    if library is None or not plain or ins % 16 or outs % library.bso_gradient_block():
        return None
    some = x[:: -(-len(x) // 4)]
    if some.count_nonzero() > _MAX_SHARE * some.numel():
        return None
    x, grad = (_channels_last(part).permute(0, 2, 3, 1) for part in (x, grad))
    batch, height, width, _ = x.shape
    together = min(batch, -(-_PIXELS // (height * width)))
    table = _ConvolutionTable(together, height, width, ins, outs, down, across)
    padded = grad.new_zeros(together, height + down - 1, width + across - 1, outs)
    top, left = down - 1 - padding[0], across - 1 - padding[1]
    inside = padded[:, top : top + grad.shape[1], left : left + grad.shape[2]]
    sums = grad.new_zeros(down * across, ins, outs)
    numbers = grad.new_empty(ins, dtype=torch.int32)
    lists = grad.new_empty(ins, together * height * width, dtype=torch.int64)

    for start in range(0, batch, together):
        table.images = min(together, batch - start)
        inside[: table.images] = grad[start : start + table.images]
        _run(library, _Function.GRADIENT, table, x[start:], padded, sums, numbers, lists)
    return row_major(sums.view(down, across, ins, outs).permute(3, 2, 0, 1))


def row_major(gradient: Tensor) -> Tensor:
    """A weight gradient `[outs, ins, height, width]` in the order of the weights' bits."""
    library, (*steps, down, across) = _library(gradient), gradient.stride()
    if library is None or gradient.is_contiguous() or down != gradient.shape[3] * across:
        return gradient.contiguous()
    made, (outs, ins, *kernel) = gradient.new_empty(gradient.shape), gradient.shape
    shape = (ctypes.c_int32 * 3)(outs, ins, kernel[0] * kernel[1])
    _run(library, _Function.REORDER, gradient, (ctypes.c_int64 * 3)(*steps, across), shape, made)
    return made


class _NeuronTable(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int32)
            for name in ("batch", "height", "width", "channels", "pooled", "surrogate", "quarters")
        ),
        *((name, ctypes.c_float) for name in ("parameter", "leak", "threshold")),
    ]


class Neurons:
    """A layer of neurons on the kernel; all tensors have their channels last.

    Args:
        library: The kernel.
        x: What enters, `[B, C, H, W]` or `[B, C]`.
        pooled: Whether means of two by two pixels are sent on.
        number: Of the surrogate.
        parameter: Of the surrogate.
        leak: λ.
        threshold: V_th.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        x: Tensor,
        pooled: bool,
        number: int,
        parameter: float,
        leak: float,
        threshold: float,
    ) -> None:
        batch, channels, *size = x.shape
        height, width = size or (1, 1)
        self._library = library
        self._table = _NeuronTable(batch, height, width, channels, pooled, number, 0, parameter, leak, threshold)

    def _run(self, function: _Function, *arguments: Tensor | None) -> None:
        _run(self._library, function, self._table, *arguments)

    def fire(self, x: Tensor, membrane: Tensor, trace: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
        """Moves membrane and trace one step on, in place, and writes spikes over the currents `x`.

        Returns:
            The spikes and the trace that are sent on, and the spikes as bits.
        """
        table, sent, sent_trace = self._table, x, trace
        if table.pooled:
            size = (table.batch, table.channels, table.height // 2, table.width // 2)
            sent = _empty_images(x, size)
            sent_trace = None if trace is None else torch.empty_like(sent)
        bits = x.new_empty(table.batch, -(-x[0].numel() // 8), dtype=torch.uint8)
        self._run(_Function.FIRE, x, membrane, trace, sent, sent_trace, bits)
        for changed in (membrane, trace):
            if changed is not None:  # so that autograd notices, as it does with torch's own functions
                torch.autograd.graph.increment_version(changed)
        return sent, sent_trace, bits

    def keep(self, current: Tensor) -> Tensor:
        """What `through` is given of a current: those of binary synapses are quarters, which take half the room."""
        quarters = torch.empty_like(current, dtype=torch.int16)
        self._table.quarters = _run(self._library, _Function.QUARTERS, self._table, current, quarters)
        return quarters if self._table.quarters else current

    def through(
        self, sent: Tensor, membrane: Tensor, bits: Tensor, current: Tensor | None, mean: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """∂L/∂u from that of what was sent on; sums of it and of its product with I − mean."""
        gradient, number = torch.empty_like(membrane), torch.get_num_threads()
        sums = gradient.new_zeros(number, 2, self._table.channels, dtype=torch.float64)
        work = gradient.new_empty(number, 2, self._table.channels)
        self._run(_Function.THROUGH_NEURONS, sent, membrane, bits, current, mean, gradient, sums, work)
        total, products = sums.sum(0)
        return gradient, total, products

    def through_norm_(self, gradient: Tensor, current: Tensor, scale: Tensor, slope: Tensor, shift: Tensor) -> None:
        """Replaces ∂L/∂BN(I) by ∂L/∂I = scale · ∂L/∂BN(I) + slope · I + shift."""
        self._run(_Function.THROUGH_NORM, gradient, current, scale, slope, shift)


def signs(bits: Tensor, number: int, dtype: torch.dtype) -> Tensor:
    """As `bso.bits.unpack`."""
    library = _library(bits, torch.uint8)
    if library is None or dtype != torch.float32:
        return unpack(bits, number, dtype)
    made = bits.new_empty(number, dtype=dtype)
    _run(library, _Function.SIGNS, bits, (ctypes.c_int64 * 1)(number), made)
    return made


def neurons(
    x: Tensor, pooled: bool, rule: GradientRule, surrogate: Surrogate, leak: float, threshold: float
) -> Neurons | None:
    """The neurons that `x` enters on the kernel; None where it does not serve: NDOT, and a user's own surrogate."""
    library = _library(x)
    number, parameter = _SURROGATES.get(type(surrogate), (None, ""))  # pyright: ignore[reportArgumentType]
    odd = pooled and (x.shape[2] % 2 or x.shape[3] % 2)
    if library is None or number is None or type(rule) not in (OTTT, SLTT) or odd:
        return None
    return Neurons(library, x, pooled, number, getattr(surrogate, parameter), leak, threshold)


def _empty_images(like: Tensor, size: tuple[int, ...]) -> Tensor:
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)
