"""What a computation holds at its peak, counted tensor by tensor; giving free memory back to the system, or keeping it.

Every storage that an operation makes is counted from its birth to its death, on any device. The count is exact and
repeatable; scratch space inside a C function or of torch is not seen.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from bsnn.kernels.libraries import program_with
from bsnn.kernels.torch_internals import TorchDispatchMode, storage_id, tensors_in

# Bytes of a tensor from which on giving memory back is worth its time.
_LARGE = 1 << 24

# Of mallopt(3): the most free memory at the heap's end that is kept, and how many allocations are mapped on their own.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_USUAL = {_TRIM_THRESHOLD: 128 << 10, _MMAP_MAX: 1 << 16}
_KEPT = {_TRIM_THRESHOLD: -1, _MMAP_MAX: 0}

_keepers = 0


class _Ledger(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.bytes = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {storage_id(tensor) for tensor in tensors_in((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            if storage_id(tensor) not in self.live and storage_id(tensor) not in before:
                self._born(tensor)
        return result

    def _born(self, tensor: Tensor) -> None:
        key, storage = storage_id(tensor), tensor.untyped_storage()
        self.live[key] = storage.nbytes()
        self.bytes += self.live[key]
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._died, key).atexit = False

    def _died(self, key: int) -> None:
        self.bytes -= self.live.pop(key, 0)


def peak_bytes(compute: Callable[[], object]) -> int:
    """The most bytes of tensors made by `compute` that were alive at once.

    Example:
        >>> peak_bytes(lambda: torch.ones(1000).add(1).mul(2))  # two of the three at a time
        8000
    """
    with _Ledger() as ledger:
        compute()
    return ledger.peak


def make_room(membrane: Tensor) -> None:
    """Gives memory back before a backward pass goes through a large layer of neurons on a CPU.

    Here memory is at its peak, and what later layers have freed is in pieces too small for this one.
    """
    if membrane.nbytes >= _LARGE and membrane.device.type == "cpu" and not keeps_memory():
        give_back_free_memory()


def give_back_free_memory() -> None:
    """Hands the pages that malloc keeps between tensors back to the system, if the C library can (glibc)."""
    program = program_with("malloc_trim")
    if program is not None:
        program.malloc_trim(0)


def keeps_memory() -> bool:
    """Whether freed memory is kept; see `keeping_memory`."""
    return _keepers > 0


@contextmanager
def keeping_memory(wanted: bool = True) -> Iterator[None]:
    """Within it, what is freed on a CPU stays with this process, for the next tensors (glibc).

    Otherwise each update asks the system for its memory again, page by page. Keeping it saves time and costs some
    memory. It holds for all threads. Afterwards glibc's own defaults are set, without its adjustment of them.

    Args:
        wanted: False changes nothing.

    Example:
        >>> with keeping_memory():
        ...     keeps_memory()
        True
    """
    global _keepers
    program = program_with("mallopt", "malloc_trim")
    if not wanted or program is None:
        yield
        return
    _keepers += 1
    try:
        for setting, value in _KEPT.items():
            program.mallopt(setting, value)
        yield
    finally:
        _keepers -= 1
        if not _keepers:
            for setting, value in _USUAL.items():
                program.mallopt(setting, value)
            give_back_free_memory()
