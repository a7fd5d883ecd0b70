"""Words in a stream: shares, smoothing and threshold by hand, and the exported C equal to NumPy after each window."""

import json
from pathlib import Path

import numpy as np
import pytest
from data_files import put, wav
from sounds import InC, random_sounds, spotter

import bsnn
from bsnn.cli import main
from bsnn.data.front_end import FrontEnd
from bsnn.deploy.engine import Engine
from bsnn.deploy.formats.c import export_c
from bsnn.deploy.listening import Heard, Listening, decide, listen, listening, shares_of, windows
from bsnn.deploy.sound import sound_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "model.bsnn"
    spotter(path)
    return path


def test_shares_are_a_softmax(model: Path) -> None:
    artifact = bsnn.load(model).artifact
    logits = np.random.default_rng(0).normal(0, 3, (200, 3))
    logits[0], logits[1] = 0, [900, 0, -900]
    outputs = np.rint(logits * artifact.time_steps / artifact.output_scale).astype(np.int64)
    shares = shares_of(artifact).of(outputs) / 2**15
    expected = np.exp(logits - logits.max(1, keepdims=True))
    assert np.abs(shares - expected / expected.sum(1, keepdims=True)).max() < 1e-3
    assert shares[0].tolist() == [pytest.approx(1 / 3, abs=1e-4)] * 3
    assert shares[1].tolist() == [1, 0, 0]


def test_scores_by_hand() -> None:
    """Two windows are averaged; a word comes again after two windows without it, or after another word."""
    half, most = 16_384, 32_000
    rows = np.array(
        [[most, 0], [most, 0], [half, 100], [0, 0], [0, 0], [0, 0], [most, 0], [most, 0], [0, most], [0, most]]
    )
    found = decide(rows, Listening(1, 2, 20_000, hold=2))
    assert [one.score for one in found] == [16_000, 32_000, 24_192, 8192, 0, 0, 16_000, 32_000, 16_000, 32_000]
    assert [number for number, one in enumerate(found) if one.new] == [1, 7, 9]
    assert found[9] == Heard(1, 32_000, True)
    patient = decide(rows, Listening(1, 2, 20_000, hold=5))
    assert [number for number, one in enumerate(patient) if one.new] == [1, 9]


def test_a_sound_of_a_second_or_less_is_one_window_as_on_its_own(model: Path) -> None:
    sound = sound_of(bsnn.load(model).artifact.input)
    samples = random_sounds(1, 16_000)[0]
    assert np.array_equal(windows(sound, samples, 3), sound.integers(samples)[None])
    shorter = np.where(np.arange(16_000) < 9000, samples, 0).astype(np.int16)
    assert np.array_equal(windows(sound, samples[:9000], 3), sound.integers(shorter)[None])


@pytest.mark.parametrize(
    ("length", "number"), [(16_001, 2), (16_000 + 3 * 512, 2), (16_001 + 3 * 512, 3), (80_000, 43)]
)
def test_windows_reach_the_end(model: Path, length: int, number: int) -> None:
    sound = sound_of(bsnn.load(model).artifact.input)
    assert len(windows(sound, random_sounds(1, length)[0], 3)) == number


