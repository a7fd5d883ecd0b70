"""How much scratch the ops of a network need, and where its parts lie: csrc/engine.h names them."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from bsnn.deploy.engine import tables
from bsnn.deploy.engine.tables import OpTable, ValueTable
from bsnn.deploy.engine.weights import ALIGNMENT

_SLACK = 32  # elements that vectors may write beyond the last one
_DENSE_ROWS = 32  # rows that a device multiplies at a time


class Target(NamedTuple):
    """What the C is built for."""

    word_bits: Literal[32, 64] = 64
    """`BSNN_WORD_BITS`."""
    small: bool = False
    """`BSNN_SMALL`: row by row, in as little memory as possible."""
    offset_bits: Literal[16, 32] = 32
    """`BSNN_OFFSET_BITS`: of lists of rows of weights."""
    offset_shift: int = 0
    """`BSNN_OFFSET_SHIFT`: their units are 2 to the power of this."""
    vector: int = 0
    """Bytes of a vector that short rows of weights fill together; see `weights.windows_of`."""

    def aligned(self, size: int) -> int:
        """The size with what has to follow it."""
        unit = 4 if self.small else ALIGNMENT
        return -(-size // unit) * unit


DESKTOP = Target()


def lay_scratch(
    ops: Sequence[OpTable],
    values: Sequence[ValueTable],
    highs: Sequence[int],
    chunk: int,
    target: Target,
    forgetful: bool,
) -> int:
    """Gives the parts of a group's scratch their places, and returns the bytes of all.

    Pixels of local values and membranes live through the whole group; the rest is each op's own.
    """
    offset = 0
    for value in sorted({op.output for op in ops}):
        if values[value].local:
            values[value].offset = offset
            offset += target.aligned(values[value].pixel)
    for op in ops:
        made = values[op.output]
        if op.neurons >= 0 and forgetful:
            # A desktop computes all pixels of a row before the next time step.
            op.membrane, op.membrane_step = offset, 0 if target.small else made.channels
            offset += target.aligned(4 * made.channels * (1 if target.small else made.width))
    end = offset
    for op in ops:
        at = offset
        for name, size in _parts(op, values, highs[op.input], chunk, target).items():
            setattr(op, name, at)
            at += target.aligned(size)
        end = max(end, at)
    return end


def _parts(op: OpTable, values: Sequence[ValueTable], high: int, chunk: int, target: Target) -> dict[str, int]:
    """The bytes of each part of an op's own scratch; sets its capacities."""
    taken, made = values[op.input], values[op.output]
    taps, part = op.kernel[0] * op.kernel[1], taken.channels // op.groups
    outs = made.channels // op.groups
    sums = 4 * (made.channels - outs + expanded(outs, target))
    pixel = 4 * expanded(taken.channels, target)
    if taken.kind == tables.KINDS["input"]:
        pixel = 4 * taken.channels * max(1, op.kernel[1])  # a line of taps
    if op.op == tables.SCALE:
        return {"sums": pixel}
    if op.op == tables.DENSE:
        op.row_capacity = min(taps * part, _DENSE_ROWS) if target.small else taps * part
        op.row_capacity += op.row_capacity % 2
        return {"sums": sums, "ends": pixel, "rows": 6 * op.row_capacity}
    if op.op != tables.COUNT:
        return {}
    if target.small:
        return {"sums": sums, "lists": target.offset_bits // 8 * _window_capacity(op, taken, high)}
    lists = lists_of_a_step(taken, op.kernel[0], op.dilation[0], op.groups)
    op.list_capacity = lists.capacity
    # No more rows and columns of a window than the input has lie in it.
    within, across = min(op.kernel[0], taken.height), min(op.kernel[1], taken.width)
    op.row_capacity = target.aligned(4 * ((within * taken.width + 1) * part + 2 * _SLACK)) // 4
    several = taken.planes * op.groups
    return {
        "sums": sums if op.windows == 1 else 4 * op.windows * (-(-outs // 32) * 32 + _SLACK),
        "lists": 4 * chunk * lists.number * lists.capacity,
        "ends": 4 * chunk * lists.number * lists.ends,
        "rows": 4 * several * op.row_capacity,
        "row_ends": 4 * several * (taken.width + 1),
        "window": 0 if op.dilation[1] == 1 else 4 * (taken.planes * within * across * part + _SLACK),
    }


def expanded(channels: int, target: Target) -> int:
    """Elements of room for numbers that are made of bits, 32 at a time."""
    return -(-channels // 32) * 32 if target.small else channels + _SLACK


def _window_capacity(op: OpTable, taken: ValueTable, high: int) -> int:
    """The most rows of weights that one group of a window can name, each plane's filled up to a multiple of 4."""
    taps = min(op.kernel[0], taken.height) * min(op.kernel[1], taken.width)
    most = (high + 1).bit_length() - 1  # bits that a count up to `high` can have set
    return taps * (taken.channels // op.groups) * most + 3 * taken.planes


class Lists(NamedTuple):
    """The lists of channels that fire, of the rows of the input that one row of windows covers."""

    number: int
    """One for each row, plane and group."""
    capacity: int
    """Channels of a list, and what vectors read and write beyond."""
    ends: int

    @property
    def bytes(self) -> int:
        """Of all lists."""
        return 4 * self.number * (self.capacity + self.ends)


def lists_of_a_step(taken: ValueTable, kernel: int, dilation: int, groups: int) -> Lists:
    """The lists of one time step of a synapse, on a desktop."""
    return Lists(
        min(dilation * (kernel - 1) + 1, taken.height) * taken.planes * groups,
        (taken.width + 1) * (taken.channels // groups) + 2 * _SLACK,
        taken.width + 2,
    )
