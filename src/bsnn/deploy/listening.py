"""Words in a stream: predictions of overlapping windows, smoothed, and a threshold; all of it in integers.

`formats/sound/listen.c` does the same on a device, to the bit. A share is that of a class in the softmax of a window's
logits, in 15 bits; the score of a class is the mean of its shares over the latest windows.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from bsnn.data.audio import SAMPLE_RATE
from bsnn.data.front_end import FrontEnd
from bsnn.deploy.engine import Engine
from bsnn.deploy.quantize import multipliers
from bsnn.deploy.schema import Artifact
from bsnn.deploy.sound import Sound, sound_of
from bsnn.errors import UserError

SHARE_BITS = 15
_OCTAVE_BITS = 10  # of logits to the base 2
_FAR = 20 << _OCTAVE_BITS  # so much below the best class, a share is 0
_BATCH = 64
_MAX_CLASSES, _MAX_SMOOTHING = 32_768, 1000


HOP, SMOOTHING, THRESHOLD, HOLD = 0.1, 7, 0.7, 5
"""Seconds between windows, windows that are averaged, score of a word, and windows after which it may come again.

Smoothing and threshold are the best of a few on words of Speech Commands' validation speakers in a stream."""


class Listening(NamedTuple):
    """When a word counts as heard.

    Attributes:
        step: Frames from the beginning of a window to that of the next.
        smoothing: Over how many windows shares are averaged; before the first one they are 0.
        threshold: The score from which a word is heard, in 15 bits.
        hold: For how many windows a word that was heard must stay below the threshold to be heard again.
    """

    step: int
    smoothing: int
    threshold: int
    hold: int = HOLD


def listening(
    front_end: FrontEnd,
    window: float | None = None,
    hop: float = HOP,
    smoothing: int = SMOOTHING,
    threshold: float = THRESHOLD,
) -> Listening:
    """Settings in frames and integers, from such for people.

    Args:
        front_end: Of the network.
        window: Seconds of a window, which is what the network takes.
        hop: Seconds from one window to the next; rounded to whole frames.
        smoothing: Over how many windows shares are averaged.
        threshold: The score from which a word is heard, above 0 and at most 1.

    Example:
        >>> listening(FrontEnd(), hop=0.2).step
        6
    """
    seconds, frame = front_end.samples / SAMPLE_RATE, front_end.hop / SAMPLE_RATE
    if window is not None and not abs(window - seconds) <= 1e-6:
        raise UserError(f"window: received {window:g} s; the network hears {seconds:g} s, so expected {seconds:g}.")
    if not frame / 2 <= hop <= seconds:
        raise UserError(f"hop: received {hop:g} s; expected {frame:g} (a frame) to {seconds:g} (a window).")
    if not 1 <= smoothing <= _MAX_SMOOTHING:
        raise UserError(f"smoothing: received {smoothing} windows; expected 1 to {_MAX_SMOOTHING}.")
    if not 0 < threshold <= 1:
        raise UserError(f"threshold: received {threshold:g}; expected a score above 0, at most 1.")
    return Listening(round(hop / frame), smoothing, round(threshold * 2**SHARE_BITS))


class Heard(NamedTuple):
    """The best class after a window: its score in 15 bits, and whether it is a word that was not heard before."""

    label: int
    score: int
    new: bool


class Shares(NamedTuple):
    """How outputs become shares: a multiplier and a shift to logits to the base 2, and where shares end."""

    multiplier: int
    shift: int
    far: int

    def of(self, outputs: np.ndarray) -> np.ndarray:
        """Shares `[N, classes]`, int64, of outputs summed over time."""
        below = np.minimum(outputs.max(1, keepdims=True) - outputs, self.far)
        octaves = np.minimum((below * self.multiplier) >> self.shift, _FAR)
        weight = np.full(octaves.shape, 1 << 31, np.int64)
        for bit, factor in enumerate(roots()):
            weight = np.where(octaves >> bit & 1, (weight * int(factor)) >> 31, weight)
        weight >>= octaves >> _OCTAVE_BITS
        return weight // (weight.sum(1, keepdims=True) >> SHARE_BITS)


