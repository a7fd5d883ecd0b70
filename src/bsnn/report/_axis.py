"""The axes of a chart: where values lie, and which of them are written."""

import math
from collections.abc import Sequence

# The share of a logarithmic axis that may stay empty at either end, for it to end at a round value.
_ROOM = 0.15


class Axis:
    """Maps values to coordinates, and has the values to write as `ticks`.

    An axis begins and ends at a round value if it can, unless it is tight, as the x axis is: then it ends where the
    values do. If all values of a tight axis are whole, as epochs are, so are its ticks.

    Example:
        >>> axis = Axis([0.1, 0.9], log=False, start=0, end=100)
        >>> axis.ticks, axis.place(0.5)
        ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], 50.0)
    """

    def __init__(self, values: Sequence[float], log: bool, start: float, end: float, *, tight: bool = False) -> None:
        self.log, self.start, self.end = log, start, end
        low, high = min(values), max(values)
        if low == high:
            low, high = (low / 2, high * 2) if log else (low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5))
        if log and high >= 10 * low:
            ticks = _log_ticks(low, high)
        else:
            whole = tight and all(float(value).is_integer() for value in values)
            ticks = _even_ticks(low, high, 6 if tight else 5, 1.0 if whole else 0.0)
        if tight:
            self.ticks = [tick for tick in ticks if low <= tick <= high]
        else:
            room = _ROOM * (math.log10(high) - math.log10(low)) if log else math.inf
            self.ticks = [tick for tick in ticks if self._beyond(tick, low, high) <= room]
            low, high = min(low, self.ticks[0]), max(high, self.ticks[-1])
        self.low, self.high = self._scaled(low), self._scaled(high)

    def place(self, value: float) -> float:
        """The coordinate of a value."""
        return self.start + (self._scaled(value) - self.low) / (self.high - self.low) * (self.end - self.start)

    def _beyond(self, tick: float, low: float, high: float) -> float:
        """How far a tick lies outside of the values."""
        if self.log and tick <= 0:
            return math.inf
        return max(self._scaled(low) - self._scaled(tick), self._scaled(tick) - self._scaled(high))

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value


def _even_ticks(low: float, high: float, count: int, least_step: float) -> list[float]:
    """Round values at equal distances, from the last that is not above `low` to the first not below `high`."""
    step = max(_round_step((high - low) / count), least_step)
    # A cosine of 1.0000001 needs no tick above 1.
    first, last = math.floor(low / step + 1e-4), math.ceil(high / step - 1e-4)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Like `_even_ticks`, on a logarithmic axis: 1, 2, 5, 10, ..., or powers of ten if these are enough."""
    decades = math.log10(high) - math.log10(low)
    step = max(1, round(decades / 6))
    factors = (1, 2, 5) if decades < 3 else (1,)
    exponents = range(math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9) + 1, step)
    ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
    inside = [n for n, tick in enumerate(ticks) if low <= tick <= high]
    return ticks[max(inside[0] - 1, 0) : inside[-1] + 2]


def _round_step(step: float) -> float:
    """The next of 1, 2, 5, 10, ... that is not smaller."""
    magnitude = 10.0 ** math.floor(math.log10(step))
    return next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= step * (1 - 1e-9))
