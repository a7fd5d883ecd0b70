"""What flows between the layers of a deployed network: integers of a known kind, shape and range."""

import math
from dataclasses import dataclass
from typing import Literal

from bsnn.errors import UserError

Kind = Literal["input", "spikes", "counts", "fixed"]
Pair = tuple[int, int]
Shape = tuple[int, int, int]

LARGEST = 2**30
"""Fixed values lie between minus this and this."""
MAX_SIDE = 65536
"""The most channels, rows or columns that a value may have."""
_LARGEST_COUNT = 32767


class BadModel(UserError):
    """A file that is not a whole and consistent model."""


@dataclass(frozen=True)
class Value:
    """What a layer makes at one time step: integers of `shape` (C, H, W) between `low` and `high`."""

    kind: Kind
    shape: Shape
    low: int
    high: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def magnitude(self) -> int:
        """The largest absolute value that an element can have."""
        return max(-self.low, self.high)

    @classmethod
    def input(cls, shape: Shape) -> "Value":
        """An input of the network."""
        return cls("input", shape, -32768, 32767)

    @classmethod
    def fixed(cls, shape: Shape) -> "Value":
        """Fixed-point numbers."""
        return cls("fixed", shape, -LARGEST, LARGEST)

    @classmethod
    def counts(cls, shape: Shape, high: int, name: str) -> "Value":
        """Sums of spikes, of which layer `name` makes at most `high`."""
        if high > _LARGEST_COUNT:
            raise BadModel(f"layer {name}: its counts can reach {high}; expected at most {_LARGEST_COUNT}.")
        return cls("counts", shape, 0, high)
