"""Sounds as a device hears them: from 16-bit samples to a network's integers, all of it in integers.

docs/model-file.md ("Sounds") defines the front end; `bsnn.data.front_end` computes it here, `formats/sound/` there.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from bsnn.data.audio import NUM_SAMPLES, RANGE_DB, SAMPLE_RATE, fit, read_sound
from bsnn.data.front_end import LEVELS_PER_OCTAVE, RANGE, SILENT_BELOW, FrontEnd
from bsnn.deploy.schema import InputSpec
from bsnn.errors import UserError

_STATE_BYTES = 12
# Of full scale: floating-point samples of music and of resampled sounds exceed it a little, and are cut.
_MOST_PEAK = 2.0
_SHIFT = 16


class Sound(NamedTuple):
    """The front end of a network, and how its levels become the network's integers.

    Example:
        >>> spec = InputSpec("sound", (1, 32, 32), 14, 1.0, (0.5,), (0.5,), (1,), (0,), 0, {})
        >>> sound_of(spec).integers(np.zeros((2, 16_000), np.int16)).shape
        (2, 1, 32, 32)
    """

    front_end: FrontEnd
    multiplier: int
    """Of levels below the loudest one; by `shift` bits too large."""
    offset: int
    """The loudest level's integer, likewise."""
    shift: int = _SHIFT

    def integers(self, sounds: np.ndarray) -> np.ndarray:
        """The network's integers `[..., 1, bands, frames]`, int16, of sounds `[..., samples]`, int16."""
        return self.from_levels(self.front_end.levels(sounds))

    def from_levels(self, levels: np.ndarray) -> np.ndarray:
        """The network's integers of windows of levels, `[..., bands, frames]`."""
        levels = levels.astype(np.int64)
        loudest = levels.max((-1, -2), keepdims=True)
        nothing = (levels == 0) | (loudest < SILENT_BELOW)
        below = np.where(nothing, RANGE, np.minimum(loudest - levels, RANGE))
        x = (self.offset - below * self.multiplier + (1 << self.shift >> 1)) >> self.shift
        return np.clip(x, -32768, 32767).astype(np.int16)[..., None, :, :]

    @property
    def ram_bytes(self) -> int:
        """Memory on a device: samples that the next frame needs too, a frame, levels of a window, and counters."""
        bands, _, window, hop = self.front_end
        return 2 * max(window - hop, 2) + 4 * window + 2 * bands * self.front_end.frames + _STATE_BYTES

    @property
    def constant_bytes(self) -> int:
        """Tables on a device."""
        tables = self.front_end.tables()
        return 4 * len(tables.cosines) + 2 * len(tables.shares) + 2 * len(tables.edges) + 4 * len(tables.gains)


def sound_of(spec: InputSpec) -> Sound:
    """The front end of a network that takes sounds.

    Raises:
        UserError: The model file does not say enough to make the network's input from samples.
    """
    channels, bands, frames = spec.shape
    found = FrontEnd(bands, **{key: spec.decode[key] for key in ("window", "hop") if key in spec.decode})
    if spec.kind != "sound" or channels != 1 or spec.divisor != 1 or found.frames != frames:
        raise UserError(
            f"sound: the network takes {spec.kind}s of {channels} × {bands} × {frames}, divided by {spec.divisor:g}; "
            f"expected sounds of 1 × bands × {found.frames}, which is what {NUM_SAMPLES / SAMPLE_RATE:g} s give with a "
            f"hop of {found.hop} samples. The model file does not say how samples become such an input: train it with "
            "bsnn train, or export it with the spec of its data."
        )
    found.check()
    scale = 2.0 ** (spec.fraction_bits + _SHIFT) / spec.std[0]
    per_level = 10 * np.log10(2) / LEVELS_PER_OCTAVE / RANGE_DB
    return Sound(found, multiplier=round(scale * per_level), offset=round(scale * (1 - spec.mean[0])))


def find_sound(spec: InputSpec) -> Sound | None:
    """The front end, or None if the network does not take sounds, or not such as can be made from samples."""
    try:
        return sound_of(spec) if spec.kind == "sound" else None
    except UserError:
        return None


def read_samples(path: Path, length: int | None = None) -> np.ndarray:
    """Reads a sound file as 16-bit samples at 16 kHz; those of such a file as they are.

    Args:
        path: The file.
        length: How many samples; a sound of another length is padded or cut as in training. By default all.
    """
    sound = read_sound(path)
    peak = float(np.abs(sound).max())
    if peak > _MOST_PEAK:
        raise UserError(
            f"{path}: reaches {peak:.3g} times the full scale, and a device hears 16 bits; expected samples from -1 to "
            "1. Divide them by their peak."
        )
    sound = sound if length is None else fit(sound, length)
    return np.clip(np.rint(sound * 32768), -32768, 32767).astype(np.int16)
