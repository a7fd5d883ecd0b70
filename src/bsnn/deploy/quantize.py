"""From real numbers to integers: multipliers with a shift, 16-bit weights, rows of weights, and the input.

Roundings are to the nearest integer. docs/model-file.md says what the integers mean.
"""

import math
from typing import NamedTuple

import numpy as np

from bsnn.data.grid import finest, grid_of, shift_for, to_int32
from bsnn.data.spec import DataSpec
from bsnn.deploy.schema import LARGEST, InputSpec
from bsnn.errors import UserError

_FRACTION_BITS = 20
_HEADROOM_BITS = 4
# An input without known bounds is taken to stay below this.
_UNKNOWN_INPUT = 8.0


def fraction_bits(largest_threshold: float) -> int:
    """How many bits fixed values have after the point, so that membranes find room above the threshold."""
    bits = min(_FRACTION_BITS, math.floor(math.log2(LARGEST / largest_threshold)) - _HEADROOM_BITS)
    if bits < 8:
        raise UserError(
            f"export: a threshold is {largest_threshold}; expected at most {LARGEST >> (8 + _HEADROOM_BITS)}."
        )
    return bits


def multipliers(gain: np.ndarray) -> tuple[np.ndarray, int]:
    """Integers, and the shift that goes with them, as fine as 32 bits allow.

    Example:
        >>> import numpy as np
        >>> numbers, shift = multipliers(np.array([0.5, -0.25]))
        >>> (numbers / 2**shift).tolist(), shift
        ([0.5, -0.25], 31)
    """
    largest = float(np.abs(gain).max(initial=0.0))
    shift = 0 if largest == 0 else shift_for(largest)
    return to_int32(gain * 2.0**shift), shift


def rows(weight: np.ndarray, groups: int) -> np.ndarray:
    """Weights `[O, C/G, kh, kw]` laid out for counting: a row of O/G outputs for each tap and each of C inputs."""
    out, channels, height, width = weight.shape
    grouped = weight.reshape(groups, out // groups, channels, height, width)
    return grouped.transpose(3, 4, 0, 2, 1).reshape(height * width * groups * channels, out // groups)


class Weights16(NamedTuple):
    """Weights `[O, C/G, kh, kw]` as integers of 16 bits, each output channel with a scale of its own."""

    whole: np.ndarray
    scale: np.ndarray
    """`[O]`: an integer divided by it is the weight."""
    rest: np.ndarray | None
    """What rounding took, as integers too, if sums left the weights fewer than 14 bits and it is worth keeping."""
    rest_scale: float
    """How much finer these are."""


def weights16(weight: np.ndarray, largest_input: int, with_rest: bool) -> Weights16:
    """Rounds weights as finely as 16 bits and sums below 2^30 allow.

    Args:
        weight: `[O, C/G, kh, kw]`.
        largest_input: The largest magnitude that meets a weight.
        with_rest: Whether to keep what rounding took.
    """
    flat = np.abs(weight.reshape(len(weight), -1))
    room = 2**30 / largest_input - flat.shape[1] / 2 - 1
    scale = np.minimum(32767 / np.maximum(flat.max(1), 1e-30), room / np.maximum(flat.sum(1), 1e-30))
    scaled = weight * scale[:, None, None, None]
    whole = np.rint(scaled)
    if not with_rest or (scale * flat.max(1)).min() >= 2**14:
        return Weights16(whole.astype(np.int16), scale, None, 1.0)
    finer = 2.0 ** math.floor(math.log2(2**30 / 32768 / flat.shape[1]))
    return Weights16(whole.astype(np.int16), scale, np.rint((scaled - whole) * finer).astype(np.int16), finer)


def input_spec(spec: DataSpec, *, bounded: bool) -> InputSpec:
    """How the samples of a data set become integers.

    Args:
        spec: What is known of the data.
        bounded: Whether raw values lie between 0 and `spec.scale` (for events: are bytes); else nothing is known of
            their range.
    """
    normalization = spec.mean, spec.std, spec.scale
    grid = grid_of(*normalization, spec.kind) if bounded else finest(*normalization, _UNKNOWN_INPUT)
    channels, height, width = spec.shape[-3:]
    return InputSpec(
        kind=spec.kind,
        shape=(channels, height, width),
        fraction_bits=grid.bits,
        divisor=float(spec.scale),
        mean=tuple(spec.mean),
        std=tuple(spec.std),
        multiplier=grid.multiplier,
        offset=grid.offset,
        shift=grid.shift,
        decode=spec.decode,
    )
