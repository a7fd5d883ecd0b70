"""The mel-spectrogram in integers: close to the real-valued one, and with properties that only integers have."""

import numpy as np
import pytest

from bsnn import UserError
from bsnn.data.audio import mel_filters, spectrogram
from bsnn.data.front_end import RANGE, SILENT_BELOW, FrontEnd, _log2

TIME = np.arange(16_000) / 16_000
RANDOM = np.random.default_rng(0)
SOUNDS = {
    "a word": 9000 * np.sin(2 * np.pi * 300 * TIME * (1 + TIME)) * np.sin(np.pi * TIME) ** 4,
    "noise": RANDOM.normal(0, 5000, 16_000),
    "quiet noise": RANDOM.normal(0, 2, 16_000),
    "a square wave": np.where(np.arange(16_000) % 64 < 32, 32767, -32768),
    "a faint tone": 3 * np.sin(2 * np.pi * 500 * TIME),
    "a click": 30_000.0 * (np.arange(16_000) == 777),
    "the lowest number": np.full(16_000, -32768.0),
    "half a second": RANDOM.normal(0, 900, 16_000) * (TIME < 0.5),
    "one bit": 1.0 * (np.arange(16_000) == 5),
    "silence": np.zeros(16_000),
}


def whole(sound: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(sound), -32768, 32767).astype(np.int16)


def scaled(levels: np.ndarray) -> np.ndarray:
    """Levels as the spectrogram of training: 0 to 1."""
    loudest = int(levels.max())
    below = np.where((levels == 0) | (loudest < SILENT_BELOW), RANGE, np.minimum(loudest - levels.astype(int), RANGE))
    return 1 - below / RANGE


@pytest.mark.parametrize("name", SOUNDS)
def test_it_is_the_spectrogram_of_training_within_a_thousandth(name: str) -> None:
    sound = whole(SOUNDS[name])
    assert np.abs(scaled(FrontEnd().levels(sound)) - spectrogram(sound / 32768)).max() < 1e-3


@pytest.mark.parametrize(("bands", "window", "hop"), [(16, 1024, 1024), (20, 512, 256), (40, 2048, 500), (8, 64, 64)])
def test_of_other_sizes_too(bands: int, window: int, hop: int) -> None:
    front_end, sound = FrontEnd(bands, window=window, hop=hop), whole(SOUNDS["a word"] + SOUNDS["quiet noise"])
    expected = spectrogram(sound / 32768, bands, window, hop)
    assert front_end.levels(sound).shape == expected.shape == (bands, front_end.frames)
    # Triangles narrower than a frequency of the transform may be empty in both.
    assert np.abs(scaled(front_end.levels(sound)) - expected).max() < 2e-3


def test_the_level_of_a_tone_by_hand() -> None:
    """A sine of amplitude a on frequency k under a Hann window: |X| = a N / 4 at k, and half of it beside."""
    sound = whole(16_384 * np.sin(2 * np.pi * 32 * np.arange(16_000) / 1024))
    power = 16_384**2 * mel_filters()[:, [31, 32, 33]] @ np.array([128.0, 256.0, 128.0]) ** 2
    band = int(power.argmax())
    assert FrontEnd().levels(sound)[band, 10] == pytest.approx(1024 * (np.log2(power[band]) + 23), abs=2)


def test_twice_as_loud_is_two_octaves_of_power_to_the_bit() -> None:
    front_end, sound = FrontEnd(), whole(SOUNDS["a word"] / 4 + SOUNDS["quiet noise"])
    softer, louder = front_end.levels(sound).astype(int), front_end.levels(2 * sound).astype(int)
    assert np.array_equal(louder[softer > 0], softer[softer > 0] + 2048)


def test_a_stream_has_the_same_frames_as_a_sound_away_from_its_end() -> None:
    front_end, sound = FrontEnd(), whole(SOUNDS["noise"])
    levels = front_end.levels(sound)
    assert np.array_equal(front_end.stream_levels(sound), levels[:, :31])
    assert np.array_equal(front_end.stream_levels(np.append(sound, np.zeros(384, np.int16))), levels)
    assert front_end.stream_levels(sound[:511]).shape == (32, 0)
    assert front_end.stream_levels(sound[:512]).shape == (32, 1)


def test_logarithms_are_rounded_down() -> None:
    numbers = np.concatenate([[1, 2, 3, 1023, 2**31, 2**32 - 1, 2**32, 2**62], RANDOM.integers(1, 2**62, 500)])
    exact = 1024 * np.log2(numbers.astype(np.longdouble))
    found = _log2(numbers)
    assert np.all((found <= exact + 1e-9) & (found > exact - 1.001))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 1000}, "a window of 1000 samples; expected a power of 2"),
        ({"window": 512, "hop": 600}, "frames of 512 samples every 600"),
        ({"bands": 200}, "200 bands of 1024 samples; expected 1 to 128"),
    ],
)
def test_what_cannot_be_computed(settings: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        FrontEnd(**settings).check()


@pytest.mark.parametrize("sound", [np.zeros(16_000), np.zeros(8000, np.int16)])
def test_other_numbers_than_samples(sound: np.ndarray) -> None:
    with pytest.raises(UserError, match="expected int16 of 16,000 samples"):
        FrontEnd().levels(sound)
