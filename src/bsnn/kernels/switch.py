"""A setting of the whole process that a `with` block can restore, such as the backend."""

from collections.abc import Callable
from types import TracebackType


class Switch:
    """Sets a name when it is made; leaving it as a context manager restores the previous one.

    Args:
        change: Checks a name, and sets it.
        name: The new one.
        previous: The one in use.
    """

    def __init__(self, change: Callable[[str], None], name: str, previous: str) -> None:
        self._change, self._previous = change, previous
        change(name)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._change(self._previous)
