"""What is told about a run while it goes on: objects with some of four methods, called by the loop over epochs."""

from collections.abc import Iterable
from typing import Any

from bsnn.errors import UserError
from bsnn.train.metrics import EpochMetrics
from bsnn.train.trainer import Trainer

_METHODS = ("on_start", "on_update", "on_epoch", "on_end")


class Callbacks:
    """Calls the methods that each callback has.

    Under torchrun a callback is called on the first process only, unless it has `every_process = True`, which one that
    changes the training needs.

    Args:
        callbacks: Objects with some of `on_start(trainer)`, `on_update(trainer)`, `on_epoch(trainer, metrics)` and
            `on_end(trainer)`.
        is_first: Whether this is the first process.

    Raises:
        UserError: If an object has none of these methods, or another one that looks like them.
    """

    def __init__(self, callbacks: Iterable[Any], is_first: bool) -> None:
        callbacks = list(callbacks)
        for callback in callbacks:
            own = [name for name in dir(callback) if name.startswith("on_") and callable(getattr(callback, name))]
            unknown = [name for name in own if name not in _METHODS]
            if unknown or not own or isinstance(callback, type):
                raise UserError(
                    f"callbacks: received {callback!r} with {', '.join(unknown or own) or 'no method that is called'}; "
                    f"expected an object with some of {', '.join(_METHODS)} and no other on_..."
                )
        self._active = [c for c in callbacks if is_first or getattr(c, "every_process", False)]
        self._started: list[Any] = []

    def _call(self, callbacks: Iterable[Any], name: str, *arguments: Any) -> None:
        for callback in callbacks:
            method = getattr(callback, name, None)
            if method is None:
                continue
            try:
                method(*arguments)
            except Exception as error:
                error.add_note(
                    f"in {name} of the callback {callback!r}; go on from the last checkpoint with resume=True"
                )
                raise

    def on_start(self, trainer: Trainer) -> None:
        """Before the first batch, also when a run is resumed."""
        for callback in self._active:
            self._call([callback], "on_start", trainer)
            self._started.append(callback)

    def on_update(self, trainer: Trainer) -> None:
        """After the updates of a batch."""
        self._call(self._active, "on_update", trainer)

    def on_epoch(self, trainer: Trainer, metrics: EpochMetrics) -> None:
        """After an epoch was measured, before its checkpoint is written."""
        self._call(self._active, "on_epoch", trainer, metrics)

    def on_end(self, trainer: Trainer) -> None:
        """When training has ended, failed or was interrupted, of each that was started; the last one first."""
        while self._started:
            self._call([self._started.pop()], "on_end", trainer)
