"""Shared libraries of C: the levels of instructions they are built for, loading them, and running them on threads.

setup.py builds them if it finds a compiler. The inference engine uses this module too, so it does not import torch.
"""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Literal

Level = Literal["baseline", "avx2", "avx512"]
LEVELS: tuple[Level, ...] = ("baseline", "avx2", "avx512")
"""From the slowest to the fastest."""


@cache
def load_libraries(folder: Path, stem: str) -> dict[Level, ctypes.CDLL]:
    """The libraries `_STEM_LEVEL.so` that were built and that this processor can run, from the slowest to the fastest.

    Args:
        folder: Where they are.
        stem: What they compute: `"engine"` or `"train"`.
    """
    found: dict[Level, ctypes.CDLL] = {}
    for number, level in enumerate(LEVELS):
        if number and ("baseline" not in found or found["baseline"].bsnn_level() < number):
            break
        try:
            found[level] = ctypes.CDLL(str(folder / f"_{stem}_{level}.so"))
        except OSError:  # not built, or for another system
            continue
    return found


@cache
def program_with(*names: str) -> ctypes.CDLL | None:
    """The functions that this process has loaded, if these are among them."""
    try:
        program = ctypes.CDLL(None)
    except (OSError, TypeError):  # no such thing on this system
        return None
    return program if all(hasattr(program, name) for name in names) else None


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
        if self._pool is None or self._process != os.getpid():  # a forked child has the pool but not its threads
            self._pool, self._process = ThreadPoolExecutor(self.number - 1, "bsnn"), os.getpid()
        others = [self._pool.submit(task, rank) for rank in range(1, self.number)]
        try:
            task(0)
        finally:
            wait(others)  # whatever happens here, they write to memory that has to stay until they end
        for other in others:
            other.result()
