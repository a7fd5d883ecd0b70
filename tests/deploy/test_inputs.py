"""What the engine takes: raw numbers in any form, normalized ones if it is told so; and what it refuses to misread."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bsnn
from bsnn.data.spec import DataSpec
from bsnn.deploy.engine import Engine

DIGITS = bsnn.data.digits("test")
RAW = DIGITS.samples[:4]
SOUND = DataSpec("words", "sound", ("a", "b"), (1, 8, 8), (0.5,), (0.5,), 1.0)


@pytest.fixture(scope="module")
def digits() -> Engine:
    return bsnn.load("digits")


def exported(folder: Path, **arguments: Any) -> Engine:
    net = bsnn.models.vgg((4, 4), in_channels=1, num_classes=2)
    return bsnn.load(bsnn.export(net, folder / "model.bsnn", **arguments).path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return exported(tmp_path_factory.mktemp("sound"), spec=SOUND)


@pytest.fixture(scope="module")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return exported(tmp_path_factory.mktemp("unknown"), input_shape=(1, 8, 8))


@pytest.mark.parametrize("dtype", [np.int16, np.int64, np.uint16, np.float32, np.float64])
def test_raw_numbers_mean_the_same_in_every_type(digits: Engine, dtype: Any) -> None:
    assert np.array_equal(digits.outputs(RAW.astype(dtype)), digits.outputs(RAW))


@pytest.mark.parametrize("x", [RAW[0], RAW[0, 0], RAW[:1, 0]], ids=lambda x: str(x.shape))
def test_axes_of_length_one_may_be_left_out(digits: Engine, x: np.ndarray) -> None:
    assert np.array_equal(digits.outputs(x), digits.outputs(RAW[:1]))
    assert np.array_equal(digits.outputs(RAW[:, 0]), digits.outputs(RAW))


def test_normalized_numbers_are_those_of_training(digits: Engine) -> None:
    spec = digits.artifact.input
    reals = spec.normalize(DIGITS.samples)
    assert np.array_equal(reals, (DIGITS.samples / np.float32(16) - np.float32(0.3054)) / np.float32(0.3761))
    integers = digits.integers(DIGITS.samples)
    assert np.abs(integers.astype(int) - digits.integers(reals, normalized=True)).max() <= 1
    assert (digits.predict(reals, normalized=True) == DIGITS.labels).mean() > 0.98
    channels_first = np.moveaxis(integers[0], -1, 1)
    assert np.array_equal(digits.integers(channels_first, normalized=True), integers), "the network's own integers"


def test_a_spectrogram_is_normalized_by_the_model(sound: Engine) -> None:
    raw = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
    assert np.array_equal(sound.outputs(raw), sound.outputs((raw - 0.5) / 0.5, normalized=True))
    assert np.array_equal(sound.integers(np.zeros((1, 8, 8)))[0, 0, 0, 0], [-(2**sound.artifact.input.fraction_bits)])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 3, 8, 8), np.uint8), r"received shape \(2, 3, 8, 8\); expected \[B, 1, 8, 8\]"),
        (np.zeros((2, 8, 8, 1), np.uint8), r"Channels come first: give np.moveaxis\(x, -1, -3\)"),
        (np.zeros((1, 1, 1, 1, 8, 8), np.uint8), "expected"),
        (np.zeros((0, 1, 8, 8), np.uint8), "at least one sample"),
        (np.full((2, 1, 8, 8), np.nan, np.float32), "NaN"),
        (np.zeros((2, 1, 8, 8), bool), "received bool; expected numbers"),
        (RAW * np.uint8(15), r"received uint8 from 0 to 240; expected raw numbers from 0 to 16.* x \* \(16 / 255\)"),
        (RAW * np.int16(2), "received int16 from 0 to 32; expected raw numbers from 0 to 16"),
        (RAW.astype(np.float32) / 16, "received float32 up to 1; expected raw numbers from 0 to 16"),
        ((RAW / 16 - 0.3) / 0.4, "If they are normalized as in training, say so: normalized=True, or --normalized"),
        (RAW.astype(np.int64) - 20, "received int64 from -20"),
    ],
)
def test_what_the_model_would_misread_is_refused(digits: Engine, x: np.ndarray, message: str) -> None:
    for take in (digits.predict, digits.outputs, digits.step):
        with pytest.raises(bsnn.UserError, match=message):
            take(x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (RAW.astype(np.float32), "received normalized numbers from 0 to 16; expected -0.812.* to 1.84"),
        ((RAW / 16 - 0.5) / 0.5, r"which are \(raw / 16 - mean\) / std with a mean of 0.3054 and a std of 0.3761"),
        (RAW, "received uint8 as normalized numbers; expected floats"),
    ],
)
def test_numbers_that_are_normalized_otherwise_are_refused(digits: Engine, x: np.ndarray, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        digits.predict(x, normalized=True)


def test_an_image_of_zeros_is_black_in_any_type(digits: Engine) -> None:
    black = np.zeros((1, 1, 8, 8))
    assert np.array_equal(digits.outputs(black), digits.outputs(black.astype(np.uint8)))


def test_a_spectrogram_that_is_normalized_already_is_refused(sound: Engine) -> None:
    raw = np.random.default_rng(0).random((3, 1, 8, 8), np.float32)
    with pytest.raises(bsnn.UserError, match="normalized=True"):
        sound.predict((raw - 0.5) / 0.5)
    with pytest.raises(bsnn.UserError, match="received int16, which has no meaning to this network"):
        sound.predict((raw * 32767).astype(np.int16))


def test_a_model_that_knows_its_shape_alone_takes_floats_as_they_are(unknown: Engine) -> None:
    x = np.random.default_rng(0).normal(size=(3, 1, 8, 8))
    assert np.array_equal(unknown.outputs(x), unknown.outputs(x, normalized=True))
    for wrong, message in ((x * 100, "the network's integers hold ±15.9998"), (RAW, "does not say how to normalize")):
        with pytest.raises(bsnn.UserError, match=message):
            unknown.predict(wrong)


def test_a_network_of_no_known_data_takes_sequences_of_any_length(unknown: Engine) -> None:
    frames, state = np.random.default_rng(0).normal(size=(7, 2, 1, 8, 8)), None
    total = 0
    for frame in frames:
        outputs, state = unknown.step(frame, state)
        total = total + outputs
    assert np.array_equal(unknown.outputs(frames), total)


EVENTS = (5, 3, 2, 34, 34)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((10, *EVENTS[1:]), r"received shape \(10, 3, 2, 34, 34\); expected \[5, B, 2, 34, 34\].* time_steps=5"),
        ((3, 5, *EVENTS[2:]), r"received shape \(3, 5, 2, 34, 34\); expected \[5, B, 2, 34, 34\], time first"),
        ((5, *EVENTS[2:]), r"a single one is x\[:, None\]. Give any other number of frames one by one to step"),
        ((2, 34), r"received shape \(2, 34\); expected \[T, B, 2, 34, 34\]\.$"),
    ],
)
def test_recordings_have_as_many_frames_as_in_training(shape: tuple[int, ...], message: str) -> None:
    engine = bsnn.load("nmnist")
    assert engine.outputs(np.zeros(EVENTS, np.uint8)).shape == (3, 10)
    with pytest.raises(bsnn.UserError, match=message):
        engine.predict(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("shape", [(10,), (1, 5), (1, 1, 10)])
def test_what_is_rejected_are_outputs(digits: Engine, shape: tuple[int, ...]) -> None:
    with pytest.raises(bsnn.UserError, match=r"rejects: received shape .*; expected \[B, 10\], what outputs returns"):
        digits.rejects(np.zeros(shape, np.int64))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ("photo.jpg", r"received 'photo\.jpg'; expected an array of numbers"),
        (Path("photo.jpg"), "expected an array of numbers"),
        (None, "received None; expected an array"),
        ([[1, 2], [3]], "rows of unequal length"),
        ({"x": 1}, "received object; expected numbers"),
    ],
)
def test_what_is_no_array_is_refused(digits: Engine, x: Any, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=f"input: .*{message}|input: {message}"):
        digits.predict(x)


def test_events_up_to_one_are_refused_as_pictures_are() -> None:
    """An event counts eight, so numbers up to 1 are those of another scale."""
    engine = bsnn.load("nmnist")
    frames = np.random.default_rng(0).integers(0, 3, (5, 1, 2, 34, 34)) * 8.0
    engine.outputs(frames)
    engine.outputs(0 * frames)
    with pytest.raises(bsnn.UserError, match=r"would be next to no events. If 1 is the largest, give x \* 255"):
        engine.outputs(frames / 16)
