"""Training sounds as a room makes them: moved in time, faster or slower, louder or quieter, with background noise.

Recordings stay in memory as 16-bit samples, and each becomes a spectrogram whenever it is read: about half a
millisecond per second of sound. All that is random comes from the generator that the loader passes.
"""

from dataclasses import dataclass, fields, replace
from functools import cache as once
from pathlib import Path

import numpy as np

from bsnn.data.audio import NUM_SAMPLES, SAMPLE_RATE, SOUND_ENDINGS, fit, read_sound, spectrogram
from bsnn.data.cache import decoded
from bsnn.data.dataset import Dataset, FileDataset
from bsnn.data.tree import walk
from bsnn.errors import UserError

BACKGROUND = 0.1
"""Share of the training samples that are background alone, if a network is to tell it from sounds."""

_FULL_SCALE = 32768
_NUM_TRACKS, _TRACK_SECONDS = 32, 4
_MAX_NOISE_SECONDS = 3600
# Of samples that are background alone: so many are digital silence, the others up to so many decibels below full scale.
_SILENT, _QUIETEST_DB = 0.125, 80.0
# The share of sounds that get no noise, and how far that of the others may lie below the loudest.
_NOISELESS, _NOISE_RANGE_DB = 0.25, 30.0
# A part of a noise recording that is quieter than this share of the whole is a pause, and is not amplified further.
_PAUSE = 0.03


