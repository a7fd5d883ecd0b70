"""What a computation holds at its peak, counted tensor by tensor; and memory that is free given back.

Every storage that an operation makes is counted from its birth to its death, on any device. The count is
exact and repeatable; scratch space inside a kernel is not seen.
"""

import ctypes
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Ledger(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.bytes = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.live and storage._cdata not in before:
                    self._born(storage)
        return result

    def _born(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        self.live[key] = size
        self.bytes += size
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


def give_back_free_memory() -> None:
    """Hands the pages that malloc keeps between tensors back to the system, where the C library can (glibc)."""
    program = program_with("malloc_trim")
    if program is not None:
        program.malloc_trim(0)


@cache
def program_with(*names: str) -> ctypes.CDLL | None:
    """The functions that this process has loaded, if these are among them."""
    try:
        program = ctypes.CDLL(None)
    except (OSError, TypeError):  # no such thing on this system
        return None
    return program if all(hasattr(program, name) for name in names) else None
