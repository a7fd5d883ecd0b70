"""Recordings of event cameras: AEDAT 2.0, N-MNIST's `.bin` and `.npz`, read as events and summed to frames.

An event is a pixel (`x`, `y`), a time in microseconds and a polarity (1: brighter, 0: darker). Frames are cut
by event *number*: T frames of as nearly as possible equally many events, so a burst of movement gets more
frames than a pause.
"""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bsnn.data.archive import is_damage
from bsnn.errors import UserError
from bsnn.extras import need

# Raw frames hold eighths of an event, so that resizing keeps fractions; a byte ends at 31.9 events per pixel
# and frame.
EVENT_SCALE = 8.0

NMNIST_SENSOR = (34, 34)
_NMNIST_EVENT = 5
# Such a row marks that the camera's own clock ran over; as the format's authors do, 2^13 µs are added from
# there on.
_NMNIST_OVERFLOW_ROW, _NMNIST_OVERFLOW_TIME = 240, 2**13
_NMNIST_CLOCK = 2**23
_AEDAT_CLOCK = 2**32
_AEDAT_COMMENT = re.compile(rb"#[\t\x20-\x7e\x80-\xff]*\r?\n")
_MAX_NPZ_BYTES = 4 * 2**30
# Rows and columns of the cameras that write the DAVIS address format.
_DAVIS = {"128": (128, 128), "208": (192, 208), "240": (180, 240), "346": (260, 346), "640": (480, 640)}


class Events(NamedTuple):
    """A recording: four arrays of one length in order of time, and the sensor's rows and columns if known."""

    x: np.ndarray
    y: np.ndarray
    t: np.ndarray
    p: np.ndarray
    sensor: tuple[int, int] | None


