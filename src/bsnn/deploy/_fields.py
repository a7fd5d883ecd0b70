"""The header of a model file, field by field: each is checked, and nothing is left over.

`Fields` reads one object of the header; `Tensors` hands out the bytes behind it, in order and without gaps.
"""

import math
from typing import Any

import numpy as np

from bsnn.deploy.schema import BadModel

_MAX_TEXT = 1000


class Tensors:
    """The data of a model file, taken tensor by tensor.

    Args:
        data: All bytes behind the header.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._begin = self._end = 0
        """Of the tensor that was taken last."""

    def take(self, offset: int, length: int, name: str) -> memoryview:
        """The bytes of the next tensor.

        Args:
            offset: Where it says that it begins.
            length: How long it says that it is.
            name: What a refusal calls it.
        """
        expected = -(-self._end // 8) * 8
        if offset % 8:
            raise BadModel(f"{name} begins at byte {offset} of the data; expected a multiple of 8.")
        if offset < self._end and offset + length <= self._begin:
            raise BadModel(f"{name} lies before the tensor before it; expected tensors in the order of their layers.")
        if offset < self._end:
            raise BadModel(
                f"{name} begins at byte {offset} of the data and overlaps the tensor before it, which ends at "
                f"{self._end}; expected it at {expected}."
            )
        if offset > expected:
            raise BadModel(
                f"{name} begins at byte {offset} of the data and leaves a gap; expected it at {expected}, where the "
                "tensor before it ends."
            )
        if offset + length > len(self._data):
            raise BadModel(f"{name} ends at byte {offset + length} of the data, which has {len(self._data)}.")
        if any(self._data[self._end : offset]):
            raise BadModel(f"the bytes between {name} and the tensor before it are not zero.")
        self._begin, self._end = offset, offset + length
        return self._data[offset : self._end]

    def finish(self) -> None:
        """Refuses data behind the last tensor."""
        if self._end != len(self._data):
            raise BadModel(f"{len(self._data) - self._end} bytes are left over behind the last tensor.")


class Fields:
    """One object of the header.

    Args:
        content: What JSON made of it.
        where: What a refusal calls it.
        tensors: The data behind the header.
    """

    def __init__(self, content: Any, where: str, tensors: Tensors) -> None:
        if not isinstance(content, dict):
            raise BadModel(f"{where} is {_short(content)}; expected an object.")
        self.where = where
        self._content, self._tensors = content, tensors
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def _get(self, key: str) -> Any:
        if key not in self._content:
            raise BadModel(f"{self.where} lacks `{key}`.")
        self._read.add(key)
        return self._content[key]

    def finish(self) -> None:
        """Refuses keys that nothing has asked for."""
        unknown = [key for key in self._content if key not in self._read]
        if unknown:
            expected = ", ".join(f"`{key}`" for key in sorted(self._read)) or "none"
            raise BadModel(f"{self.where} has the unknown key {_short(unknown[0])}; expected {expected}.")

    def wrong(self, key: str, expected: str) -> BadModel:
        """The refusal of a field."""
        return BadModel(f"{self.where}: `{key}` is {_short(self._content[key])}; expected {expected}.")

    def object(self, key: str, where: str) -> "Fields":
        """Another object."""
        return Fields(self._get(key), where, self._tensors)

    def objects(self, key: str, where: str, longest: int) -> list["Fields"]:
        """A list of objects; a refusal calls them `where` and their number."""
        items = self._list(key, longest)
        return [Fields(item, f"{where} {number}", self._tensors) for number, item in enumerate(items)]

    def text(self, key: str, *choices: str) -> Any:
        """A text, one of `choices` if there are any."""
        value = self._get(key)
        if not _is_text(value) or (choices and value not in choices):
            raise self.wrong(key, " or ".join(choices) or "a text")
        return value

    def texts(self, key: str, longest: int) -> tuple[str, ...]:
        """A list of texts."""
        items = self._list(key, longest)
        if not all(_is_text(item) for item in items):
            raise BadModel(f"{self.where}: `{key}` holds what is not a text; expected a list of names.")
        return tuple(items)

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self._get(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        value = self._get(key)
        if not _is_integer(value, low, high):
            raise self.wrong(key, f"a whole number from {low} to {high}")
        return value

    def integers(self, key: str, low: int, high: int, count: int | None) -> tuple[Any, ...]:
        """A list of `count` whole numbers, or of any number but none."""
        value = self._get(key)
        if not isinstance(value, list) or len(value) != (count or len(value)) or not value:
            raise self.wrong(key, f"a list of {count or 'some'} whole numbers")
        if not all(_is_integer(item, low, high) for item in value):
            raise self.wrong(key, f"whole numbers from {low} to {high}")
        return tuple(value)

    def number(self, key: str, low: float = -math.inf, high: float = math.inf) -> float:
        """A finite number from `low` to `high`."""
        value = self._get(key)
        if not _is_number(value):
            raise self.wrong(key, "a finite number")
        if not low <= value <= high:
            raise self.wrong(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def optional_number(self, key: str, low: float, high: float) -> float | None:
        """A finite number, or None if it is null or absent."""
        return None if key not in self or self._get(key) is None else self.number(key, low, high)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of `count` finite numbers."""
        value = self._get(key)
        if not isinstance(value, list) or len(value) != count or not all(_is_number(item) for item in value):
            raise self.wrong(key, f"a list of {count} finite numbers")
        return tuple(float(item) for item in value)

    def tensor(self, key: str, dtype: str, columns: int | None = None) -> np.ndarray:
        """A tensor, flat or of rows with so many columns; a view of the data where the byte order allows."""
        offset, length = self.integers(key, 0, 2**53, 2)
        content = self._tensors.take(offset, length, f"{self.where}: `{key}`")
        size = np.dtype(dtype).itemsize * (columns or 1)
        if length % size:
            raise BadModel(f"{self.where}: `{key}` is {length} bytes long; expected whole rows of {size} bytes.")
        flat = np.frombuffer(content, dtype).astype(dtype.lstrip("<"), copy=False)
        return flat if columns is None else flat.reshape(-1, columns)

    def _list(self, key: str, longest: int) -> list[Any]:
        value = self._get(key)
        if not isinstance(value, list) or not 1 <= len(value) <= longest:
            raise self.wrong(key, f"a list of 1 to {longest}")
        return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_text(value: Any) -> bool:
    # Half of a surrogate pair, which JSON can write, is no text.
    return isinstance(value, str) and len(value) <= _MAX_TEXT and not any("\ud800" <= c <= "\udfff" for c in value)


def _is_integer(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False
