"""From what a caller gives to the network's own integers; what the model would misread is refused.

Raw numbers are those of the data set that the network was trained on: bytes of images and events, or the numbers of a
spectrogram. The model knows their range and normalizes them.
"""

import os

import numpy as np

from bsnn.deploy.schema import InputSpec
from bsnn.errors import UserError

# Of the range of an input: what rounding in single precision, or a resized picture, may exceed it by.
_SLACK = 1e-3
# What numbers up to 1 would mean where 255 is the largest.
_DARK = {"image": "all black", "event": "next to no events"}


def to_integers(spec: InputSpec, inputs: np.ndarray, *, normalized: bool) -> np.ndarray:
    """The network's own integers `[S, B, H, W, C]` of inputs; S is 1 for still ones.

    Args:
        spec: What the network takes.
        inputs: Raw numbers; see `normalized`.
        normalized: Whether they are floats that are normalized as in training, or, if they are int16, the network's
            own integers.

    Raises:
        UserError: Their shape, type or range is not what the network takes.
    """
    given = _as_numbers(inputs)
    x = _with_axes(spec, given)
    if not x.size:
        raise UserError(f"input: received shape {given.shape}; expected at least one sample and time step.")
    if x.dtype.kind == "f" and not np.isfinite(x).all():
        raise UserError("input: received NaN or infinite numbers; expected finite ones.")
    if normalized:
        x = _from_normalized(spec, x)
    elif spec.is_plain:
        x = _from_plain(spec, x)
    else:
        x = _from_raw(spec, x)
    x = x.reshape((1,) * (5 - x.ndim) + x.shape)
    return np.ascontiguousarray(x.transpose(0, 1, 3, 4, 2))


def _as_numbers(inputs: np.ndarray) -> np.ndarray:
    if isinstance(inputs, str | bytes | os.PathLike) or inputs is None:
        raise UserError(
            f"input: received {inputs!r:.60}; expected an array of numbers. Files are read by the command bsnn predict."
        )
    try:
        found = np.asarray(inputs)
    except ValueError as error:
        raise UserError("input: received rows of unequal length; expected an array of numbers.") from error
    if found.dtype.kind not in "uif":
        raise UserError(f"input: received {found.dtype}; expected numbers, such as uint8 or float32.")
    return found


def _with_axes(spec: InputSpec, x: np.ndarray) -> np.ndarray:
    """The same array as `[C, H, W]` with up to two axes before; one of length 1 may have been left out."""
    if x.shape[-3:] != spec.shape:
        if spec.shape[1:] == (1, 1) and x.shape[-1:] == spec.shape[:1]:
            x = x[..., None, None]  # features without height and width
        elif spec.shape[0] == 1 and x.shape[-2:] == spec.shape[1:] and x.ndim <= 3:
            x = x[..., None, :, :]  # gray pictures, [H, W] or [B, H, W]
    if x.shape[-3:] == spec.shape and 3 <= x.ndim <= 5:
        return x
    last = (*spec.shape[1:], spec.shape[0])
    turn = " Channels come first: give np.moveaxis(x, -1, -3)." if x.shape[-3:] == last else ""
    time = "T, " if spec.kind == "event" else ""
    raise UserError(f"input: received shape {x.shape}; expected [{time}B, {', '.join(map(str, spec.shape))}].{turn}")


def _from_raw(spec: InputSpec, x: np.ndarray) -> np.ndarray:
    """From raw numbers between 0 and the largest that the data set has."""
    if x.dtype.kind in "ui" and spec.divisor == 1:
        raise UserError(
            f"input: received {x.dtype}, which has no meaning to this network; expected {_expected(spec)}, as floats."
        )
    if x.dtype == np.uint8 and spec.largest >= 255:
        return spec.from_bytes(x)
    low, high = float(x.min()), float(x.max())
    if low < -_SLACK * spec.largest or high > (1 + _SLACK) * spec.largest:
        raise UserError(
            f"input: received {x.dtype} from {low:g} to {high:g}; expected {_expected(spec)}.{_hint(spec, x)}"
        )
    if x.dtype.kind == "f" and spec.kind in _DARK and spec.largest > 1 and 0 < high <= 1:
        raise UserError(
            f"input: received {x.dtype} up to {high:g}; expected {_expected(spec)}, and nothing above 1 would be "
            f"{_DARK[spec.kind]}. If 1 is the largest, give x * {spec.largest:g}."
        )
    if spec.divisor != 1 and (x.dtype.kind in "ui" or np.array_equal(x, np.rint(x))):
        return spec.from_bytes(x)
    return spec.from_reals(spec.normalize(x))


def _expected(spec: InputSpec) -> str:
    return f"raw numbers from 0 to {spec.largest:g}, as the network was trained on"


def _hint(spec: InputSpec, x: np.ndarray) -> str:
    if x.min() < 0:
        return " If they are normalized as in training, say so: normalized=True, or --normalized of bsnn predict."
    if x.max() <= 255 and spec.kind == "image":
        return f" If 255 is white, give x * ({spec.largest:g} / 255)."
    return ""


def _from_normalized(spec: InputSpec, x: np.ndarray) -> np.ndarray:
    """From floats that are normalized already, or the network's own integers."""
    if x.dtype == np.int16:
        return x
    if x.dtype.kind != "f":
        raise UserError(f"input: received {x.dtype} as normalized numbers; expected floats, such as float32.")
    if spec.is_plain:
        return _from_plain(spec, x)
    ends = spec.normalize(np.array([0, spec.largest]).reshape(2, 1, 1, 1))
    low, high = float(ends.min()), float(ends.max())
    slack = _SLACK * (high - low)
    if x.min() < low - slack or x.max() > high + slack:
        raise UserError(
            f"input: received normalized numbers from {x.min():g} to {x.max():g}; expected {low:g} to {high:g}, which "
            f"are {spec.formula}. Normalize them so, or give the raw numbers without normalized=True."
        )
    return spec.from_reals(x)


def _from_plain(spec: InputSpec, x: np.ndarray) -> np.ndarray:
    """From floats of a network of whose data nothing is known but the shape."""
    if x.dtype.kind != "f":
        raise UserError(
            f"input: received {x.dtype}, and the model does not say how to normalize it; give floats that are "
            "normalized as in training, or export the network with its data set (data=...)."
        )
    most = 32767.5 / 2**spec.fraction_bits
    if np.abs(x).max() > most:
        raise UserError(
            f"input: received numbers from {x.min():g} to {x.max():g}; the network's integers hold ±{most:g}. Give "
            "numbers that are normalized as in training."
        )
    return spec.from_reals(x)
