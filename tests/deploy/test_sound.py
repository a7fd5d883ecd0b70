"""From samples to a network's input: the exported C equals NumPy to the bit, and what cannot be heard is refused."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_files import put, wav
from sounds import CLASSES, InC, random_sounds, spotter

import bsnn
from bsnn.cli import main
from bsnn.data.audio import decode_sound
from bsnn.deploy.codec import encode, read
from bsnn.deploy.engine import Engine
from bsnn.deploy.files import golden_samples, read_input
from bsnn.deploy.footprint import on_device
from bsnn.deploy.formats.c import export_c
from bsnn.deploy.sound import read_samples, sound_of

SIZES = {
    "as in training": {},
    "frames side by side": {"bands": 16, "frames": 16, "window": 1024, "hop": 1024},
    "a quarter of a frame": {"bands": 12, "frames": 126, "window": 512, "hop": 128 - 1},
    "a hop beyond half a frame": {"bands": 20, "frames": 23, "window": 1024, "hop": 700},
}


@pytest.mark.parametrize("size", SIZES)
def test_c_equals_numpy_to_the_bit(size: str, tmp_path: Path) -> None:
    artifact = spotter(tmp_path / "model.bsnn", **SIZES[size])
    sound, engine = sound_of(artifact.input), Engine(artifact)
    export_c(artifact, tmp_path / "c")
    in_c, random = InC(tmp_path / "c"), np.random.default_rng(1)
    sounds = random_sounds(6, 16_000)
    sounds[4], sounds[5] = -32768, 0
    inputs = sound.integers(sounds)
    for one, expected in zip(sounds, inputs, strict=True):
        in_c("bsnn_sound_reset")
        at = 0
        while at < len(one):
            number = int(random.integers(1, 3000))
            in_c.push(one[at : at + number])
            at += number
        in_c("bsnn_sound_end")
        found, outputs = np.zeros(artifact.input.shape, np.int16), np.zeros(3, np.int64)
        assert in_c("bsnn_sound_input", found) == 1
        assert np.array_equal(found, expected)
        assert in_c("bsnn_predict", found, outputs) == engine.predict(expected[None], normalized=True)[0]
        assert np.array_equal(outputs, engine.outputs(expected[None], normalized=True)[0])


def test_a_stream_in_c_equals_numpy_at_every_frame(tmp_path: Path) -> None:
    artifact = spotter(tmp_path / "model.bsnn")
    export_c(artifact, tmp_path / "c")
    in_c, sound = InC(tmp_path / "c"), sound_of(artifact.input)
    stream = random_sounds(1, 40_000, seed=2)[0]
    levels = sound.front_end.stream_levels(stream)
    in_c("bsnn_sound_reset")
    frames = 0
    for at in range(0, len(stream), 160):
        completed = in_c.push(stream[at : at + 160])
        frames += completed
        found = np.zeros((1, 32, 32), np.int16)
        assert in_c("bsnn_sound_input", found) == (frames >= 32)
        if completed and frames >= 32:
            assert np.array_equal(found, sound.from_levels(levels[:, frames - 32 : frames]))
    assert frames == levels.shape[1] == (len(stream) - 512) // 512 + 1


def test_what_training_saw_within_a_thousandth_and_longer_sounds_in_their_middle(tmp_path: Path) -> None:
    artifact, sound = spotter(tmp_path / "model.bsnn"), random_sounds(1, 20_000)[0]
    path = put(tmp_path / "a.wav", wav(sound / 32768))
    assert np.array_equal(read_samples(path), sound)
    assert np.array_equal(read_samples(path, 16_000), sound[2000:18_000])
    integers = read_input(path, artifact.input, 2)
    assert integers.dtype == np.int16
    np.testing.assert_allclose(integers / 2**14 / 2 + 0.5, decode_sound(path), atol=1e-3)


def test_golden_vectors_go_from_samples_to_outputs(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    artifact = spotter(tmp_path / "model.bsnn")
    export_c(artifact, tmp_path / "c", random_sounds(2, 16_000))
    command = ["make", "-C", str(tmp_path / "c"), "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.count("0 of 2 vectors wrong") == 2, done.stdout + done.stderr
    text = (tmp_path / "c" / "golden_sound.h").read_text()
    changed, number = re.subn(r"(golden_samples\[32000\] = \{\n)-?\d+,-?\d+", r"\g<1>30000,-30000", text)
    assert number == 1
    (tmp_path / "c" / "golden_sound.h").write_text(changed)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "listening: WRONG" in done.stdout
    assert "1 of 2 vectors wrong" in done.stdout


def test_golden_vectors_from_files_are_spread_over_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine(spotter(tmp_path / "model.bsnn"))
    for number, sound in enumerate(random_sounds(30, 3000)):
        put(tmp_path / "data" / CLASSES[number % 3] / f"{number}.wav", wav(sound / 32768))
    chosen = golden_samples(engine, str(tmp_path / "data"), 4)
    assert (chosen.dtype, chosen.shape) == (np.int16, (4, 16_000))
    assert not chosen[:, 3000:].any()
    arguments = ["export", str(tmp_path / "model.bsnn"), "--format", "c", "--out", str(tmp_path / "c")]
    assert main([*arguments, "--data", str(tmp_path / "data"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["front_ram_bytes"] == on_device(engine.artifact).sound_ram_bytes
    assert main(arguments) == 0
    assert "of them for the front end: 4,348 bytes of flash, 7,240 of RAM" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "model.bsnn")]) == 0
    assert "7,240 of the front end" in capsys.readouterr().out
    (tmp_path / "data" / "stop").rename(tmp_path / "data" / "go")
    with pytest.raises(bsnn.UserError, match="expected sounds of those of the model: left, right, stop"):
        golden_samples(engine, str(tmp_path / "data"), 4)


def test_samples_that_are_no_golden_vectors(tmp_path: Path) -> None:
    artifact = spotter(tmp_path / "model.bsnn")
    with pytest.raises(bsnn.UserError, match=r"received float32 of shape \(1, 1, 32, 32\); expected sounds as 16-bit"):
        export_c(artifact, tmp_path / "c", np.zeros((1, 1, 32, 32), np.float32))


def test_the_model_file_keeps_what_the_front_end_needs(tmp_path: Path) -> None:
    artifact = spotter(tmp_path / "model.bsnn", frames=16, bands=16, window=2048, hop=1024)
    assert artifact.input.decode == {"window": 2048, "hop": 1024}
    assert sound_of(artifact.input).front_end[:1] == (16,)
    assert encode(read(tmp_path / "model.bsnn")) == (tmp_path / "model.bsnn").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (1, 32, 31)}, "takes sounds of 1 × 32 × 31.*expected sounds of 1 × bands × 32"),
        ({"shape": (2, 32, 32)}, "takes sounds of 2 × 32 × 32"),
        ({"divisor": 255.0}, "divided by 255"),
        ({"kind": "image"}, "takes images"),
        ({"decode": {"hop": 256}}, "expected sounds of 1 × bands × 63.*a hop of 256"),
        ({"decode": {"window": 1000}}, "a window of 1000 samples"),
    ],
)
def test_a_network_whose_input_cannot_be_made_from_samples(change: dict, message: str, tmp_path: Path) -> None:
    spec = spotter(tmp_path / "model.bsnn").input
    with pytest.raises(bsnn.UserError, match=message):
        sound_of(replace(spec, **change))


def test_such_a_network_is_inspected_without_a_front_end_and_not_exported_as_c(tmp_path: Path) -> None:
    artifact = spotter(tmp_path / "model.bsnn", frames=24)
    assert on_device(artifact).sound is None
    with pytest.raises(bsnn.UserError, match="does not say how samples become such an input"):
        export_c(artifact, tmp_path / "c")
    assert not (tmp_path / "c").exists()
