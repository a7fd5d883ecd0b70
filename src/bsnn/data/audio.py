"""Sounds: one second at 16 kHz as a mel-spectrogram, of 32 × 32 unless told otherwise.

Frames of 1024 samples every 512, centered on their time with zeros beyond the ends: 16,000 samples give 32
frames. A periodic Hann window, power, 32 triangular mel bands of Slaney's scale and area up to 8 kHz:
librosa's definitions, which `mel_power` agrees with. Then decibels below the clip's loudest band, cut at 80
and scaled to [0, 1]. A device computes the same in integers (`front_end.py`).
"""

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bsnn.errors import UserError
from bsnn.extras import need

SOUND_ENDINGS = (".wav", ".flac")
SAMPLE_RATE = 16_000
NUM_SAMPLES = 16_000
NUM_FFT = 1024
HOP = 512
NUM_MELS = 32
RANGE_DB = 80.0
# Below this power a clip is silence, not a quiet sound.
SILENCE = 1e-10
_MAX_SECONDS = 3600


def decode_sound(
    path: str | Path,
    rng: np.random.Generator | None = None,
    *,
    bands: int = NUM_MELS,
    window: int = NUM_FFT,
    hop: int = HOP,
) -> np.ndarray:
    """Reads a sound as its mel-spectrogram `[1, bands, frames]`: bands from low to high, frames in order of time.

    Args:
        path: A wav of any rate, number of channels and bit depth. Channels are averaged, other rates
            resampled, shorter sounds padded with zeros at their end, longer ones cut to their middle second.
        rng: Not used: nothing here is random.
        bands: How many mel bands.
        window: How many samples a frame has.
        hop: How many samples lie between the beginnings of two frames.
    """
    return spectrogram(fit(read_sound(path), NUM_SAMPLES), bands, window, hop)[None]


def read_sound(path: str | Path) -> np.ndarray:
    """Reads a sound file as one channel at 16 kHz, float64, full scale at 1."""
    with _opened(path) as file:
        rate = file.samplerate
        if file.frames > _MAX_SECONDS * rate:
            raise UserError(f"{path}: {file.frames / rate:.0f} s long; at most {_MAX_SECONDS} s are read. Cut it.")
        # The number is given because some codings (GSM 6.10) cannot seek to find it out.
        samples = file.read(file.frames, dtype="float64", always_2d=True)
    if not len(samples):
        raise UserError(f"{path}: holds no samples; remove the file or record it again.")
    if not np.all(np.isfinite(samples)):
        raise UserError(f"{path}: holds samples that are no numbers (NaN or infinite); save it again.")
    if not 1000 <= rate <= 768_000:
        raise UserError(f"{path}: a rate of {rate} Hz; expected 1 kHz to 768 kHz. The file's head is damaged.")
    return resample(samples.mean(axis=1), rate)


def sound_seconds(path: str | Path) -> float:
    """The length of a sound file as it is."""
    with _opened(path) as file:
        return file.frames / file.samplerate


