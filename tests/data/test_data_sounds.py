"""Augmentation of sounds, and batches of augmented sounds."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import own_cache, put, wav, write_tones  # noqa: F401

from bsnn import UserError
from bsnn.data import Augmentation, Loader, SoundAugmentation, augmented_sounds, cache as cache_module, folder
from bsnn.data.audio import NUM_SAMPLES, decode_sound
from bsnn.data.sounds import AugmentedSounds, moved

EVERYTHING = SoundAugmentation(time_shift=0.2, speed_change=0.1, gain_change=10, noise=0.5, background=0.25)
# Whole 16-bit samples, far from clipping.
WAVE = np.rint(3000 * np.sin(np.arange(NUM_SAMPLES) / 7)) / 32768


def drawn(settings: SoundAugmentation, count: int = 200) -> list[np.ndarray]:
    return [settings.apply(WAVE, np.random.default_rng(number)) for number in range(count)]


def loudness(wave: np.ndarray) -> float:
    return float(np.sqrt(np.mean(wave**2)))


def test_nothing_is_done_if_all_is_off() -> None:
    assert not SoundAugmentation()
    np.testing.assert_array_equal(SoundAugmentation().apply(WAVE, np.random.default_rng(0)), WAVE)


def test_a_shift_moves_samples_and_uncovers_silence() -> None:
    shifts = []
    for number, wave in enumerate(drawn(SoundAugmentation(time_shift=0.1))):
        shift = round(np.random.default_rng(number).uniform(-1, 1) * 1600)
        expected = np.zeros(NUM_SAMPLES)
        expected[max(shift, 0) : NUM_SAMPLES + min(shift, 0)] = WAVE[max(-shift, 0) : NUM_SAMPLES - max(shift, 0)]
        np.testing.assert_array_equal(wave, expected)
        shifts.append(shift)
    assert min(shifts) < -1400
    assert max(shifts) > 1400


def test_a_faster_sound_has_a_higher_pitch() -> None:
    tone = np.sin(np.arange(NUM_SAMPLES) * (2 * np.pi * 1000 / 16_000))
    for speed in (0.9, 1.0, 1.1):
        peak = np.abs(np.fft.rfft(moved(tone, 0, speed))).argmax()  # one bin per Hz
        assert abs(peak - 1000 * speed) <= 1


def test_noise_is_no_louder_than_said() -> None:
    ratios = np.array([loudness(wave - WAVE) / loudness(WAVE) for wave in drawn(SoundAugmentation(noise=0.3))])
    assert ratios.max() <= 0.3 * 1.001
    assert 0.15 < (ratios == 0).mean() < 0.35
    decibels = 20 * np.log10(ratios[ratios > 0] / 0.3)
    np.testing.assert_allclose(np.quantile(decibels, [0, 0.25, 0.5, 0.75]), [-30, -22.5, -15, -7.5], atol=3)


def test_a_gain_is_clipped_and_rounded_as_a_microphone_does() -> None:
    waves = drawn(SoundAugmentation(gain_change=40))
    for wave in waves:
        np.testing.assert_array_equal(wave * 32768, np.rint(wave * 32768))
    peaks = [np.abs(wave).max() for wave in waves]
    assert max(peaks) == 1.0
    assert min(peaks) < 0.0015


def test_a_switch_leaves_the_other_draws_alone() -> None:
    for number in range(5):
        rngs = [np.random.default_rng(number) for _ in range(2)]
        shifted, both = (
            settings.apply(WAVE, rng)
            for settings, rng in zip(
                (SoundAugmentation(time_shift=0.1), SoundAugmentation(time_shift=0.1, noise=1e-9)), rngs, strict=True
            )
        )
        np.testing.assert_array_equal(shifted, both)


def test_background_alone_is_noise_of_any_level_or_silence() -> None:
    waves = [SoundAugmentation().alone(np.random.default_rng(number)) for number in range(400)]
    silent = sum(not wave.any() for wave in waves)
    assert 30 < silent < 90
    levels = [20 * np.log10(loudness(wave)) for wave in waves if wave.any()]
    assert min(levels) < -70
    assert max(levels) > -6


@pytest.fixture
def tones(tmp_path: Path) -> AugmentedSounds:
    return augmented_sounds(folder(write_tones(tmp_path)), EVERYTHING)


def test_sounds_are_read_as_they_are_without_a_generator(tones: AugmentedSounds) -> None:
    assert (len(tones), tones.shape, tones.classes) == (16, (1, 32, 32), ("high", "low"))
    for index in range(3):
        np.testing.assert_array_equal(tones.read(index), decode_sound(tones.paths[index]))
        again = tones.read(index, np.random.default_rng(5))
        assert not np.array_equal(again, tones.read(index))
        np.testing.assert_array_equal(again, tones.read(index, np.random.default_rng(5)))


def batches(data: AugmentedSounds, epoch: int = 1, start: int = 0, **settings: Any) -> list[torch.Tensor]:
    loader = Loader(data, 4, augment=Augmentation(1, False, 0), seed=3, **settings)
    return [tensor for batch in loader.epoch(epoch, start) for tensor in batch]


def test_batches_are_a_function_of_seed_epoch_and_place(tones: AugmentedSounds) -> None:
    whole = batches(tones)
    for other, expected in ((batches(tones, start=2), whole[4:]), (batches(tones, workers=1), whole)):
        assert all(map(torch.equal, other, expected))
    assert not torch.equal(batches(tones, epoch=2)[0], whole[0])
    ranks = [Loader(tones, 2, augment=None, seed=3, rank=rank, world_size=2) for rank in range(2)]
    one = next(Loader(tones, 4, augment=None, seed=3).epoch(1))
    parts = [next(loader.epoch(1)) for loader in ranks]
    for place, (inputs, labels) in enumerate(parts):
        assert torch.equal(inputs, one[0][place::2])
        assert torch.equal(labels, one[1][place::2])


def test_background_belongs_to_all_classes_alike(tones: AugmentedSounds) -> None:
    loader = Loader(tones, 16, seed=0)
    labels = torch.cat([labels for epoch in range(20) for _, labels in loader.epoch(epoch)])
    assert {tuple(row) for row in labels.tolist()} == {(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)}
    assert 50 < int((labels == 0.5).all(dim=1).sum()) < 110  # a quarter of 320
    assert next(loader.ordered())[1].dtype == torch.int64


def test_sounds_that_do_not_fit_in_memory_are_read_from_their_files(tmp_path: Path, monkeypatch) -> None:
    root = write_tones(tmp_path)
    kept = augmented_sounds(folder(root), EVERYTHING)
    monkeypatch.setattr(cache_module, "MEMORY_LIMIT", 0)
    streamed = augmented_sounds(folder(root), EVERYTHING)
    assert kept.waves is not None
    assert streamed.waves is None
    for one, other in islice(zip(batches(kept), batches(streamed), strict=True), 4):
        assert torch.equal(one, other)


def test_noise_comes_from_a_folder(tmp_path: Path) -> None:
    put(tmp_path / "hum.wav", wav(0.1 * np.sin(np.arange(5000) * (2 * np.pi * 50 / 16_000))))
    settings = SoundAugmentation(noise=0.5, noise_folder=str(tmp_path))
    noise = max((wave - WAVE for wave in drawn(settings, 5)), key=loudness)
    assert abs(int(np.abs(np.fft.rfft(noise)).argmax()) - 50) <= 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, r"holds no \.wav or \.flac files; expected some of noise"),
        ({"a.wav": wav([0.0] * 100)}, r"a\.wav is silent; expected noise\. Remove the file"),
        ({"a.wav": b"no sound"}, r"a\.wav: not a sound file"),
    ],
)
def test_a_folder_without_noise_is_refused(content: dict[str, bytes], message: str, tmp_path: Path) -> None:
    place = tmp_path / "noise"
    place.mkdir()
    for name, data in content.items():
        put(place / name, data)
    data = folder(write_tones(tmp_path / "tones", 5))
    with pytest.raises(UserError, match=message):
        augmented_sounds(data, SoundAugmentation(noise=0.5, noise_folder=str(place)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"time_shift": -0.1}, r"time_shift: received -0\.1; expected a number, 0 to 1"),
        ({"speed_change": 0.6}, r"speed_change: received 0\.6; expected a number, 0 to 0\.5"),
        ({"gain_change": float("nan")}, "gain_change: received nan; expected a number, 0 to 96"),
        ({"noise": float("inf")}, "noise: received inf; expected a number, at least 0"),
        ({"background": 1.0}, r"background: received 1\.0; expected a number, 0 to 0\.9"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SoundAugmentation(**settings)


def test_a_mirror_image_of_a_sound_is_refused(tones: AugmentedSounds) -> None:
    with pytest.raises(UserError, match="flip: received yes for folder, whose samples are sounds; a mirror image of a"):
        Loader(tones, 4, augment=Augmentation())
    with pytest.raises(UserError, match="AutoAugment's policy is for RGB bytes, and folder has sound samples"):
        Loader(tones, 4, augment=Augmentation(flip=False, cutout=0, autoaugment=True))


def test_augmented_sounds_have_the_size_of_their_set(tmp_path: Path) -> None:
    files = folder(write_tones(tmp_path / "tones"), "train", size=20)
    data, rng = augmented_sounds(files, SoundAugmentation(noise=0.3)), np.random.default_rng(0)
    assert data.read(0, rng).shape == data.read_background(rng).shape == data.shape == (1, 20, 20)
