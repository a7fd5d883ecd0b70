"""The mel-spectrogram of `audio` in integers: the same bits on every machine, and a device computes it too.

The Fourier transform is a radix-2 one over frames that are scaled to 15 bits. Levels are logarithms of power, in
1/1024 of a factor of 2. docs/model-file.md defines every rounding; `deploy/formats/sound/` has the same in C.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from bsnn.data.audio import HOP, NUM_FFT, NUM_MELS, NUM_SAMPLES, RANGE_DB, SAMPLE_RATE, SILENCE, mel_corners
from bsnn.errors import UserError

LEVELS_PER_OCTAVE = 1024
"""Levels from one power to twice as much."""
LEVEL_BITS = LEVELS_PER_OCTAVE.bit_length() - 1
COSINE_BITS = 30
SHARE_BITS = 15
POWER_SHIFT = 18
# Level 0 is this power of 2, where a sample's last bit is 1; all that is quieter counts as nothing.
_LOWEST = -23
_MIN_WINDOW, _MAX_WINDOW = 64, 4096
_LEVELS_PER_DB = LEVELS_PER_OCTAVE / (10 * np.log10(2))
RANGE = round(RANGE_DB * _LEVELS_PER_DB)
"""The range of a spectrogram, in levels."""
SILENT_BELOW = round(LEVELS_PER_OCTAVE * (np.log2(SILENCE * 2.0**30) - _LOWEST))
"""A sound whose loudest level is below this is silence."""


class Tables(NamedTuple):
    """The constants of a front end."""

    cosines: np.ndarray
    """A quarter of a period, in 30 bits, int32, `[window / 4 + 1]`."""
    shares: np.ndarray
    """Which share of each frequency goes to the band above it, in 15 bits, uint16, `[window / 2]`."""
    edges: np.ndarray
    """The first frequency at or above each corner of the bands, of 1 to window / 2, uint16, `[bands + 2]`."""
    gains: np.ndarray
    """What to add to the logarithm of each band, int32, `[bands]`."""


class FrontEnd(NamedTuple):
    """How a sound of `samples` 16-bit numbers becomes a spectrogram.

    Example:
        >>> front_end = FrontEnd()
        >>> front_end.levels(np.zeros(16_000, np.int16)).shape
        (32, 32)
    """

    bands: int = NUM_MELS
    samples: int = NUM_SAMPLES
    window: int = NUM_FFT
    hop: int = HOP

    @property
    def frames(self) -> int:
        """How many frames a sound has."""
        return 1 + self.samples // self.hop

    @property
    def fraction_bits(self) -> int:
        """Of what enters the Fourier transform: as many as its sums leave room for."""
        return 15 - (self.window.bit_length() - 1)

    def check(self) -> "FrontEnd":
        """Refuses what cannot be computed."""
        if self.window & (self.window - 1) or not _MIN_WINDOW <= self.window <= _MAX_WINDOW:
            raise UserError(f"a window of {self.window} samples; expected a power of 2 from 64 to 4096.")
        if not 1 <= self.hop <= min(self.window, self.samples):
            raise UserError(
                f"frames of {self.window} samples every {self.hop}; expected a hop of at most a frame and a sound."
            )
        if not 1 <= self.bands <= self.window // 8:
            raise UserError(f"{self.bands} bands of {self.window} samples; expected 1 to {self.window // 8}.")
        return self

    def levels(self, sounds: np.ndarray) -> np.ndarray:
        """The level of each band and frame, uint16, `[..., bands, frames]`; 0 if there is nothing.

        Args:
            sounds: int16, `[..., samples]`.
        """
        if sounds.dtype != np.int16 or sounds.shape[-1] != self.samples:
            raise UserError(
                f"a sound: received {sounds.dtype} of shape {sounds.shape}; expected int16 of {self.samples:,} samples."
            )
        return self._levels(np.pad(sounds, [(0, 0)] * (sounds.ndim - 1) + [(self.window // 2, self.window // 2)]))

    def stream_levels(self, samples: np.ndarray) -> np.ndarray:
        """The level of each band and frame of a stream so far, uint16, `[bands, frames]`: of all frames that are whole.

        Args:
            samples: int16, `[N]`, from the beginning; before it there was silence.
        """
        padded = np.pad(samples, (self.window // 2, 0))
        return self._levels(padded) if len(padded) >= self.window else np.zeros((self.bands, 0), np.uint16)

    def _levels(self, padded: np.ndarray) -> np.ndarray:
        frames = np.lib.stride_tricks.sliding_window_view(padded, self.window, axis=-1)[..., :: self.hop, :]
        return np.swapaxes(self._frame_levels(frames), -1, -2)

    def _frame_levels(self, frames: np.ndarray) -> np.ndarray:
        """The level of each band, `[..., bands]`, of frames `[..., window]`, int16."""
        tables, wide = self.tables(), frames.astype(np.int64)
        peak = np.abs(wide).max(-1)
        scale = 15 - _bit_length(np.maximum(peak - 1, 0))
        cosine = _cosines(self.window)
        windowed = _round_shift((wide << scale[..., None]) * ((1 << COSINE_BITS) - cosine), 31 - self.fraction_bits)
        power = _power(windowed, cosine) >> POWER_SHIFT
        upper = power * tables.shares
        lower = (power << SHARE_BITS) - upper
        edges = tables.edges
        sums = [
            upper[..., edges[b] : edges[b + 1]].sum(-1) + lower[..., edges[b + 1] : edges[b + 2]].sum(-1)
            for b in range(self.bands)
        ]
        energy = np.stack(sums, -1)
        level = _log2(energy) + tables.gains - (scale[..., None] << (LEVEL_BITS + 1))
        return np.where((energy > 0) & (peak[..., None] > 0), np.clip(level, 0, 65535), 0).astype(np.uint16)

    def tables(self) -> Tables:
        """The constants."""
        return _tables(self)


@cache
def _tables(front_end: FrontEnd) -> Tables:
    bands, window = front_end.check().bands, front_end.window
    corners = mel_corners(bands)
    frequencies = np.arange(window // 2) * SAMPLE_RATE / window
    edges = np.clip(np.searchsorted(frequencies, corners), 1, window // 2)
    place = np.clip(np.searchsorted(corners, frequencies, side="right") - 1, 0, bands)
    shares = (frequencies - corners[place]) / (corners[place + 1] - corners[place])
    # What is summed up is too large by these powers of 2: the spectrum is twice its size, and has fraction bits.
    scale = SHARE_BITS - POWER_SHIFT + 2 + 2 * front_end.fraction_bits
    gains = np.log2(2 / (corners[2:] - corners[:-2])) - scale - _LOWEST
    return Tables(
        cosines=_cosines(window)[: window // 4 + 1].astype(np.int32),
        shares=np.rint(shares * 2**SHARE_BITS).astype(np.uint16),
        edges=edges.astype(np.uint16),
        gains=np.rint(gains * LEVELS_PER_OCTAVE).astype(np.int32),
    )


@cache
def _cosines(window: int) -> np.ndarray:
    """A whole period, of which the quarters are exact mirrors of the first."""
    quarter = np.rint(np.cos(2 * np.pi * np.arange(window // 4 + 1) / window) * 2**COSINE_BITS).astype(np.int64)
    quarter[-1] = 0
    half = np.concatenate([quarter, -quarter[-2::-1]])
    return np.concatenate([half, half[-2:0:-1]])


def _power(windowed: np.ndarray, cosine: np.ndarray) -> np.ndarray:
    """Four times the squared spectrum of real numbers `[..., window]`, at all frequencies below the highest."""
    window = windowed.shape[-1]
    half = window // 2
    sine = np.roll(cosine, window // 4)
    re, im = _transform(windowed[..., 0::2], windowed[..., 1::2], cosine, sine)
    mirror = -np.arange(half) % half
    even_re, even_im = re + re[..., mirror], im - im[..., mirror]
    odd_re, odd_im = im + im[..., mirror], re[..., mirror] - re
    c, s = cosine[:half], sine[:half]
    real = even_re + _round_shift(odd_re * c + odd_im * s, COSINE_BITS)
    imaginary = even_im + _round_shift(odd_im * c - odd_re * s, COSINE_BITS)
    return real * real + imaginary * imaginary


def _transform(re: np.ndarray, im: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The Fourier transform, decimated in frequency: each product is rounded, no sum is."""
    number = re.shape[-1]
    size = number // 2
    while size:
        blocks = (*re.shape[:-1], number // (2 * size), 2, size)
        a, b = re.reshape(blocks), im.reshape(blocks)
        step = len(cosine) // (2 * size)
        c, s = cosine[: size * step : step], sine[: size * step : step]
        less_re, less_im = a[..., 0, :] - a[..., 1, :], b[..., 0, :] - b[..., 1, :]
        turned_re = _round_shift(less_re * c + less_im * s, COSINE_BITS)
        turned_im = _round_shift(less_im * c - less_re * s, COSINE_BITS)
        re = np.stack([a[..., 0, :] + a[..., 1, :], turned_re], -2).reshape(re.shape)
        im = np.stack([b[..., 0, :] + b[..., 1, :], turned_im], -2).reshape(im.shape)
        size //= 2
    order = np.zeros(1, np.int64)
    while len(order) < number:
        order = np.concatenate([2 * order, 2 * order + 1])
    return re[..., order], im[..., order]


def _log2(energy: np.ndarray) -> np.ndarray:
    """The logarithm of positive numbers below 2^63, in levels, rounded down: one bit for each squaring."""
    length = _bit_length(np.maximum(energy, 1))
    # Between 1 and 2, with 31 bits after the point.
    rest = np.where(length > 32, energy >> np.maximum(length - 32, 0), energy << np.maximum(32 - length, 0))
    rest = rest.astype(np.uint64)
    level = length - 1
    for _ in range(LEVEL_BITS):
        rest = (rest * rest) >> np.uint64(31)
        above = rest >> np.uint64(32)
        rest >>= above
        level = 2 * level + above.astype(np.int64)
    return level


def _bit_length(numbers: np.ndarray) -> np.ndarray:
    """How many bits positive numbers have."""
    length = np.zeros(numbers.shape, np.int64)
    for step in (32, 16, 8, 4, 2, 1):
        above = numbers >> (length + step) > 0
        length += step * above
    return length + (numbers > 0)


def _round_shift(numbers: np.ndarray, shift: int) -> np.ndarray:
    return (numbers + (1 << shift >> 1)) >> shift
