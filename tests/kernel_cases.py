"""What the tests of kernels share: one C library at a time, and a number of threads."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from bsnn.kernels import _library
from bsnn.kernels.libraries import LEVELS as _LEVELS, Level

LEVELS = [
    pytest.param(level, marks=pytest.mark.skipif(level not in _library.libraries(), reason=f"no {level} here"))
    for level in _LEVELS
]


@contextmanager
def only(level: Level) -> Iterator[None]:
    """Within it, that library is the only one."""
    found = {level: _library.libraries()[level]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_library, "libraries", lambda: found)
        yield


@contextmanager
def num_threads(number: int) -> Iterator[None]:
    """Within it, torch and the kernels use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Within it, torch makes tensors of that type."""
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