@dataclass(frozen=True)
class SoundAugmentation:
    """What is done to a training sound: speed, shift, background noise and gain, in this order.

    Then samples are rounded to 16 bits and clipped, as a microphone's are. Each number is the largest change; what a
    sample gets is drawn evenly between that and its opposite. A quarter of the samples gets no noise, because a network
    that only ever hears noise fails in silence; for the others its level is drawn evenly in decibels, down to 30 below.

    Attributes:
        time_shift: seconds that a sound is moved, either way; what is uncovered is silence.
        speed_change: share by which it becomes faster or slower; the pitch changes with it.
        gain_change: decibels by which it becomes louder or quieter.
        noise: largest amplitude of the background noise relative to the sound's, as root mean squares: 0.3 is 10 dB
            below it.
        noise_folder: recordings to take the noise from; otherwise it is generated, from white to brown.
        background: share of the samples that are replaced by noise or silence alone. They belong to no class, so the
            loader spreads their labels evenly over all classes.

    Example:
        >>> wave = np.arange(NUM_SAMPLES) / NUM_SAMPLES
        >>> moved = SoundAugmentation(time_shift=0.1).apply(wave, np.random.default_rng(0))
        >>> moved.shape, moved[:1600].tolist() == wave[:1600].tolist()
        ((16000,), False)
    """

    time_shift: float = 0.0
    speed_change: float = 0.0
    gain_change: float = 0.0
    noise: float = 0.0
    noise_folder: str = ""
    background: float = 0.0

    def __post_init__(self) -> None:
        for name, most in (("time_shift", 1), ("speed_change", 0.5), ("gain_change", 96), ("background", 0.9)):
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise UserError(f"{name}: received {value}; expected a number, 0 to {most}. 0 switches it off.")
        if not 0 <= self.noise < np.inf:
            raise UserError(f"noise: received {self.noise}; expected a number, at least 0, which switches it off.")

    def __bool__(self) -> bool:
        """Whether anything is done."""
        return any(getattr(self, field.name) for field in fields(self) if field.name != "noise_folder")

    def apply(self, wave: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Changes a sound.

        Args:
            wave: `[NUM_SAMPLES]`, full scale at 1; left as it is.
            rng: What to draw from. It is drawn from equally often whatever is switched off.

        Returns:
            As many samples, multiples of 2⁻¹⁵ from −1 to below 1.
        """
        shift, speed, gain = rng.uniform(-1, 1, 3) * (
            self.time_shift * SAMPLE_RATE,
            self.speed_change,
            self.gain_change,
        )
        noisy, below = rng.uniform(size=2)
        level = self.noise * _loudness(wave) * 10 ** (-below * _NOISE_RANGE_DB / 20) * (noisy >= _NOISELESS)
        noise = self._noise(rng, _tracks(self.noise_folder))
        changed = moved(wave, round(shift), 1 + speed)
        return _recorded((changed + level * noise) * 10 ** (gain / 20))

    def alone(self, rng: np.random.Generator) -> np.ndarray:
        """Noise or silence alone: generated, or as often from the folder if there is one."""
        silent, quiet, given = rng.uniform(size=3)
        tracks = _tracks(self.noise_folder if given < 0.5 else "")
        level = 0.0 if silent < _SILENT else 10 ** (-quiet * _QUIETEST_DB / 20)
        return _recorded(level * self._noise(rng, tracks))

    def _noise(self, rng: np.random.Generator, tracks: list[np.ndarray]) -> np.ndarray:
        """A part of a track, with a loudness of 1."""
        track = tracks[rng.integers(len(tracks))]
        start = rng.integers(len(track) - NUM_SAMPLES + 1)
        part = track[start : start + NUM_SAMPLES]
        return part / max(_loudness(part), _PAUSE)


@dataclass(eq=False)
class AugmentedSounds(FileDataset):
    """Training sounds that are augmented whenever one is read with a generator; `augmented_sounds` makes it."""

    settings: SoundAugmentation
    waves: np.ndarray | None
    """`[N, 1, 1, NUM_SAMPLES]`, int16; None if they do not fit in memory and are read from their files each time."""

    def read(self, index: int, rng: np.random.Generator | None = None) -> np.ndarray:
        """Returns the spectrogram of one sound, augmented by what is drawn from `rng`, or as it is without one."""
        if rng is None:
            return super().read(index)
        wave = _wave(self.paths[index]) if self.waves is None else self.waves[index]
        return self._seen(self.settings.apply(wave.ravel() / np.float32(_FULL_SCALE), rng))

    def read_background(self, rng: np.random.Generator) -> np.ndarray:
        """Returns the spectrogram of noise or silence alone."""
        return self._seen(self.settings.alone(rng))

    def _seen(self, wave: np.ndarray) -> np.ndarray:
        """The spectrogram of a sound, of the size that the decoder of the files makes."""
        return spectrogram(wave, **getattr(self.decode, "keywords", {}))[None]


def augmented_sounds(data: Dataset, settings: SoundAugmentation, cache: str | Path | None = None) -> AugmentedSounds:
    """The same sounds, augmented when a loader reads them for training.

    Args:
        data: Sounds that were read from files, as `bsnn.data.folder` and `bsnn.data.speech_commands` return them.
        settings: What is done to them.
        cache: Where decoded samples are kept; see `cache_folder`.

    Example:
        >>> augmented_sounds(bsnn.data.digits(), SoundAugmentation(noise=0.3))
        Traceback (most recent call last):
        ...
        bsnn.errors.UserError: digits: image samples; expected sounds that were read from files.
    """
    paths = getattr(data, "paths", None)
    if data.kind != "sound" or paths is None:
        raise UserError(f"{data.name}: {data.kind} samples; expected sounds that were read from files.")
    _tracks(settings.noise_folder)  # refuses a folder without noise now, not in the first epoch
    measures = data.mean, data.std, data.scale
    decode = data.decode  # pyright: ignore[reportAttributeAccessIssue]
    plain = FileDataset(data.name, "sound", data.classes, data.labels, data.shape, *measures, paths, decode)
    raw = replace(plain, shape=(1, 1, NUM_SAMPLES), decode=_wave)
    return AugmentedSounds(**vars(plain), settings=settings, waves=decoded(raw, cache))


def moved(wave: np.ndarray, shift: int, speed: float) -> np.ndarray:
    """Moves a sound to later samples, and plays it faster or slower around its middle.

    Args:
        wave: The sound.
        shift: Samples, to later ones if positive; beyond its ends a sound is silent.
        speed: 1 leaves it as it is; samples between samples are interpolated linearly.

    Example:
        >>> wave = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
        >>> moved(wave, 1, 1.0).tolist(), moved(wave, 0, 2.0).tolist()
        ([0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 3.0, 5.0, 0.0])
    """
    places = np.arange(len(wave))
    if shift == 0 and speed == 1:
        return wave
    middle = (len(wave) - 1) / 2
    return np.interp((places - middle - shift) * speed + middle, places, wave, left=0.0, right=0.0)


def _wave(path: Path, rng: np.random.Generator | None = None) -> np.ndarray:
    """One second of a recording as 16-bit samples."""
    samples = fit(read_sound(path), NUM_SAMPLES)
    return np.clip(np.rint(samples * _FULL_SCALE), -_FULL_SCALE, _FULL_SCALE - 1).astype(np.int16)[None, None]


def _recorded(wave: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(wave * _FULL_SCALE), -_FULL_SCALE, _FULL_SCALE - 1) / _FULL_SCALE


def _loudness(wave: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(wave))))


@once
def _tracks(folder: str) -> list[np.ndarray]:
    """Noise to take parts from, each track with a loudness of 1: the recordings in a folder, or generated ones."""
    if not folder:
        rng = np.random.default_rng(0)
        # More of them near white than near brown, whose power falls with the square of the frequency.
        return [_colored(rng, 2 * (number / _NUM_TRACKS) ** 2) for number in range(_NUM_TRACKS)]
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise UserError(f"noise_folder: {folder} is no folder; expected one with recordings of noise.")
    tracks, length = [], 0
    for path in sorted(path for path in walk(place) if path.suffix.lower() in SOUND_ENDINGS):
        wave = read_sound(path).astype(np.float32)
        loudness = _loudness(wave)
        if not loudness:
            raise UserError(f"noise_folder: {path} is silent; expected noise. Remove the file.")
        tracks.append(np.resize(wave / loudness, max(len(wave), NUM_SAMPLES)))
        length += len(wave)
        if length > _MAX_NOISE_SECONDS * SAMPLE_RATE:
            raise UserError(
                f"noise_folder: {folder} holds more than {_MAX_NOISE_SECONDS} s of sound; expected fewer, because all "
                "of it is kept in memory. Give a part of it."
            )
    if not tracks:
        raise UserError(f"noise_folder: {folder} holds no {' or '.join(SOUND_ENDINGS)} files; expected some of noise.")
    return tracks


def _colored(rng: np.random.Generator, exponent: float) -> np.ndarray:
    """Noise whose power falls with the frequency to this exponent."""
    length = _TRACK_SECONDS * SAMPLE_RATE
    amplitudes = np.arange(1, length // 2 + 1) ** (-exponent / 2)
    phases = rng.standard_normal(length // 2) + 1j * rng.standard_normal(length // 2)
    wave = np.fft.irfft(np.concatenate([[0], amplitudes * phases]))
    return (wave / _loudness(wave)).astype(np.float32)
