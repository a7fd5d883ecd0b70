"""The deployed network in C: tables for kernel.c, its workspace, and the call.

`plan` turns a network into the tables that kernel.h describes; the C99 export writes the same tables as constants. The
shared libraries lie beside this file, one for each level of instructions; setup.py builds them if it finds a compiler.
"""

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from bsnn.deploy.schema import LARGEST, Add, Artifact, AveragePool, Concat, Lif, MaxPool, Pool, Scale, Synapse, Value
from bsnn.errors import UserError

Library = Literal["baseline", "avx2", "avx512"]
LIBRARIES: tuple[Library, ...] = ("baseline", "avx2", "avx512")
"""From the slowest to the fastest."""

_ALIGNMENT = 64
_SLACK = 32  # elements that vectors may write beyond the last one
_WEIGHT_SLACK = 64  # bytes that vectors may read beyond the last row
_CHUNK_BYTES = 2**22
_MAX_CHUNK = 16
_KINDS = {"input": 0, "spikes": 1, "counts": 1, "fixed": 2}
_COUNT, _DENSE, _LIF, _AVERAGE_POOL, _MAX_POOL, _ADD, _CONCAT, _SCALE = range(8)
_Integer, _Pair, _Size, _Pointer = ctypes.c_int32, ctypes.c_int32 * 2, ctypes.c_size_t, ctypes.c_void_p


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class ValueTable(ctypes.Structure):
    """`bsnn_value` of kernel.h."""

    _fields_ = _fields(_Integer, "kind channels height width planes words") + _fields(_Size, "offset step")


class OpTable(ctypes.Structure):
    """`bsnn_op` of kernel.h."""

    _fields_ = (
        _fields(_Integer, "op still input other output")
        + _fields(_Pair, "kernel stride padding dilation")
        + _fields(_Integer, "groups input_shift shift wide count_padding neurons leak threshold")
        + _fields(ctypes.c_uint32, "row")
        + _fields(_Size, "lists ends rows row_ends rest sums spikes membrane list_capacity row_capacity")
        + _fields(_Pointer, "weight multiplier offset")
    )


class _ModelTable(ctypes.Structure):
    _fields_ = (
        _fields(_Integer, "num_ops num_values output") + _fields(_Size, "frame") + _fields(_Pointer, "ops values")
    )


class _CallTable(ctypes.Structure):
    _fields_ = (
        _fields(_Pointer, "model frames")
        + _fields(_Integer, "num_frames batch time_steps chunk")
        + _fields(_Pointer, "membranes records outputs workspace")
        + _fields(_Size, "values_bytes scratch_bytes")
        + _fields(_Integer, "threads by_rows")
        + _fields(_Pointer, "barrier")
    )


@dataclass(frozen=True, eq=False)
class Plan:
    """The tables of a network, and how much workspace it takes.

    The workspace is `values_bytes` for the values of `chunk` time steps, then `scratch_bytes` for each thread.
    """

    ops: list[OpTable]
    """Their pointers are null; see `layers` and `Weights`."""
    layers: list[int]
    """The layer whose weights and numbers each op takes."""
    values: list[ValueTable]
    chunk: int
    values_bytes: int
    scratch_bytes: int


@dataclass(frozen=True, eq=False)
class Weights:
    """The numbers of a synapse or a scale as the kernel reads them."""

    weight: np.ndarray
    """Bytes of the rows, then a row of zeros and what vectors read beyond the end."""
    row: int
    """Bytes of a row."""
    multiplier: np.ndarray
    offset: np.ndarray
    wide: bool
    """Whether products need 64 bits, or results a cut."""


def weights(layer: Synapse | Scale, value: Value) -> Weights:
    """What the kernel reads of a layer that takes `value`."""
    multiplier, offset = (np.ascontiguousarray(v, np.int32) for v in (layer.multiplier, layer.offset))
    rows = np.empty((0, 0), np.uint8)
    largest = value.magnitude
    if isinstance(layer, Synapse):
        rows, largest = layer.weight, layer.largest_sum(value)
        if layer.weights == "bits" and not counts(layer, value):
            rows = layer.signs().astype(np.int16)
        rows = np.ascontiguousarray(rows).view(np.uint8)
    if rows.size + rows.shape[1] >= 2**31:
        raise UserError(f"layer {layer.name}: {rows.size} bytes of weights; the C kernel takes fewer than 2^31.")
    padded = _zeros_aligned(rows.size + rows.shape[1] + _WEIGHT_SLACK)
    padded[: rows.size] = rows.ravel()
    product = largest * _magnitude(multiplier) + (1 << layer.shift >> 1)
    wide = product >= 2**31 or (product >> layer.shift) + 1 + _magnitude(offset) > LARGEST
    return Weights(padded, rows.shape[1], multiplier, offset, wide)