def read_events(path: Path, sensor: tuple[int, int] | None = None) -> Events:
    """Reads a recording by the ending of its name: `.aedat` (2.0), `.bin` (N-MNIST) or `.npz` (x, y, t, p).

    Args:
        path: The file.
        sensor: Rows and columns, where the file does not say them. `.bin` is 34 × 34 unless told otherwise;
            `.npz` stays without a sensor.

    Raises:
        UserError: The file is damaged, holds no events, or an event lies outside of the sensor.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise UserError(f"{path}: not an event file; expected one of {', '.join(EVENT_ENDINGS)}.")
    events = reader(path, sensor)
    if events.t.size == 0:
        raise UserError(f"{path}: holds no events; remove the file or record it again.")
    if events.sensor is not None:
        rows, columns = events.sensor
        outside = np.flatnonzero((events.x < 0) | (events.x >= columns) | (events.y < 0) | (events.y >= rows))
        if outside.size:
            first = outside[0]
            raise UserError(
                f"{path}: {outside.size:,} of {events.t.size:,} events lie outside of the sensor, the first "
                f"at x = {events.x[first]}, y = {events.y[first]}; expected x below {columns} and y below "
                f"{rows}. The file is damaged, or of another camera, whose size sensor=(rows, columns) says in Python."
            )
    if np.all(events.t[1:] >= events.t[:-1]):
        return events
    order = np.argsort(events.t, kind="stable")
    return Events(events.x[order], events.y[order], events.t[order], events.p[order], events.sensor)


def count_frames(events: Events, time_steps: int, sensor: tuple[int, int], duration: int | None = None) -> np.ndarray:
    """Sums events to frames `[T, 2, H, W]` of counts: frame i gets events i·N/T to (i+1)·N/T of N.

    Channel 0 counts events of polarity 0 (darker), channel 1 those of polarity 1 (brighter).

    Args:
        events: The recording, inside of the sensor.
        time_steps: T.
        sensor: Rows and columns.
        duration: Cuts frames by time instead: T equal parts of so many microseconds, from the first event on. Later
            events are left out.

    Example:
        >>> ticks = np.arange(4)
        >>> events = Events(ticks, ticks * 0, ticks, np.array([0, 1, 0, 1]), (1, 4))
        >>> count_frames(events, 2, (1, 4)).tolist()
        [[[[1, 0, 0, 0]], [[0, 1, 0, 0]]], [[[0, 0, 1, 0]], [[0, 0, 0, 1]]]]
    """
    count = events.t.size
    if duration is None:
        # The frame of event n is the last i with i·N/T rounded down at or before n.
        starts = np.arange(time_steps) * count // time_steps
        frame = np.searchsorted(starts, np.arange(count), side="right") - 1
    else:
        frame = (events.t - events.t[0]) * time_steps // duration
    rows, columns = sensor
    cell = (((frame * 2 + events.p) * rows + events.y) * columns + events.x)[frame < time_steps]
    counts = np.bincount(cell, minlength=time_steps * 2 * rows * columns)
    return counts.reshape(time_steps, 2, rows, columns)


def decode_events(
    path: Path,
    rng: np.random.Generator | None = None,
    *,
    time_steps: int,
    sensor: tuple[int, int] | None,
    size: tuple[int, int],
    presence: bool = False,
    turned: bool = False,
) -> np.ndarray:
    """Reads a recording as frames `[T, 2, rows, columns]` of bytes.

    Args:
        path: The file.
        rng: Not used: nothing here is random.
        time_steps: T.
        sensor: Rows and columns of the camera, where the file does not say them.
        size: Rows and columns of a frame; if they are not the sensor's, frames are resized.
        presence: Bytes say whether there was any event (255) or none (0), rather than how many (in eighths).
        turned: Frames are turned by a quarter, clockwise: for a camera that lay on its side.
    """
    events = read_events(path, sensor)
    assert events.sensor is not None, "whoever decodes .npz files has found their sensor"
    if sensor not in (None, events.sensor):
        raise UserError(
            f"{path}: of a camera with {events.sensor[0]} rows and {events.sensor[1]} columns, and the set's "
            f"have {sensor[0]} and {sensor[1]}; put recordings of one camera into one folder."
        )
    counts = count_frames(events, time_steps, events.sensor)
    frames = np.where(counts > 0, 255, 0) if presence else np.minimum(counts * int(EVENT_SCALE), 255)
    if turned:
        frames = np.rot90(frames, -1, axes=(2, 3))
    return resize_frames(frames.astype(np.uint8), size)


def resize_frames(frames: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes planes of bytes to `size` (rows, columns) by Pillow's antialiased bilinear filter.

    Example:
        >>> resize_frames(np.full((1, 2, 4, 4), 80, np.uint8), (2, 2)).tolist()
        [[[[80, 80], [80, 80]], [[80, 80], [80, 80]]]]
    """
    if frames.shape[-2:] == size:
        return frames
    image = need("PIL.Image")
    planes = frames.reshape(-1, *frames.shape[-2:])
    resized = [
        np.asarray(image.fromarray(plane).resize((size[1], size[0]), image.Resampling.BILINEAR)) for plane in planes
    ]
    return np.stack(resized).reshape(*frames.shape[:-2], *size)


