import itertools
from pathlib import Path

import numpy as np
import pytest
from data_files import aedat, own_cache, put, wav  # noqa: F401

import bsnn
from bsnn import UserError
from bsnn.data import DataSpec, audio, find, folder, load, speech_commands
from bsnn.data.audio import decode_sound, fit, mel_filters, mel_power, read_sound, sound_seconds, spectrogram
from bsnn.data.description import describe
from bsnn.data.folders import folder_files
from bsnn.data.speech import official_split, sound_decoder
from bsnn.deploy.files import read_input

SECOND = np.arange(16_000) / 16_000
TONE = 0.5 * np.sin(2 * np.pi * 440 * SECOND)


@pytest.mark.parametrize(
    ("bits", "floating", "extensible", "tolerance"),
    [
        (8, False, False, 1e-2),
        (16, False, False, 1e-4),
        (24, False, False, 1e-6),
        (32, False, False, 1e-7),
        (32, True, False, 1e-7),
        (64, True, False, 1e-12),
        (16, False, True, 1e-4),
        (24, False, True, 1e-6),
        (32, True, True, 1e-7),
    ],
)
def test_every_depth(tmp_path, bits, floating, extensible, tolerance):
    content = wav(TONE, bits=bits, floating=floating, extensible=extensible)
    assert np.abs(read_sound(put(tmp_path / "a.wav", content)) - TONE).max() < tolerance


def test_codings_that_cannot_seek(tmp_path):
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.wav", TONE, 16_000, subtype="GSM610")
    assert np.abs(read_sound(tmp_path / "a.wav") - TONE)[500:].mean() < 0.05


def test_a_sound_of_hours_is_refused(tmp_path, monkeypatch):
    path = put(tmp_path / "a.wav", wav(TONE))
    monkeypatch.setattr(audio, "_MAX_SECONDS", 1)
    assert len(read_sound(path)) == 16_000
    with pytest.raises(UserError, match=r"b.wav: 2 s long; at most 1 s are read"):
        read_sound(put(tmp_path / "b.wav", wav(np.tile(TONE, 2))))


def test_lengths_of_files(tmp_path):
    assert sound_seconds(put(tmp_path / "a.wav", wav(TONE[:4000], rate=8000))) == 0.5
    with pytest.raises(UserError, match=r"b.wav: not a sound file"):
        sound_seconds(put(tmp_path / "b.wav", b"<html>"))


def test_chunks_before_the_sound(tmp_path):
    content = wav(TONE, before=b"LIST\x05\0\0\0INFO!\0" + b"fact\x04\0\0\0\0\0\0\0")
    assert np.abs(read_sound(put(tmp_path / "a.wav", content)) - TONE).max() < 1e-4


def test_channels_are_averaged(tmp_path):
    stereo = np.stack([TONE, np.zeros_like(TONE)], axis=1).ravel()
    read = read_sound(put(tmp_path / "a.wav", wav(stereo, channels=2)))
    assert np.abs(read - TONE / 2).max() < 1e-4


@pytest.mark.parametrize("rate", [8000, 11_025, 22_050, 44_100, 48_000, 16_001])
def test_rates_are_resampled(tmp_path, rate):
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)
    read = read_sound(put(tmp_path / "a.wav", wav(tone, rate=rate)))
    assert len(read) == 16_000
    # The filter needs some samples at both ends.
    assert np.abs(read - TONE)[200:-200].max() < 5e-3


def test_tones_above_8_khz_are_filtered(tmp_path):
    tone = 0.5 * np.sin(2 * np.pi * 15_000 * np.arange(48_000) / 48_000)
    read = read_sound(put(tmp_path / "a.wav", wav(tone, rate=48_000)))
    assert np.abs(read[500:-500]).max() < 0.01


def test_the_length_is_one_second():
    assert fit(np.ones(10), 16_000).sum() == 10
    assert fit(np.ones(10), 16_000)[:10].all()
    assert fit(np.arange(20_000), 16_000)[0] == 2000


def test_filters_are_triangles_of_equal_area():
    filters = mel_filters()
    assert filters.shape == (32, 513)
    peaks = filters.argmax(1)
    assert np.all(np.diff(peaks) > 0)
    # Area 1 over frequency; narrow triangles are sampled too coarsely to show it.
    areas = filters.sum(1) * 16_000 / 1024
    assert np.all(np.abs(areas[8:] - 1) < 0.05)


def test_power_of_a_tone_by_hand():
    # A sine of amplitude a in the middle of a bin k under a Hann window: |X| = a N / 4 at k, half beside it.
    bins = np.array([31, 32, 33])
    tone = np.sin(2 * np.pi * 32 * 16_000 / 1024 * SECOND)
    power = np.array([128.0, 256.0, 128.0]) ** 2
    expected = mel_filters()[:, bins] @ power
    assert np.allclose(mel_power(tone)[:, 10], expected, rtol=1e-9, atol=1e-9)


