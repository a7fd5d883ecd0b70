"""The C library of training: which one to use, and running its functions on torch's threads."""

import ctypes
from enum import IntEnum
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from bsnn.kernels.libraries import Level, Threads, load_libraries, program_with

# `bsnn_training_version` of work.c.
_VERSION = 6

_threads = cache(Threads)


class Function(IntEnum):
    """As work.c numbers them."""

    ROWS, CURRENTS, SIGNS, FIRE, QUARTERS, THROUGH_NEURONS, THROUGH_NORM = range(7)
    PIXELS_TO_POINTS, FILTERS_TO_POINTS, POINTS_TO_PIXELS, SIGNS_TO_POINTS, POINTS_TO_TAPS = range(7, 12)
    COUNT_EVENTS, LIST_EVENTS, WEIGHTS_FROM_EVENTS, FLIP = range(12, 16)


class _Task(ctypes.Structure):
    """`bsnn_task` of train.h."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("function", "threads", "refused")),
        *((name, ctypes.c_void_p) for name in ("rank", "size")),
        ("arguments", ctypes.c_void_p * 9),
    ]


@cache
def libraries() -> dict[Level, ctypes.CDLL]:
    """The libraries that were built from the present sources and that this processor can run, the fastest last."""
    return {
        level: library
        for level, library in load_libraries(Path(__file__).parent, "train").items()
        if library.bsnn_training_version() == _VERSION  # an older build may differ
    }


def fastest() -> ctypes.CDLL | None:
    """The fastest library, if one was built."""
    return next(reversed(libraries().values()), None)


def library_for(x: Tensor, dtype: torch.dtype = torch.float32) -> ctypes.CDLL | None:
    """The fastest library, if it supports a tensor: a plain one in memory, not one that stands for it while tracing."""
    if x.device.type != "cpu" or x.dtype != dtype or not x.numel() or type(x) not in (Tensor, nn.Parameter):
        return None
    return fastest()


def run(library: ctypes.CDLL, function: Function, *arguments: Tensor | ctypes.Structure | ctypes.Array | None) -> bool:
    """Runs a function on as many threads as torch uses; returns whether it supports the numbers in its input."""
    task = _Task(function, torch.get_num_threads())
    for place, argument in enumerate(arguments):
        found = argument.data_ptr() if isinstance(argument, Tensor) else argument and ctypes.addressof(argument)
        task.arguments[place] = found
    openmp = _openmp()
    if task.threads == 1 or openmp is None:
        _threads(task.threads).run(partial(library.bsnn_work_as, ctypes.byref(task)))
    else:
        for name, of in (("rank", openmp.omp_get_thread_num), ("size", openmp.omp_get_num_threads)):
            setattr(task, name, ctypes.cast(of, ctypes.c_void_p))
        openmp.GOMP_parallel(library.bsnn_work, ctypes.byref(task), task.threads, 0)
    return not task.refused


def _openmp() -> ctypes.CDLL | None:
    """The OpenMP library that torch has loaded, if it has the interface of GNU's."""
    return program_with("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