def unwrap(times: np.ndarray, clock: int) -> np.ndarray:
    """Undoes the wrapping of a clock: each fall by more than half of its range adds one range.

    A later event from before the fall, out of order, goes back by one range. Falls of less than half of the
    range are events out of order, not wraps.

    Args:
        times: As stored, in the file's order.
        clock: The clock's range.

    Example:
        >>> unwrap(np.array([250, 255, 2, 254, 3]), 256).tolist()
        [250, 255, 258, 254, 259]
    """
    times = times.astype(np.int64)
    change = np.diff(times)
    jumps = np.flatnonzero(np.abs(change) > clock // 2)
    if jumps.size == 0:
        return times
    turns = [0]
    for falls in (change[jumps] < 0).tolist():
        # A rise before any fall is a pause in the recording; only after a fall can it be a straggler.
        turns.append(turns[-1] + 1 if falls else max(turns[-1] - 1, 0))
    passed = np.searchsorted(jumps, np.arange(len(times)))
    return times + np.array(turns)[passed] * clock


def _read_aedat(path: Path, sensor: tuple[int, int] | None) -> Events:
    content = path.read_bytes()
    header, start = _aedat_header(path, content)
    if (len(content) - start) % 8:
        raise UserError(
            f"{path}: {len(content) - start:,} bytes after the header are not whole events of 8 bytes; the "
            "file is truncated. Copy or download it again."
        )
    words = np.frombuffer(content, ">u4", offset=start).reshape(-1, 2)
    address, times = words[:, 0].astype(np.int64), words[:, 1]
    davis = _davis(path, header, address)
    if davis is not None:
        # Bit 31: a sample of the image or motion sensor; bit 10: an external signal.
        kept = (address & 0x8000_0400) == 0
        address, times = address[kept], unwrap(times[kept], _AEDAT_CLOCK)
        x, y, polarity = (address >> 12) & 0x3FF, (address >> 22) & 0x1FF, (address >> 11) & 1
        return Events(x, y, times, polarity, davis)
    if np.any(address & 0x7FFF_0000):
        raise UserError(
            f"{path}: addresses do not fit a DVS128 (bits 16 to 30 are set), and the header names no DAVIS "
            "camera; expected 128 × 128 recordings of a DVS128. Save x, y, t and p as .npz instead."
        )
    # Bits 15 and 31 mark external signals, which are no pixels.
    kept = (address & 0x8000_8000) == 0
    address, times = address[kept], unwrap(times[kept], _AEDAT_CLOCK)
    # jAER counts columns from the other side, and its polarity bit is 0 for brighter.
    return Events(127 - ((address >> 1) & 0x7F), (address >> 8) & 0x7F, times, 1 - (address & 1), (128, 128))


def _davis(path: Path, header: str, address: np.ndarray) -> tuple[int, int] | None:
    """Rows and columns of the DAVIS that made the recording, or None for a DVS128.

    The line `# AEChip:` names the camera. Without it any mention counts, unless the addresses speak against
    it: jAER's headers hold preferences of cameras that were not used.
    """
    chip = re.search(r"^# ?AEChip:(.*)$", header, re.IGNORECASE | re.MULTILINE)
    named = re.search(r"davis\D{0,7}(\d{3})", chip[1] if chip else header, re.IGNORECASE)
    if named is None or named[1] not in _DAVIS:
        return None
    if not chip and not np.any(address >> 16):
        raise UserError(
            f"{path}: the header mentions a {named[0]} and has no line '# AEChip:', and the addresses look like those "
            "of a DVS128; add that line with the camera's name to the header, or save x, y, t and p as .npz."
        )
    return _DAVIS[named[1]]


def _aedat_header(path: Path, content: bytes) -> tuple[str, int]:
    """Returns the header's text and where the events start.

    The header is the lines that start with `#`. The first address could start with that byte too, so a line
    also has to be text, which a big-endian 32-bit number next to a time stamp is not.
    """
    version = re.match(rb"#!AER-DAT(\d+\.\d+)", content)
    if version is None:
        raise UserError(
            f"{path}: starts with {content[:12]!r}; expected #!AER-DAT2.0. It is another kind of file or damaged."
        )
    if version[1] != b"2.0":
        raise UserError(
            f"{path}: AEDAT {version[1].decode()}; expected AEDAT 2.0. Convert it with jAER, or save x, y, t "
            "and p as .npz."
        )
    start = 0
    while line := _AEDAT_COMMENT.match(content, start):
        start = line.end()
        if line[0].startswith(b"#End Of ASCII Header"):
            break
    return content[:start].decode("latin1"), start


def _read_nmnist(path: Path, sensor: tuple[int, int] | None) -> Events:
    content = np.frombuffer(path.read_bytes(), np.uint8)
    if content.size % _NMNIST_EVENT:
        raise UserError(
            f"{path}: {content.size:,} bytes are not whole events of {_NMNIST_EVENT} bytes; the file is "
            "truncated or of another format. Copy or download it again."
        )
    x, y, high, middle, low = content.reshape(-1, _NMNIST_EVENT).astype(np.int64).T
    marker = y == _NMNIST_OVERFLOW_ROW
    event = ~marker
    times = unwrap(((high & 0x7F) << 16 | middle << 8 | low)[event], _NMNIST_CLOCK)
    times += np.cumsum(marker)[event] * _NMNIST_OVERFLOW_TIME
    return Events(x[event], y[event], times, (high >> 7)[event], sensor or NMNIST_SENSOR)


def _read_npz(path: Path, sensor: tuple[int, int] | None) -> Events:
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(member.file_size for member in archive.infolist())
        if total > _MAX_NPZ_BYTES:
            raise UserError(f"{path}: unpacks to {total:,} bytes; refused as a bomb.")
        with np.load(path, allow_pickle=False) as arrays:
            columns, size = _columns(path, arrays)
    except UserError:
        raise
    # A damaged archive raises nearly anything; what is no plain array, a ValueError.
    except Exception as error:
        if not is_damage(error):
            raise
        raise UserError(
            f"{path}: not a whole .npz file of plain arrays ({error}); save x, y, t and p as numbers."
        ) from error
    # A column of a matrix is as good as an array.
    x, y, t, p = (array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array for array in columns)
    if any(array.ndim != 1 or array.shape != t.shape for array in (x, y, t, p)):
        shapes = ", ".join(f"{name} {array.shape}" for name, array in zip("xytp", (x, y, t, p), strict=True))
        raise UserError(f"{path}: shapes are {shapes}; expected four arrays of one length, each with one axis.")
    x, y = _whole(path, "x", x), _whole(path, "y", y)
    if np.any(x < 0) or np.any(y < 0):
        raise UserError(f"{path}: x or y is below 0; expected pixels counted from 0.")
    return Events(x, y, _times(path, t), _polarity(path, p), sensor or size)


def _columns(path: Path, arrays: Mapping[str, np.ndarray]) -> tuple[list[np.ndarray], tuple[int, int] | None]:
    """Finds x, y, t and p, as four arrays or as the fields of one, and the sensor if `height` and `width` say it."""
    source = arrays
    if "x" not in arrays and len(arrays) == 1:
        (table,) = (arrays[name] for name in arrays)
        source = {name: table[name] for name in table.dtype.names} if table.dtype.names else arrays
    if any(name not in source for name in "xytp"):
        raise UserError(f"{path}: holds {', '.join(source) or 'nothing'}; expected arrays x, y, t and p.")
    sides = [int(arrays[name]) for name in ("height", "width") if name in arrays and arrays[name].size == 1]
    return [source[name] for name in "xytp"], (sides[0], sides[1]) if len(sides) == 2 else None


def _whole(path: Path, name: str, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind in "iub":
        if values.dtype.kind == "u" and values.size and values.max() > np.iinfo(np.int64).max:
            raise UserError(f"{path}: {name} holds {values.max()}, which is no pixel.")
        return values.astype(np.int64)
    if values.dtype.kind == "f" and np.all(np.abs(values) < 2**53) and np.all(values == np.floor(values)):
        return values.astype(np.int64)
    raise UserError(f"{path}: {name} is {values.dtype} and not all whole numbers; save it as integers.")


def _times(path: Path, times: np.ndarray) -> np.ndarray:
    """Only the order of times counts here, so seconds serve as well as microseconds."""
    if times.dtype.kind in "iu":
        # A narrow clock may wrap; a signed one that passes its highest value falls by its whole range as well.
        return times if times.dtype.itemsize > 4 else unwrap(times, 2 ** (8 * times.dtype.itemsize))
    if times.dtype.kind == "f" and np.all(np.isfinite(times)):
        return times
    raise UserError(f"{path}: t is {times.dtype}; expected finite numbers.")


def _polarity(path: Path, polarity: np.ndarray) -> np.ndarray:
    found = np.unique(polarity) if polarity.dtype.kind in "iubf" else np.array([np.nan])
    if np.all(np.isin(found, (0, 1))):
        return polarity.astype(np.int64)
    if np.all(np.isin(found, (-1, 1))):
        return (polarity > 0).astype(np.int64)
    if np.all(np.isin(found, (1, 2))):
        return (polarity > 1).astype(np.int64)
    raise UserError(
        f"{path}: p is {polarity.dtype} with values such as {found[:4].tolist()}; expected 0 and 1, -1 and 1, or 1 and "
        "2, where the larger is brighter."
    )


# To read another format, add its ending here: folders, commands and messages take them from this table.
_READERS = {".aedat": _read_aedat, ".aedat2": _read_aedat, ".bin": _read_nmnist, ".npz": _read_npz}
EVENT_ENDINGS = tuple(_READERS)