def test_power_agrees_with_librosa():
    librosa = pytest.importorskip("librosa")
    noise = np.random.default_rng(0).normal(size=16_000)
    theirs = librosa.feature.melspectrogram(y=noise, sr=16_000, n_fft=1024, hop_length=512, n_mels=32)
    assert np.allclose(mel_power(noise), theirs, rtol=1e-6)


def test_spectrograms_span_80_decibels(tmp_path):
    sound = decode_sound(put(tmp_path / "a.wav", wav(TONE)))
    assert (sound.shape, sound.dtype) == ((1, 32, 32), np.float32)
    assert sound.max() == 1
    assert sound.min() == 0
    quiet = spectrogram(TONE * 1e-3)
    assert np.allclose(quiet, spectrogram(TONE), atol=1e-5)
    power = mel_power(TONE)
    decibels = 10 * np.log10(power[5, 7] / power.max())
    assert spectrogram(TONE)[5, 7] == pytest.approx(max(decibels, -80) / 80 + 1, abs=1e-6)


@pytest.mark.parametrize("size", range(16, 41))
def test_a_spectrogram_of_another_size_is_the_same_sound(size: int, tmp_path) -> None:
    noise = np.random.default_rng(size).normal(size=16_000)
    shape, decode = sound_decoder(size)
    found = decode(put(tmp_path / "a.wav", wav(np.clip(noise / 8, -1, 1))))
    assert found.shape == shape == (1, size, size)
    # Frames begin where the size says, and bands share the whole range of frequencies.
    hop = 16_384 // size
    last = (size - 1) * hop
    assert 16_000 - hop < last <= 16_000
    power = mel_power(noise, size, hop=hop)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(1024) / 1024)
    frame = np.pad(noise, 512)[last : last + 1024] * hann
    assert np.allclose(power[:, -1], mel_filters(size) @ np.abs(np.fft.rfft(frame)) ** 2)
    assert (mel_filters(size).sum(1) > 0).all()


def test_a_network_of_another_size_reads_sounds_as_its_training_set_did(tmp_path) -> None:
    write_speech(tmp_path)
    data = speech_commands(tmp_path, "val", size=20)
    spec = DataSpec.of(data)
    assert (data.shape, spec.decode) == ((1, 20, 20), {"hop": 819})
    path = tmp_path / "left" / "00000001_nohash_0.wav"
    bsnn.export(bsnn.models.vgg((4, 4), num_classes=2, in_channels=1), tmp_path / "model.bsnn", spec=spec)
    taken = bsnn.load(tmp_path / "model.bsnn").artifact.input
    read = read_input(path, taken, 4) / 2**taken.fraction_bits
    np.testing.assert_allclose(read, (data.read(0) - 0.5) / 0.5, atol=2e-3)


@pytest.mark.parametrize("samples", [np.zeros(16_000), np.zeros(3), np.full(16_000, 1e-9)])
def test_silence_is_zero_not_an_error(samples):
    assert not spectrogram(fit(samples, 16_000)).any()


def test_a_short_sound_is_padded(tmp_path):
    sound = decode_sound(put(tmp_path / "a.wav", wav(TONE[:800])))
    assert sound[0, :, 0].any()
    assert not sound[0, :, 10:].any()


