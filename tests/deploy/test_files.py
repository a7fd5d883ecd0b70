"""What a deployed network makes of files: which numbers enter it, and what it says of each sample."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import nmnist_bin, wav
from PIL import Image

import bsnn
from bsnn.data.audio import decode_sound
from bsnn.data.events import decode_events
from bsnn.deploy.engine import Engine
from bsnn.deploy.files import batches, evaluate_model, held_out_samples, held_out_set, predict_files, read_input
from bsnn.deploy.schema import InputSpec


@pytest.fixture(scope="module")
def engine() -> Engine:
    return bsnn.load("digits")


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return bsnn.data.digits("test").samples[:3]


def test_arrays_stay_as_they_are(engine: Engine, tmp_path: Path) -> None:
    for values in (np.linspace(-2, 300, 64).reshape(1, 1, 8, 8), np.zeros((0, 1, 8, 8), np.int64)):
        np.save(tmp_path / "x.npy", values)
        read = read_input(tmp_path / "x.npy", engine.artifact.input, 4)
        assert read.dtype == values.dtype
        assert np.array_equal(read, values)


def test_other_arrays_are_refused(engine: Engine, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([True]))
    with pytest.raises(bsnn.UserError, match="holds bool"):
        read_input(tmp_path / "x.npy", engine.artifact.input, 4)
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-1])
    with pytest.raises(bsnn.UserError, match="not a complete array"):
        read_input(tmp_path / "x.npy", engine.artifact.input, 4)


def test_arrays_are_raw_unless_told_otherwise(engine: Engine, images: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "raw.npy", images.astype(np.float32))
    np.save(tmp_path / "normalized.npy", engine.artifact.input.normalize(images))
    labels = engine.predict(images).tolist()
    for name, normalized in (("raw", False), ("normalized", True)):
        found = predict_files(engine, [tmp_path / f"{name}.npy"], normalized=normalized)["predictions"]
        assert [line["class"] for line in found] == labels
        with pytest.raises(bsnn.UserError, match="normalized"):
            predict_files(engine, [tmp_path / f"{name}.npy"], normalized=not normalized)


def test_a_picture_has_the_levels_of_gray_of_the_data(engine: Engine, tmp_path: Path) -> None:
    gray = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    Image.fromarray(gray).save(tmp_path / "x.png")
    read = read_input(tmp_path / "x.png", engine.artifact.input, 4)
    assert engine.artifact.input.divisor == 16
    assert np.array_equal(read.reshape(8, 8), np.rint(gray * (16 / 255)))


def test_a_sound_is_the_network_s_integers_and_events_are_frames(tmp_path: Path) -> None:
    wave = 0.3 * np.sin(np.arange(16_000) / 9)
    (tmp_path / "x.wav").write_bytes(wav(wave))
    sound = InputSpec("sound", (1, 32, 32), 8, 1.0, (0.5,), (2.0,), (1,), (0,), 0, {})
    read = read_input(tmp_path / "x.wav", sound, 4)
    np.testing.assert_allclose(read / 2**8, (decode_sound(tmp_path / "x.wav") - 0.5) / 2.0, atol=2**-8)
    (tmp_path / "x.bin").write_bytes(nmnist_bin([(3, 5, 10, 1), (3, 5, 20, 1), (30, 2, 900, 0)]))
    decode = {"sensor": [34, 34]}
    events = InputSpec("event", (2, 17, 17), 8, 32.0, (0.0, 0.0), (1.0, 1.0), (1, 1), (0, 0), 0, decode)
    frames = read_input(tmp_path / "x.bin", events, 3)
    assert (frames.dtype, frames.shape) == (np.uint8, (3, 2, 17, 17))
    assert np.array_equal(frames, decode_events(tmp_path / "x.bin", time_steps=3, sensor=(34, 34), size=(17, 17)))


def test_a_folder_is_read_by_name_and_shares_are_a_softmax_over_the_mean(
    engine: Engine, images: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "b.npy", images[:2])
    np.save(tmp_path / "a.npy", images[2:])
    (tmp_path / ".hidden").touch()
    (tmp_path / "folder").mkdir()
    made = predict_files(engine, [tmp_path])
    found, unreadable = made["predictions"], made["unreadable"]
    assert not unreadable
    logits = engine.outputs(images[[2, 0, 1]]) * engine.artifact.output_scale / engine.time_steps
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert [line["input"] for line in found] == [f"{tmp_path}/a.npy", f"{tmp_path}/b.npy[0]", f"{tmp_path}/b.npy[1]"]
    assert [line["class"] for line in found] == shares.argmax(1).tolist()
    assert [line["label"] for line in found] == [engine.classes[number] for number in shares.argmax(1)]
    np.testing.assert_allclose([line["share"] for line in found], shares.max(1))


def test_frames_of_an_array_count_as_its_time_steps(engine: Engine, images: np.ndarray, tmp_path: Path) -> None:
    """Still images are shown T times; frames `[T, B, ...]` as they are; the share is that of their mean."""
    frames = np.repeat(images[None, :1], 2 * engine.time_steps, axis=0)
    np.save(tmp_path / "frames.npy", frames)
    (line,) = predict_files(engine, [tmp_path / "frames.npy"])["predictions"]
    assert line["frames"] == 2 * engine.time_steps
    logits = engine.outputs(frames)[0] * engine.artifact.output_scale / (2 * engine.time_steps)
    assert line["share"] == pytest.approx(np.exp(logits).max() / np.exp(logits).sum())


def test_golden_vectors_come_from_many_classes(engine: Engine) -> None:
    """Test sets are often sorted by class, so the first samples would all be of one."""
    data = bsnn.data.digits("test")
    places = [int(np.flatnonzero((data.samples == one).all((1, 2, 3)))[0]) for one in held_out_samples(engine, None, 5)]
    assert len({int(data.labels[place]) for place in places}) == 5


def test_batches_are_the_whole_test_set_in_order(engine: Engine) -> None:
    data = held_out_set(engine, None)
    parts = list(batches(engine, data, 100))
    assert [len(labels) for _, labels in parts] == [100] * (len(data) // 100) + [len(data) % 100]
    assert np.array_equal(np.concatenate([x for x, _ in parts]), data.samples)
    assert np.array_equal(np.concatenate([labels for _, labels in parts]), data.labels)
    measured = evaluate_model(engine, None)
    assert measured["samples"] == len(data)
    assert measured["test_accuracy"] == (engine.predict(data.samples) == data.labels).mean()


def test_what_cannot_be_read_is_listed_even_if_it_is_all_there_is(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a[1].npy").write_bytes(b"no array")
    (tmp_path / "b.txt").write_text("text")
    names = [str(tmp_path / name) for name in ("a[1].npy", "b.txt", "empty", "none.png")]
    found = predict_files(engine, [Path(name) for name in names])
    assert (found["predictions"], found["files"]) == ([], 4)
    reasons = {line["input"]: line["reason"] for line in found["unreadable"]}
    assert set(reasons) == set(names)
    assert reasons[names[0]] == "not a complete array of numbers; expected a .npy file as np.save writes it."
    assert reasons[names[2]] == "holds no files; expected at least one input."
    with pytest.raises(bsnn.UserError, match=r"empty: holds no files"):
        predict_files(engine, [tmp_path / "empty"])


def test_a_folder_that_cannot_be_read_is_not_passed_over(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", bsnn.data.digits("test").samples[0])
    (tmp_path / "locked").mkdir()
    scan = os.scandir

    def locked(path: str) -> Any:
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", locked)
    found = predict_files(engine, [tmp_path])
    assert len(found["predictions"]) == 1
    reason = "cannot be read (Permission denied)"
    assert found["unreadable"] == [{"input": str(tmp_path / "locked"), "reason": reason}]


def test_sounds_far_beyond_full_scale_are_refused(tmp_path: Path) -> None:
    """A device would cut them to 16 bits; a little beyond is usual."""
    speech = bsnn.load("speech")
    for peak in (1.5, 100.0):
        wave = peak * np.sin(np.arange(16_000) / 5)
        (tmp_path / f"{peak:g}.wav").write_bytes(wav(wave, bits=32, floating=True))
    assert predict_files(speech, [tmp_path / "1.5.wav"])["predictions"]
    with pytest.raises(bsnn.UserError, match=r"100\.wav: reaches 100 times the full scale"):
        predict_files(speech, [tmp_path / "100.wav"])
