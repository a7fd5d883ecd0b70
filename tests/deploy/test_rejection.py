"""The threshold of a model file: `none of these`, in NumPy, in C99, and in what the commands say."""

import ctypes
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from model_bytes import changed

import bsnn
from bsnn import cli
from bsnn.deploy.codec import decode, encode, read, write
from bsnn.deploy.engine import Engine
from bsnn.deploy.files import evaluate_model, predict_files
from bsnn.deploy.formats.c import export_c
from bsnn.deploy.schema import Artifact, BadModel

OUTPUTS = np.array([[9, 0, 0], [5, 5, 2], [4, 4, 4], [-1, -4, -1]], np.int64)  # 3 · largest − sum: 18, 3, 0, 3


@pytest.fixture(scope="module")
def digits() -> Artifact:
    return read(bsnn.zoo.path("digits"))


@pytest.mark.parametrize(
    ("below", "time_steps", "expected"),
    [
        (None, 1, [0, 0, 0, 0]),
        (0, 1, [0, 0, 0, 0]),
        (1, 1, [0, 0, 1, 0]),
        (3, 1, [0, 0, 1, 0]),
        (4, 1, [0, 1, 1, 1]),
        (1, 4, [0, 1, 1, 1]),
        (9, 2, [0, 1, 1, 1]),
        (10, 2, [1, 1, 1, 1]),
    ],
)
def test_what_is_rejected(odd: bytes, below: int | None, time_steps: int, expected: list[int]) -> None:
    artifact = replace(decode(odd), reject_below=below)
    assert artifact.rejects(OUTPUTS, time_steps).tolist() == [bool(x) for x in expected]


def median_prominence(digits: Artifact) -> float:
    """A threshold that half of the test digits lie below."""
    logits = Engine(digits).outputs(bsnn.data.digits("test").samples) * digits.output_scale / digits.time_steps
    return float(np.median(logits.max(1) - logits.mean(1)))


def test_a_threshold_in_logits_means_the_same(digits: Artifact) -> None:
    below = median_prominence(digits) + 1e-3
    engine = Engine(digits.rejecting(below))
    outputs = engine.outputs(bsnn.data.digits("test").samples)
    logits = outputs * digits.output_scale / digits.time_steps
    assert engine.rejects(outputs).tolist() == (logits.max(1) - logits.mean(1) < below).tolist()
    assert engine.rejects(outputs).mean() == pytest.approx(0.5, abs=0.02)
    assert engine.artifact.prominence == pytest.approx(below, abs=1e-4)
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(bsnn.UserError, match=r"reject_below: received .*; expected a number, at least 0"):
            digits.rejecting(wrong)


def test_the_file_keeps_it_and_has_no_key_without_it(digits: Artifact, content: bytes) -> None:
    assert decode(encode(replace(digits, reject_below=7))).reject_below == 7
    assert encode(digits) == content
    for wrong in (-1, 2**47 + 1, 1.5, None, True):
        with pytest.raises(BadModel, match=r"`reject_below` is .*; expected a whole number from 0 to"):
            decode(changed(content, lambda header, wrong=wrong: header.update(reject_below=wrong)))


def test_what_the_commands_say(digits: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples = bsnn.data.digits("test").samples[:20]
    np.save(tmp_path / "x.npy", samples)
    engine = Engine(digits.rejecting(median_prominence(digits)))
    rejected = engine.rejects(engine.outputs(samples))
    assert 0 < rejected.sum() < 20
    lines = predict_files(engine, [tmp_path / "x.npy"])["predictions"]
    for line, none, nearest in zip(lines, rejected, engine.predict(samples), strict=True):
        assert (line["label"] == "none of these") == none
        assert line["class"] == (None if none else nearest)
        assert line.get("nearest", line["label"]) == engine.classes[nearest]
    assert evaluate_model(engine, None)["rejected"] == pytest.approx(
        engine.rejects(engine.outputs(bsnn.data.digits("test").samples)).mean()
    )
    assert "rejected" not in evaluate_model(Engine(digits), None)
    write(tmp_path / "model.bsnn", engine.artifact)
    for command, words in (
        (["predict", "model.bsnn", "x.npy"], "none of these (nearest: "),
        (["inspect", "model.bsnn"], "`none of these` if the largest logit lies less than "),
        (["evaluate", "model.bsnn"], "of them rejected as none of these"),
    ):
        assert cli.main([str(tmp_path / word) if "." in word else word for word in command]) == 0
        assert words in capsys.readouterr().out
    assert cli.main(["inspect", str(tmp_path / "model.bsnn"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reject_below"] == pytest.approx(median_prominence(digits), abs=1e-4)


def test_c_rejects_the_same(digits: Artifact, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    export_c(digits, tmp_path / "without")
    assert "bsnn_rejects" not in (tmp_path / "without" / "model.h").read_text()
    engine = Engine(digits.rejecting(median_prominence(digits)))
    export_c(engine.artifact, tmp_path / "c")
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "model.c", "engine.c", "-o", "model.so"], cwd=tmp_path / "c", check=True)
    library = ctypes.CDLL(str(tmp_path / "c" / "model.so"))
    outputs = engine.outputs(bsnn.data.digits("test").samples)
    for steps in (1, digits.time_steps):
        found = [bool(library.bsnn_rejects(ctypes.c_void_p(row.ctypes.data), steps)) for row in outputs]
        assert found == engine.rejects(outputs, steps).tolist()