def _zeros_aligned(size: int) -> np.ndarray:
    """Bytes that begin with a line of the cache; vectors across two lines cost twice."""
    room = np.zeros(size + _ALIGNMENT, np.uint8)
    return room[-room.ctypes.data % _ALIGNMENT :][:size]


def _magnitude(numbers: np.ndarray) -> int:
    return int(np.abs(numbers.astype(np.int64)).max(initial=0))


def counts(layer: Synapse, value: Value) -> bool:
    """Whether a synapse is computed by counting rows of bits; others multiply 16-bit weights."""
    return layer.weights == "bits" and value.kind in ("spikes", "counts")


def plan(
    artifact: Artifact, still: bool, time_steps: int, word_bits: Literal[32, 64] = 64, forgetful: bool = False
) -> Plan:
    """Lays out the tables and the workspace of a network.

    Args:
        artifact: The network.
        still: Whether the input is the same at all time steps.
        time_steps: How many at most are computed layer by layer; fewer where the values of so many would be large.
        word_bits: `BSNN_WORD_BITS` of kernel.h.
        forgetful: Whether `membranes` of the call may be null; then scratch holds those of one row.
    """
    unchanging = artifact.unchanging(still)
    tables = [_value_table(value, word_bits) for value in artifact.values]
    takers: list[list[int]] = [[] for _ in artifact.values]
    for i, layer in enumerate(artifact.layers):
        for index in layer.inputs:
            takers[index].append(i)
    # A synapse that one layer of neurons takes, and nothing else, hands its currents over pixel by pixel.
    fused = {
        i
        for i, layer in enumerate(artifact.layers)
        if isinstance(layer, Synapse)
        and not unchanging[i + 1]
        and len(takers[i + 1]) == 1
        and isinstance(artifact.layers[takers[i + 1][0]], Lif)
    }
    sizes = [_step_bytes(table, word_bits) for table in tables]
    sizes[0] = 0
    for i in fused:
        sizes[i + 1] = 0
    lists = max(
        (
            _lists_of_a_step(tables[layer.inputs[0]], layer.kernel[0], layer.dilation[0], layer.groups).bytes
            for layer in artifact.layers
            if isinstance(layer, Synapse) and counts(layer, artifact.values[layer.inputs[0]])
        ),
        default=0,
    )
    chunk = max(1, min(time_steps, _MAX_CHUNK, _CHUNK_BYTES // max(1, sum(sizes) + lists)))
    for table, size, same in zip(tables, sizes, unchanging, strict=True):
        table.step = 0 if same else size
    # When each value is written and last read; one that all chunks share, and the output, are never overwritten.
    last = len(artifact.layers)
    lives = [(0, last)]
    for i, layer in enumerate(artifact.layers):
        begin = layer.inputs[0] - 1 if isinstance(layer, Lif) and layer.inputs[0] - 1 in fused else i
        kept = i + 1 == last or (unchanging[i + 1] and not all(unchanging[taker + 1] for taker in takers[i + 1]))
        lives.append((0, last) if kept else (begin, max(takers[i + 1])))
    whole = [size * (1 if same else chunk) for size, same in zip(sizes, unchanging, strict=True)]
    values_bytes = _place(tables, whole, lives)

    neurons = {layer: number for number, layer in enumerate(artifact.lifs)}
    ops, layers = [], []
    scratch_bytes = _aligned(4 * (len(artifact.classes) + _SLACK))
    for i, layer in enumerate(artifact.layers):
        if isinstance(layer, Lif) and layer.inputs[0] - 1 in fused:
            continue
        taken, at = [artifact.values[k] for k in layer.inputs], 0
        for number, index in enumerate(layer.inputs if isinstance(layer, Concat) else layer.inputs[:1]):
            op = OpTable(still=unchanging[i + 1], input=index, output=i + 1, groups=1, neurons=-1)
            lif, lif_at = (layer, i) if isinstance(layer, Lif) else (None, i)
            if i in fused:
                lif_at = takers[i + 1][0]
                lif = artifact.layers[lif_at]
            if isinstance(lif, Lif):
                op.op, op.output = _LIF, lif_at + 1
                op.neurons, op.leak, op.threshold = neurons[lif_at], lif.leak, lif.threshold
            if isinstance(layer, Synapse):
                op.op = _COUNT if counts(layer, taken[0]) else _DENSE
                op.groups, op.input_shift, op.shift = layer.groups, layer.input_shift, layer.shift
                op.dilation = layer.dilation
            elif isinstance(layer, Scale):
                op.op, op.shift = _SCALE, layer.shift
            elif isinstance(layer, Add):
                op.op, op.other = _ADD, layer.inputs[1]
            elif isinstance(layer, Concat):
                op.op, op.other = _CONCAT, at
                at += taken[number].shape[0]
            elif isinstance(layer, AveragePool | MaxPool):
                op.op = _MAX_POOL if isinstance(layer, MaxPool) else _AVERAGE_POOL
                op.count_padding = isinstance(layer, AveragePool) and layer.count_padding
            if isinstance(layer, Synapse | Pool):
                op.kernel, op.stride, op.padding = layer.kernel, layer.stride, layer.padding
            scratch_bytes = max(
                scratch_bytes, _lay_scratch(op, tables[op.input], tables[op.output], chunk, word_bits, forgetful)
            )
            ops.append(op)
            layers.append(i)
    return Plan(ops, layers, tables, chunk, values_bytes, scratch_bytes)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _value_table(value: Value, word_bits: int) -> ValueTable:
    channels, height, width = value.shape
    bits = _KINDS[value.kind] == 1
    return ValueTable(
        kind=_KINDS[value.kind],
        channels=channels,
        height=height,
        width=width,
        planes=max(1, value.high.bit_length()) if bits else 0,
        words=-(-channels // word_bits) if bits else 0,
    )


def _step_bytes(table: ValueTable, word_bits: int) -> int:
    """Bytes of a value at one time step."""
    pixel = table.planes * table.words * word_bits // 8 if table.kind == _KINDS["spikes"] else 4 * table.channels
    return _aligned(table.height * table.width * pixel)


def _place(tables: Sequence[ValueTable], sizes: Sequence[int], lives: Sequence[tuple[int, int]]) -> int:
    """Gives every value its place; values that do not live at the same time may share it. Returns the bytes of all."""
    placed: list[tuple[int, int, int]] = []
    for i in sorted(range(len(tables)), key=lambda i: -sizes[i]):
        (begin, end), offset = lives[i], 0
        for start, stop, other in sorted(placed):
            if sizes[i] and lives[other][0] <= end and begin <= lives[other][1]:
                if offset + sizes[i] <= start:
                    break
                offset = max(offset, stop)
        tables[i].offset = offset
        placed.append((offset, offset + sizes[i], i))
    return max(stop for _, stop, _ in placed)


class _Lists(NamedTuple):
    """The lists of channels that fire, of the rows of the input that one row of windows covers."""

    rows: int
    capacity: int
    """Channels of one row of the input, and what vectors write beyond."""
    ends: int

    @property
    def bytes(self) -> int:
        return 4 * self.rows * (self.capacity + self.ends)


def _lists_of_a_step(taken: ValueTable, kernel: int, dilation: int, groups: int) -> _Lists:
    across = taken.width * taken.planes
    return _Lists(
        min(dilation * (kernel - 1) + 1, taken.height),
        across * taken.channels + taken.channels // groups + _SLACK,
        across * groups + 1 + taken.planes,
    )


def _lay_scratch(op: OpTable, taken: ValueTable, made: ValueTable, chunk: int, word_bits: int, forgetful: bool) -> int:
    """Gives the parts of an op's scratch their places, and returns the bytes of all."""
    taps, part = op.kernel[0] * op.kernel[1], taken.channels // op.groups
    parts = {"sums": 4 * (max(taken.channels, made.channels) + _SLACK)}
    if op.neurons >= 0:
        parts |= {"spikes": made.words * word_bits, "membrane": 4 * made.width * made.channels * forgetful}
    if op.op == _COUNT:
        lists = _lists_of_a_step(taken, op.kernel[0], op.dilation[0], op.groups)
        op.list_capacity = lists.capacity
        # No more rows of a window than the input has lie in it.
        within = min(op.kernel[0], taken.height)
        op.row_capacity = within * taken.width * taken.planes * taken.channels + part + _SLACK
        parts["lists"] = 4 * chunk * lists.rows * lists.capacity
        parts["ends"] = 4 * chunk * lists.rows * lists.ends
        parts["rows"] = 4 * op.row_capacity
        parts["row_ends"] = 4 * (lists.ends - taken.planes)
        parts["rest"] = 4 * (op.kernel[1] + 1) * _SLACK
    elif op.op == _DENSE:
        op.row_capacity = taps * part + 1
        parts["lists"] = 2 * taps * taken.channels
        parts["ends"] = 4 * (taken.channels + _SLACK)
        parts["rows"] = 6 * op.row_capacity
    offset = 0
    for name, size in parts.items():
        setattr(op, name, offset)
        offset += _aligned(size)
    return offset


class SynapseLayout:
    """The tables of a binary convolution on its own, for `bsnn_currents` of kernel.h.

    Args:
        taken: Channels, height and width that enter.
        shape: Of the weights: outputs, inputs of a group, height, width.
        stride: Of the convolution, as the others.
        padding: Zeros around the input.
        dilation: Distance of taps.
        groups: Groups of channels.
    """

    def __init__(
        self,
        taken: tuple[int, int, int],
        shape: tuple[int, int, int, int],
        stride: tuple[int, int],
        padding: tuple[int, int],
        dilation: tuple[int, int],
        groups: int,
    ) -> None:
        (channels, *size), (outs, _, *kernel) = taken, shape
        reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
        high, wide = ((n + 2 * p - r) // s + 1 for n, p, r, s in zip(size, padding, reach, stride, strict=True))
        self.made = outs, high, wide
        entering = ValueTable(_KINDS["counts"], channels, *size, planes=3, words=-(-channels // 64))
        leaving = ValueTable(_KINDS["fixed"], outs, high, wide)
        leaving.offset = _step_bytes(entering, 64)
        self.values = (ValueTable * 2)(entering, leaving)
        self.values_bytes = leaving.offset + _step_bytes(leaving, 64)
        self._numbers = np.ones(outs, np.int32), np.zeros(outs, np.int32)  # sums stay as they are
        self.op = OpTable(op=_COUNT, input=0, output=1, groups=groups, neurons=-1)
        self.op.kernel, self.op.stride, self.op.padding, self.op.dilation = tuple(kernel), stride, padding, dilation
        self.op.row = -(-outs // groups // 64) * 8
        self.op.multiplier, self.op.offset = (numbers.ctypes.data for numbers in self._numbers)
        scratch = _lay_scratch(self.op, entering, leaving, 1, 64, forgetful=False)
        self.workspace_bytes = self.values_bytes + scratch
        self.weight_bytes = (kernel[0] * kernel[1] * channels + 1) * self.op.row + _WEIGHT_SLACK


@functools.cache
def libraries() -> dict[Library, ctypes.CDLL]:
    """The libraries that were built and that this processor can run, from the slowest to the fastest.

    Example:
        >>> set(libraries()) <= {"baseline", "avx2", "avx512"}
        True
    """
    found: dict[Library, ctypes.CDLL] = {}
    for number, name in enumerate(LIBRARIES):
        path = Path(__file__).with_name(f"_kernel_{name}.so")
        if number and ("baseline" not in found or _level(found["baseline"]) < number):
            break
        try:
            found[name] = ctypes.CDLL(str(path))
        except OSError:  # not built, or for another system
            continue
    return found


def _level(baseline: ctypes.CDLL) -> int:
    return baseline.bsnn_level() if hasattr(baseline, "bsnn_level") else 0


class Threads:
    """Runs a task on several threads, this one among them; C releases the interpreter's lock.

    Args:
        number: How many.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._pool: ThreadPoolExecutor | None = None
        self._process = os.getpid()

    def run(self, task: Callable[[int], object]) -> None:
        """Calls `task` with the number of each thread, and waits for all."""
        if self.number == 1:
            task(0)
            return
        if self._pool is None or self._process != os.getpid():  # a forked child has the pool and not its threads
            self._pool, self._process = ThreadPoolExecutor(self.number - 1, "bsnn"), os.getpid()
        others = [self._pool.submit(task, rank) for rank in range(1, self.number)]
        try:
            task(0)
        finally:
            wait(others)  # whatever happens here, they write to memory that has to stay until they end
        for other in others:
            other.result()


class Native:
    """Runs a deployed network with the C kernel.

    Args:
        artifact: The network.
        threads: How many, from 1 to 256.
        library: Which of `libraries()`; by default the fastest.
    """

    def __init__(self, artifact: Artifact, threads: int, library: Library | None = None) -> None:
        found = libraries()
        if not found or (library or "baseline") not in found:
            raise UserError(
                f"kernel: {library or 'it'} is not there; built, and fit for this processor: "
                f"{', '.join(found) or 'none'}. Install bsnn again where there is a C compiler, or use kernel='numpy'."
            )
        if not 1 <= threads <= 256:
            raise UserError(f"threads: received {threads}; expected 1 to 256.")
        self.artifact = artifact
        self.threads = threads
        self.library: Library = library or list(found)[-1]
        self._run = found[self.library].bsnn_run
        self._run.argtypes, self._run.restype = [_Pointer, _Integer], None
        self._weights = {
            i: weights(layer, artifact.values[layer.inputs[0]])
            for i, layer in enumerate(artifact.layers)
            if isinstance(layer, Synapse | Scale)
        }
        self._models: dict[tuple[bool, int], tuple[Plan, _ModelTable, Any]] = {}
        self._workspace = _zeros_aligned(0)
        self._threads = Threads(threads)
        self._lock = threading.Lock()

    def run(
        self,
        frames: np.ndarray,
        time_steps: int,
        membranes: Sequence[np.ndarray] | None,
        record: Sequence[np.ndarray] | None = None,
    ) -> np.ndarray:
        """See `bsnn.deploy.engine.plain.Plain.run`; without `membranes` they begin at zero and are forgotten."""
        still, batch = len(frames) == 1, frames.shape[1]
        frames = np.ascontiguousarray(frames, np.int16)
        total = np.zeros((batch, len(self.artifact.classes)), np.int64)
        with self._lock:
            layout, model = self._model(still, time_steps)
            by_rows = batch < self.threads
            values = layout.values_bytes * (1 if by_rows else self.threads)
            size = values + layout.scratch_bytes * self.threads
            if self._workspace.size < size:
                self._workspace = _zeros_aligned(size)
            barrier = np.zeros(2, np.uint32)
            if membranes is None and layout.chunk < time_steps:
                membranes = self.artifact.membranes(batch)
            membrane_table = None if membranes is None else _pointers(membranes, np.int32)
            record_table = None if record is None else _pointers(record, np.uint8)
            call = _CallTable(
                model=ctypes.addressof(model),
                frames=frames.ctypes.data,
                num_frames=len(frames),
                batch=batch,
                time_steps=time_steps,
                chunk=layout.chunk,
                membranes=None if membrane_table is None else ctypes.addressof(membrane_table),
                records=None if record_table is None else ctypes.addressof(record_table),
                outputs=total.ctypes.data,
                workspace=self._workspace.ctypes.data,
                values_bytes=layout.values_bytes,
                scratch_bytes=layout.scratch_bytes,
                threads=self.threads,
                by_rows=by_rows,
                barrier=barrier.ctypes.data,
            )
            self._threads.run(functools.partial(self._run, ctypes.addressof(call)))
        return total

    def _model(self, still: bool, time_steps: int) -> tuple[Plan, _ModelTable]:
        key = still, min(time_steps, _MAX_CHUNK)
        if key not in self._models:
            layout = plan(self.artifact, *key, forgetful=True)
            for op, layer in zip(layout.ops, layout.layers, strict=True):
                if layer in self._weights:
                    numbers = self._weights[layer]
                    op.row, op.wide = numbers.row, numbers.wide
                    op.weight = numbers.weight.ctypes.data
                    op.multiplier, op.offset = numbers.multiplier.ctypes.data, numbers.offset.ctypes.data
            ops = (OpTable * len(layout.ops))(*layout.ops)
            values = (ValueTable * len(layout.values))(*layout.values)
            model = _ModelTable(
                num_ops=len(ops),
                num_values=len(values),
                output=len(values) - 1,
                frame=self.artifact.values[0].size,
                ops=ctypes.addressof(ops),
                values=ctypes.addressof(values),
            )
            self._models[key] = layout, model, (ops, values)
        return self._models[key][:2]


def _pointers(arrays: Sequence[np.ndarray], dtype: type) -> Any:
    for array in arrays:
        assert array.dtype == dtype
        assert array.flags.c_contiguous
    return (_Pointer * len(arrays))(*(array.ctypes.data for array in arrays))