WHOLE = wav(TONE)
BROKEN = {
    "empty": (b"", "not a sound file"),
    "text": (b"this is no sound", "not a sound file"),
    "cut in the sound": (WHOLE[:-100], "its head says 32,000 bytes of sound, and 31,900 are there"),
    "cut in the head": (WHOLE[:30], "without sound data"),
    "other RIFF": (b"RIFF\x04\0\0\0AVI ", "a RIFF file of kind b'AVI '"),
    "no samples": (wav([]), "holds no samples"),
    "no length": (WHOLE.replace(b"data\0\x7d", b"data\0\0"), "its head says no sound, and 32,000 bytes follow"),
    "no filling byte": (wav(TONE, before=b"LIST\x05\0\0\0INFO!"), "a chunk of odd length lacks its filling byte"),
    "not a number": (wav([np.nan, 1], bits=32, floating=True), "no numbers"),
    "rate zero": (wav(TONE, rate=0), "rate.wav|not a sound file|rate of"),
    "rate absurd": (wav(TONE, rate=7), "a rate of 7 Hz"),
    "unknown coding": (WHOLE.replace(b"\x01\0\x01\0", b"\x99\x99\x01\0", 1), "not a sound file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_sounds_are_refused_by_name(tmp_path, name):
    content, message = BROKEN[name]
    with pytest.raises(UserError, match=message) as caught:
        decode_sound(put(tmp_path / "rate.wav", content))
    assert "rate.wav" in str(caught.value)


def write_speech(root: Path, lists: bool = True) -> Path:
    for word in ("left", "right"):
        for speaker in range(8):
            put(root / word / f"{speaker:08x}_nohash_0.wav", wav(TONE[: 4000 + speaker]))
    put(root / "_background_noise_" / "hum.wav", wav(TONE))
    put(root / "README.md", b"text")
    if lists:
        put(root / "validation_list.txt", b"left/00000001_nohash_0.wav\nright/00000001_nohash_0.wav\n")
        put(root / "testing_list.txt", b"left/00000002_nohash_0.wav\n\nstop/0000_nohash_0.wav\n")
    return root


def test_speech_commands_follow_the_lists(tmp_path):
    write_speech(tmp_path)
    train, val, test = (speech_commands(tmp_path, split) for split in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (13, 2, 1)
    assert train.classes == test.classes == ("left", "right")
    assert val.labels.tolist() == [0, 1]
    assert (train.kind, train.shape, train.mean, train.std) == ("sound", (1, 32, 32), (0.5,), (0.5,))


def test_speech_commands_without_lists_keep_speakers_apart(tmp_path):
    write_speech(tmp_path, lists=False)
    expected = [official_split(Path(f"{speaker:08x}_nohash_0.wav")) for speaker in range(8)]
    assert len(speech_commands(tmp_path, "train")) == 2 * expected.count("train")


def test_words_one_level_below_the_lists(tmp_path):
    write_speech(tmp_path)
    (tmp_path / "audio").mkdir()
    for name in ("left", "right", "_background_noise_"):
        (tmp_path / name).rename(tmp_path / "audio" / name)
    for data in (load(tmp_path, "val"), speech_commands(tmp_path, "val")):
        assert (data.name, data.classes, data.labels.tolist()) == ("speech_commands", ("left", "right"), [0, 1])


def test_endings_in_capitals(tmp_path):
    for path in sorted(write_speech(tmp_path, lists=False).glob("*/*.wav")):
        path.rename(path.with_suffix(".WAV"))
    assert find(tmp_path).name == "speech_commands"


def test_own_splits_beside_the_noise_stay_own_splits(tmp_path):
    for split, count in (("train", 4), ("val", 3)):
        for word in ("left", "right"):
            for number in range(count):
                put(tmp_path / split / word / f"{number}.wav", wav(TONE[:900]))
    put(tmp_path / "_background_noise_" / "hum.wav", wav(TONE))
    assert (find(tmp_path).name, find(tmp_path).splits) == ("folder", ("train", "val"))
    assert load(tmp_path, "val").classes == ("left", "right")


def test_a_list_beside_other_data_means_nothing(tmp_path):
    for name in ("cat/1.aedat", "cat/2.aedat", "dog/1.aedat", "dog/2.aedat"):
        put(tmp_path / name, aedat([(1, 1, 1, 1)]))
    put(tmp_path / "testing_list.txt", b"cat/1.aedat\n")
    assert find(tmp_path).name == "folder"


def test_speech_commands_are_not_read_as_own_sounds(tmp_path):
    with pytest.raises(UserError, match=r"this is Speech Commands.*Read it by its own name.*by speaker: --group 1"):
        folder(write_speech(tmp_path))


def test_some_words_of_speech_commands_can_be_split_by_speaker(tmp_path):
    """Of few speakers, none may be of the official test split; their names still keep them apart."""
    for word, speaker, number in itertools.product(("left", "right"), ("00b01445", "00b01446", "00b01447"), range(2)):
        put(tmp_path / word / f"{speaker}_nohash_{number}.wav", wav(TONE[:900]))
    with pytest.raises(UserError, match=r"no file belongs to the (val|test) split of Speech Commands.*--group 1"):
        describe(tmp_path)
    assert describe(tmp_path, group="1")["name"] == "folder"
    with pytest.raises(UserError, match=r"speakers must not be in two splits.*--group 1"):
        describe(tmp_path, group="3")  # the number of the recording, which each speaker has
    speakers = [
        {path.name.split("_")[0] for path in folder_files(tmp_path, s, group="1").paths} for s in ("train", "test")
    ]
    assert all(speakers)
    assert not speakers[0] & speakers[1]


def test_the_rule_of_the_official_lists():
    # One speaker of the published validation list, and one who is in neither list.
    names = {"099d52ad_nohash_0.wav": "val", "00b01445_nohash_0.wav": "train"}
    assert {name: official_split(Path("word") / name) for name in names} == names


def test_speech_commands_mistakes(tmp_path):
    root = write_speech(tmp_path)
    with pytest.raises(UserError, match="no split 'dev'"):
        speech_commands(root, "dev")
    put(root / "testing_list.txt", b"left/00000001_nohash_0.wav\n")
    with pytest.raises(UserError, match="named in both lists"):
        speech_commands(root)
    put(root / "testing_list.txt", b"left/ffffffff_nohash_0.wav\n")
    with pytest.raises(UserError, match=r"ffffffff_nohash_0.wav: named in line 1 of testing_list.txt"):
        speech_commands(root)
    put(root / "testing_list.txt", b"\x00\x01garbage\n")
    with pytest.raises(UserError, match=r"testing_list.txt: line 1"):
        speech_commands(root)
    put(root / "testing_list.txt", b"")
    with pytest.raises(UserError, match="no file belongs to the test split"):
        speech_commands(root, "test")
    (root / "stop").mkdir()
    with pytest.raises(UserError, match=r"stop: the class is empty"):
        speech_commands(root)
