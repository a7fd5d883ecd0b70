"""Running a deployed network in C: its tables, a workspace, and the call.

The shared libraries are beside this file, one per level of instructions; setup.py builds them if it finds a compiler.
"""

import ctypes
import functools
import threading
from pathlib import Path
from typing import Any

import numpy as np

from bsnn.deploy.engine.layout import MAX_CHUNK, Layout, lay_out
from bsnn.deploy.engine.plain import Arrays
from bsnn.deploy.engine.scratch import Target
from bsnn.deploy.engine.tables import CallTable, ModelTable, OpTable, TaskTable, ValueTable
from bsnn.deploy.engine.weights import all_weights, zeros_aligned
from bsnn.deploy.schema import Artifact
from bsnn.errors import UserError
from bsnn.kernels.libraries import Level, Threads, load_libraries

TARGETS: dict[Level, Target] = {"baseline": Target(vector=16), "avx2": Target(vector=32), "avx512": Target(vector=64)}
"""What each library is built for; it counts with vectors of so many bytes (`BSNN_WIDEST` of csrc/count.h)."""


def libraries() -> dict[Level, ctypes.CDLL]:
    """The libraries that were built and that this processor can run, from the slowest to the fastest.

    Example:
        >>> set(libraries()) <= {"baseline", "avx2", "avx512"}
        True
    """
    return load_libraries(Path(__file__).parent, "engine")


class Native:
    """Runs a deployed network in C.

    Args:
        artifact: The network.
        threads: How many, from 1 to 256.
        library: Which of `libraries()`; by default the fastest.
    """

    def __init__(self, artifact: Artifact, threads: int, library: Level | None = None) -> None:
        found = libraries()
        if not found or (library or "baseline") not in found:
            raise UserError(
                f"kernel: {library or 'it'} is missing; built, and fit for this processor: "
                f"{', '.join(found) or 'none'}. Install bsnn again where there is a C compiler, or use kernel='numpy'."
            )
        if not hasattr(threads, "__index__") or not 1 <= threads <= 256:
            raise UserError(f"threads: received {threads!r}; expected a whole number from 1 to 256.")
        self.artifact = artifact
        self.threads = threads
        self.library: Level = library or list(found)[-1]
        self._run = found[self.library].bsnn_run
        self._run.argtypes, self._run.restype = [ctypes.c_void_p, ctypes.c_int32], None
        self._target = TARGETS[self.library]
        self._weights = all_weights(artifact, vector=self._target.vector)
        self._models: dict[tuple[bool, int], tuple[Layout, ModelTable, Any]] = {}
        self._workspace = zeros_aligned(0)
        self._threads = Threads(threads)
        self._lock = threading.Lock()

    def run(
        self, frames: np.ndarray, time_steps: int, membranes: Arrays | None, record: Arrays | None = None
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
                self._workspace = zeros_aligned(size)
            barrier = np.zeros(2, np.uint32)
            if membranes is None and layout.chunk < time_steps:
                membranes = self.artifact.membranes(batch)
            membrane_table = None if membranes is None else _pointers(membranes, np.int32)
            record_table = None if record is None else _pointers(record, np.uint8)
            call = CallTable(
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

    def _model(self, still: bool, time_steps: int) -> tuple[Layout, ModelTable]:
        key = still, min(time_steps, MAX_CHUNK)
        if key not in self._models:
            layout = lay_out(self.artifact, *key, self._target, forgetful=True)
            for op, layer in zip(layout.ops, layout.layers, strict=True):
                if layer in self._weights:
                    numbers = self._weights[layer]
                    op.row, op.wide = numbers.row, numbers.wide
                    op.weight = numbers.weight.ctypes.data
                    op.multiplier, op.offset = numbers.multiplier.ctypes.data, numbers.offset.ctypes.data
            ops = (OpTable * len(layout.ops))(*layout.ops)
            values = (ValueTable * len(layout.values))(*layout.values)
            tasks = (TaskTable * len(layout.tasks))(*layout.tasks)
            model = ModelTable(
                num_tasks=len(tasks),
                output=len(values) - 1,
                frame=self.artifact.values[0].size,
                tasks=ctypes.addressof(tasks),
                ops=ctypes.addressof(ops),
                values=ctypes.addressof(values),
            )
            self._models[key] = layout, model, (ops, values, tasks)
        return self._models[key][:2]


def _pointers(arrays: Arrays, dtype: type) -> Any:
    for array in arrays:
        assert array.dtype == dtype
        assert array.flags.c_contiguous
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
