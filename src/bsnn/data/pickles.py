"""Reads the pickles of CIFAR batches without running anything that they name.

A pickle is a program; the standard unpickler imports and calls whatever it asks for. Here the few names that
a batch of plain lists, strings and NumPy arrays needs stand for inert stand-ins, checked and turned into
arrays after loading, and every other name is refused. Not even NumPy's own constructors run on what the file
says.
"""

import io
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from bsnn.errors import UserError

# What arrays of a batch may hold, by the codes that pickles use: whole numbers, no objects.
_TYPES = {"u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "b1"}


class _Type:
    """Stands for a NumPy dtype: its code and byte order."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        self.code = _text(code).lstrip("|=<>")
        self.order = "<"

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) > 1:
            self.order = ">" if _text(state[1]) == ">" else "<"

    def dtype(self) -> np.dtype:
        if self.code not in _TYPES:
            raise pickle.UnpicklingError(f"holds an array of type {self.code!r}; expected whole numbers")
        return np.dtype(self.order + self.code)


class _Array:
    """Stands for a NumPy array until `plain` makes one of it."""

    def __init__(self, *_: Any) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: Any) -> None:
        self.state = tuple(state) if isinstance(state, tuple) else ()

    def array(self) -> np.ndarray:
        if len(self.state) != 5:
            raise pickle.UnpicklingError("holds an array without its content")
        _, shape, kind, fortran, content = self.state
        if isinstance(content, str):
            content = content.encode("latin1")
        if not isinstance(kind, _Type) or not isinstance(content, (bytes, bytearray)):
            raise pickle.UnpicklingError("holds an array of objects; expected whole numbers")
        if not isinstance(shape, tuple) or not all(type(side) is int and side >= 0 for side in shape):
            raise pickle.UnpicklingError(f"holds an array of shape {shape!r}")
        dtype = kind.dtype()
        if math.prod(shape) * dtype.itemsize != len(content):
            raise pickle.UnpicklingError(f"holds {len(content)} bytes for an array of shape {shape} and type {dtype}")
        return np.frombuffer(content, dtype).reshape(shape, order="F" if fortran else "C")


class _Buffer(_Array):
    """Stands for a NumPy array that is made of a buffer."""

    def __init__(self, content: Any = b"", kind: Any = None, shape: Any = (), order: Any = "C") -> None:
        self.state = (1, shape, kind, _text(order) == "F", content)


class _Scalar:
    """Stands for a NumPy whole number."""

    def __init__(self, kind: Any = None, content: Any = b"") -> None:
        self.state = (1, (), kind, False, content)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("changes a number after it is made")


class _Bytes:
    """Stands for `codecs.encode`, which Python 3 writes for bytes in the old protocols."""

    def __new__(cls, text: Any, encoding: Any = "latin1") -> Any:
        if not isinstance(text, str) or _text(encoding) not in ("latin1", "latin-1"):
            raise pickle.UnpicklingError("calls codecs.encode for something other than plain bytes")
        return text.encode("latin1")

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("changes codecs.encode")


# Each is a class with a `__setstate__`: on anything else, a pickle can set the attributes of the stand-in itself.
_ADMITTED: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _Bytes,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")
        for module, name, stand_in in (
            ("multiarray", "_reconstruct", _Array),
            ("multiarray", "scalar", _Scalar),
            ("numeric", "_frombuffer", _Buffer),
        )
    },
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"asks for {module}.{name}, which no CIFAR batch needs") from None


def read_pickle(path: Path, content: bytes) -> dict[str, Any]:
    """Reads a pickled dictionary of numbers, strings, lists and arrays; keys and strings come back as text.

    Args:
        path: The file's name, for messages.
        content: The file's bytes.

    Example:
        >>> read_pickle(Path("batch"), pickle.dumps({b"labels": [1, 2], "data": np.zeros(2, np.uint8)}))
        {'labels': [1, 2], 'data': array([0, 0], dtype=uint8)}
    """
    try:
        loaded = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(loaded, dict):
            raise pickle.UnpicklingError(f"holds a {type(loaded).__name__}; expected a dictionary")
        return {_text(key): _plain(value) for key, value in loaded.items()}
    except MemoryError:
        reason = "asks for more memory than there is"
    except Exception as error:  # A damaged pickle can raise nearly anything.
        reason = str(error) or type(error).__name__
    raise UserError(
        f"{path}: refused as a CIFAR batch: {reason}. Expected an untouched file of the Python version; "
        "download the archive again from https://www.cs.toronto.edu/~kriz/cifar.html."
    )


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin1")
    return value if isinstance(value, str) else ""


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.array()
    if isinstance(value, _Scalar):
        array = _Array()
        array.state = value.state
        return int(array.array())
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) if not isinstance(item, (list, tuple)) else item for item in value]
    return value