@pytest.mark.parametrize("rejecting", [False, True])
@pytest.mark.parametrize("settings", [None, Listening(2, 3, 11_500, 2), Listening(1, 1, 12_000, 9)])
def test_c_hears_what_numpy_hears(model: Path, settings: Listening | None, rejecting: bool, tmp_path: Path) -> None:
    engine = bsnn.load(model)
    if rejecting:
        engine = Engine(engine.artifact.rejecting(0.9))
    export_c(engine.artifact, tmp_path)
    used = settings or listening(FrontEnd())
    names = ("STEP", "SMOOTHING", "THRESHOLD", "HOLD")
    in_c = InC(tmp_path, **({f"BSNN_LISTEN_{n}": v for n, v in zip(names, used, strict=True)} if settings else {}))
    stream = np.concatenate(list(random_sounds(5, 12_000, seed=3)))
    outputs = engine.outputs(windows(sound_of(engine.artifact.input), stream, used.step), normalized=True)
    rejected = engine.rejects(outputs)
    assert rejecting == (0 < rejected.mean() < 1) == rejected.any()
    expected = decide(np.where(rejected[:, None], 0, shares_of(engine.artifact).of(outputs)), used)
    random, found, at = np.random.default_rng(0), [], 0
    in_c("bsnn_listen_reset")
    while at < len(stream):
        chunk = np.ascontiguousarray(stream[at : at + int(random.integers(1, 513))])
        at += len(chunk)
        if in_c("bsnn_listen_push", chunk, len(chunk)):
            heard = np.zeros(2, np.int32)
            new = in_c("bsnn_listen_hear", np.zeros((32, 32), np.int16), heard)
            found.append(Heard(int(heard[0]), int(heard[1]), bool(new)))
    # What is not yet whole when the samples end, silence completes in NumPy.
    assert len(found) >= len(expected) - 1
    assert found == expected[: len(found)]
    assert settings is None or len({one.label for one in found if one.new}) > 0


def test_times_labels_and_scores(model: Path) -> None:
    engine = bsnn.load(model)
    settings = Listening(4, 2, 9000)
    found = listen(engine, random_sounds(1, 70_000)[0], settings)
    assert found[0]["start"] == pytest.approx(0.128)
    for word in found:
        assert word["end"] - word["start"] == pytest.approx(1)
        assert word["label"] == engine.classes[word["class"]]
        assert word["score"] >= 9000 / 2**15


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 2}, "window: received 2 s; the network hears 1 s"),
        ({"hop": 0}, "hop: received 0 s; expected 0.032"),
        ({"hop": 1.5}, "hop: received 1.5 s"),
        ({"smoothing": 0}, "smoothing: received 0 windows"),
        ({"threshold": 70}, "threshold: received 70; expected a score above 0, at most 1"),
    ],
)
def test_settings_without_sense(change: dict, message: str) -> None:
    with pytest.raises(bsnn.UserError, match=message):
        listening(FrontEnd(), **change)


def test_the_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = str(put(tmp_path / "long.wav", wav(random_sounds(1, 64_000)[0] / 32768)))
    assert main(["predict", str(model), long]) == 0
    assert "(of 4.00 s only 1.50 to 2.50; to hear all of it, add --window 1)" in capsys.readouterr().out
    arguments = ["predict", str(model), long, "--window", "1", "--hop", "0.1", "--threshold", "0.3"]
    assert main([*arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["window"], result["hop"]) == (1, 0.096)
    assert result["predictions"]
    assert {"input", "start", "end", "label", "class", "score"} == set(result["predictions"][0])
    assert main(arguments) == 0
    assert f"heard {len(result['predictions'])} word" in capsys.readouterr().out
    assert main([*arguments[:-1], "1"]) == 0
    assert capsys.readouterr().out == "heard nothing, in windows of 1 s every 0.096 s\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hop", "0.1"], "--hop: has no effect without --window"),
        (["--window", "3"], "window: received 3 s"),
        (["--window", "1", "--threshold", "2"], "threshold: received 2"),
    ],
)
def test_options_that_are_refused(
    model: Path, arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(put(tmp_path / "a.wav", wav(np.zeros(100))))
    assert main(["predict", str(model), path, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_only_sounds_are_listened_to(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "digits", str(tmp_path), "--window", "1"]) == 2
    assert "received a network for images" in capsys.readouterr().err
    np.save(tmp_path / "a.npy", np.zeros((1, 1, 32, 32), np.float32))
    assert main(["predict", str(model), str(tmp_path / "a.npy"), "--window", "1"]) == 2
    assert "an array; expected a sound" in capsys.readouterr().err


def test_a_sound_that_is_not_there(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(model), "nowhere.wav", "--window", "1"]) == 2
    assert "nowhere.wav: there is no such file." in capsys.readouterr().err