@contextmanager
def _opened(path: str | Path) -> Iterator[Any]:
    soundfile, path = need("soundfile"), Path(path)
    _check_riff(path)
    try:
        with soundfile.SoundFile(path) as file:
            yield file
    except UserError:
        raise
    except (soundfile.SoundFileError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not a sound file ({error}); expected wav or flac. Convert or remove it.") from error


def resample(samples: np.ndarray, rate: int) -> np.ndarray:
    """Resamples to 16 kHz with a low-pass polyphase filter.

    Example:
        >>> len(resample(np.zeros(44_100), 44_100))
        16000
    """
    if rate == SAMPLE_RATE:
        return samples
    common = math.gcd(rate, SAMPLE_RATE)
    return need("scipy.signal").resample_poly(samples, SAMPLE_RATE // common, rate // common)


def fit(samples: np.ndarray, length: int) -> np.ndarray:
    """Makes a sound `length` samples long: zeros at the end of a shorter one, the middle of a longer one.

    Example:
        >>> fit(np.arange(5.0), 3), fit(np.arange(2.0), 3)
        (array([1., 2., 3.]), array([0., 1., 0.]))
    """
    if len(samples) < length:
        return np.pad(samples, (0, length - len(samples)))
    start = (len(samples) - length) // 2
    return samples[start : start + length]


def spectrogram(samples: np.ndarray, bands: int = NUM_MELS, window: int = NUM_FFT, hop: int = HOP) -> np.ndarray:
    """The mel-spectrogram in decibels over 80 dB, scaled to [0, 1], float32; silence is 0 everywhere.

    Example:
        >>> spectrogram(np.zeros(16_000)).shape, float(spectrogram(np.zeros(16_000)).max())
        ((32, 32), 0.0)
    """
    power = mel_power(samples, bands, window, hop)
    loudest = power.max()
    if loudest < SILENCE:
        return np.zeros(power.shape, np.float32)
    decibels = 10 * np.log10(np.maximum(power / loudest, 10 ** (-RANGE_DB / 10)))
    return (decibels / RANGE_DB + 1).astype(np.float32)


def mel_power(samples: np.ndarray, bands: int = NUM_MELS, window: int = NUM_FFT, hop: int = HOP) -> np.ndarray:
    """The power in each mel band and frame, `[bands, frames]`.

    Example:
        >>> mel_power(np.ones(16_000)).shape
        (32, 32)
    """
    padded = np.pad(samples, window // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    power = np.abs(np.fft.rfft(frames * hann)) ** 2
    return mel_filters(bands, window) @ power.T


@cache
def mel_filters(bands: int = NUM_MELS, window: int = NUM_FFT) -> np.ndarray:
    """The triangles of Slaney's auditory toolbox, `[bands, window / 2 + 1]`, each of area 1 over frequency.

    Example:
        >>> mel_filters().shape
        (32, 513)
    """
    frequencies = np.fft.rfftfreq(window, 1 / SAMPLE_RATE)
    corners = mel_corners(bands)
    lower, center, upper = (corners[start : start + bands, None] for start in range(3))
    rising = (frequencies - lower) / (center - lower)
    falling = (upper - frequencies) / (upper - center)
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (upper - lower)


def mel_corners(bands: int) -> np.ndarray:
    """Where the triangles begin, peak and end, in Hz: band b rises from corner b to b + 1, and falls to b + 2.

    Example:
        >>> mel_corners(1).round().tolist()
        [0.0, 1689.0, 8000.0]
    """
    return _mel_to_hz(np.linspace(0, _hz_to_mel(SAMPLE_RATE / 2), bands + 2))


# Slaney's scale: linear, 3 mels per 200 Hz, up to 1 kHz; above it 27 mels per factor of 6.4.
def _hz_to_mel(frequency: float) -> float:
    if frequency < 1000:
        return 3 * frequency / 200
    return 15 + 27 * math.log(frequency / 1000) / math.log(6.4)


def _mel_to_hz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, 200 * mel / 3, 1000 * 6.4 ** ((mel - 15) / 27))


def _check_riff(path: Path) -> None:
    """Refuses a wav whose sound ends before its head says; the sound library would shorten it."""
    if path.suffix.lower() != ".wav":
        return
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(12)
        if head[:4] != b"RIFF":
            return  # Big-endian or 64-bit relatives, or no sound at all: the sound library decides.
        if head[8:12] != b"WAVE":
            raise UserError(f"{path}: a RIFF file of kind {head[8:12]!r}; expected a wav. Convert or remove it.")
        position = 12
        while len(chunk := file.read(8)) == 8:
            name, length = struct.unpack("<4sI", chunk)
            position += 8
            # A stream of unknown length says 0 or next to the largest number, signed or not.
            if name == b"data" and 0 < length < 0x7FFF_0000 and position + length > size:
                raise UserError(
                    f"{path}: its head says {length:,} bytes of sound, and {size - position:,} are there; "
                    "the file is truncated. Copy or download it again."
                )
            if name == b"data" and length == 0 and size > position:
                raise UserError(
                    f"{path}: its head says no sound, and {size - position:,} bytes follow: a recording whose head was "
                    "never completed. Convert it, for example with ffmpeg -i, or remove it."
                )
            if name == b"data":
                return
            position += length + length % 2
            file.seek(position)
    raise UserError(
        f"{path}: a wav without sound data where its chunks end; the file is truncated, or a chunk of odd length lacks "
        "its filling byte. Copy, download or convert it again."
    )