def roots() -> np.ndarray:
    """2^(-2^bit / 1024) in 31 bits, uint32, for each bit of a fraction of an octave."""
    return np.rint(2.0 ** (31 - 2.0 ** np.arange(_OCTAVE_BITS) / 2**_OCTAVE_BITS)).astype(np.uint32)


def shares_of(artifact: Artifact) -> Shares:
    """How the outputs of a network become shares."""
    if len(artifact.classes) >= _MAX_CLASSES:
        raise UserError(f"listening: received {len(artifact.classes)} classes; expected below {_MAX_CLASSES}.")
    gain = artifact.output_scale / artifact.time_steps * math.log2(math.e) * 2**_OCTAVE_BITS
    (multiplier,), shift = multipliers(np.array([gain]))
    return Shares(int(multiplier), shift, (_FAR << shift) // max(int(multiplier), 1) + 1)


def decide(shares: np.ndarray, settings: Listening) -> list[Heard]:
    """What is heard after each window, from shares `[N, classes]`."""
    padded = np.concatenate([np.zeros((settings.smoothing, shares.shape[1]), np.int64), shares]).cumsum(0)
    sums = padded[settings.smoothing :] - padded[: -settings.smoothing]
    found, word, wait = [], -1, 0
    for row in sums:
        best = int(row.argmax())
        above = bool(row[best] >= settings.threshold * settings.smoothing)
        new = above and (best != word or wait == 0)
        if new:
            word = best
        wait = settings.hold if above and best == word else max(wait - 1, 0)
        found.append(Heard(best, int(row[best]) // settings.smoothing, new))
    return found


def windows(sound: Sound, samples: np.ndarray, step: int) -> np.ndarray:
    """Inputs of all windows of a stream, `[N, 1, bands, frames]`; silence follows it to the end of the last one."""
    front_end = sound.front_end
    number = 1 + max(0, -(-(len(samples) - front_end.samples) // (step * front_end.hop)))
    frames = (number - 1) * step + front_end.frames
    padding = (frames - 1) * front_end.hop + front_end.window // 2 - len(samples)
    levels = front_end.stream_levels(np.pad(samples, (0, max(padding, 0))))[:, :frames]
    views = np.lib.stride_tricks.sliding_window_view(levels, front_end.frames, axis=1)[:, ::step]
    return sound.from_levels(np.swapaxes(views, 0, 1))


def hear(engine: Engine, inputs: np.ndarray, settings: Listening) -> list[Heard]:
    """What is heard after each window, from inputs `[N, 1, bands, frames]`; a window that is rejected has no shares."""
    starts = range(0, len(inputs), _BATCH)
    batches = [engine.outputs(inputs[at : at + _BATCH], normalized=True) for at in starts]
    outputs = np.concatenate([np.zeros((0, len(engine.classes)), np.int64), *batches])
    shares = shares_of(engine.artifact).of(outputs)
    return decide(np.where(engine.rejects(outputs)[:, None], 0, shares), settings)


def listen(engine: Engine, samples: np.ndarray, settings: Listening) -> list[dict[str, Any]]:
    """When a network hears what in a stream: start and end of the window in seconds, label, class and score.

    Args:
        engine: A network that takes sounds.
        samples: int16, `[N]`.
        settings: When a word counts as heard.
    """
    sound = sound_of(engine.artifact.input)
    inputs = windows(sound, samples, settings.step)
    hop, length = settings.step * sound.front_end.hop / SAMPLE_RATE, sound.front_end.samples / SAMPLE_RATE
    return [
        {
            "start": number * hop,
            "end": number * hop + length,
            "label": engine.classes[heard.label],
            "class": heard.label,
            "score": heard.score / 2**SHARE_BITS,
        }
        for number, heard in enumerate(hear(engine, inputs, settings))
        if heard.new
    ]
