"""The exported page outside of a browser: the engine's integers from WebAssembly, and inputs as Python makes them."""

import base64
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from drawn_digits import DIGITS, turned
from PIL import Image
from random_networks import NETWORKS, of_sounds

import bsnn
from bsnn import cli
from bsnn.deploy.codec import read
from bsnn.deploy.engine import Engine, webassembly
from bsnn.deploy.files import read_input
from bsnn.deploy.formats._golden import golden_vectors
from bsnn.deploy.formats.wasm import _page, export_wasm
from bsnn.deploy.schema import Artifact

DRIVER = Path(__file__).with_name("page_driver.mjs")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")


def packed(numbers: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(numbers).tobytes()).decode()


def unpacked(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), np.uint8)


def ask(page: Path, calls: list[dict[str, Any]]) -> list[Any]:
    """What functions of a page answer."""
    file = page.with_suffix(".json")
    file.write_text(json.dumps(calls))
    done = subprocess.run(["node", DRIVER, page, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_same(artifact: Artifact, page: Path, *inputs: tuple[np.ndarray, np.ndarray]) -> None:
    """Outputs and spikes of each time step are the engine's.

    Args:
        artifact: The network.
        page: Its page.
        inputs: Frames `[S, B, H, W, C]` as the engine takes them, and as the page does.
    """
    calls = [
        {"what": "run", "frames": [packed(frame) for frame in raw[:, i]]}
        for _, raw in inputs
        for i in range(raw.shape[1])
    ]
    right, *found = ask(page, [{"what": "golden"}, *calls])
    assert right == len(json.loads(model_of(page))["golden"]["outputs"])
    for frames, _ in inputs:
        some, found = found[: frames.shape[1]], found[frames.shape[1] :]
        membranes, total = artifact.membranes(len(some)), np.zeros((len(some), len(artifact.classes)), np.int64)
        for t in range(artifact.time_steps):
            record = [np.empty((1, *m.shape), np.uint8) for m in membranes]
            total += Engine(artifact).run(frames[t % len(frames)][None], 1, membranes, record)
            assert [one["steps"][t]["outputs"] for one in some] == total.tolist()
            for layer, spikes in enumerate(record):
                got = [unpacked(one["steps"][t]["spikes"][layer]) for one in some]
                np.testing.assert_array_equal(got, spikes[0].reshape(len(got), -1))


def model_of(page: Path) -> str:
    return page.read_text().split('id="model">')[1].split("</script>")[0]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("page") / "digits.html"
    export_wasm(read(bsnn.zoo.path("digits")), page, bsnn.data.digits("test").samples[:8])
    return page


@needs_node
def test_the_whole_test_set_gives_the_engine_s_integers(digits: Path) -> None:
    artifact, images = read(bsnn.zoo.path("digits")), bsnn.data.digits("test").samples
    assert_same(artifact, digits, (Engine(artifact).integers(images), np.moveaxis(images, 1, -1)[None]))


@needs_node
@pytest.mark.parametrize("name", NETWORKS)
def test_every_op_gives_the_engine_s_integers(name: str, tmp_path: Path) -> None:
    artifact, random = NETWORKS[name], np.random.default_rng(3)
    page = tmp_path / "page.html"
    page.write_text(_page(artifact, golden_vectors(artifact, None), real=False, sounds=np.zeros((0, 0), np.int16)))
    channels, height, width = artifact.input.shape
    still, moving = (
        random.integers(-2000, 2000, (frames, 2, height, width, channels)).astype(np.int16)
        for frames in (1, artifact.time_steps)
    )
    assert_same(artifact, page, (still, still), (moving, moving))


@needs_node
@pytest.mark.parametrize("prominence", [None, 0.0, 2.0])
def test_the_page_rejects_what_the_engine_rejects(prominence: float | None, tmp_path: Path) -> None:
    artifact = read(bsnn.zoo.path("digits"))
    artifact = artifact if prominence is None else artifact.rejecting(prominence)
    export_wasm(artifact, tmp_path / "page.html")
    images, found = np.random.default_rng(0).integers(0, 17, (40, 1, 8, 8)).astype(np.uint8), []
    for steps in (1, artifact.time_steps):
        frames = (
            np.repeat(Engine(artifact).integers(images), steps, 0) if steps > 1 else Engine(artifact).integers(images)
        )
        outputs = Engine(artifact).run(frames, steps, None)
        calls = [{"what": "rejects", "outputs": row.tolist(), "steps": steps} for row in outputs]
        found += ask(tmp_path / "page.html", calls)
        assert found[-40:] == artifact.rejects(outputs, steps).tolist()
    assert any(found) == (prominence == 2.0)


@needs_node
def test_a_changed_weight_is_noticed(digits: Path, tmp_path: Path) -> None:
    text, image = digits.read_text(), json.loads(model_of(digits))["image"]
    changed = bytearray(base64.b64decode(image))
    changed[100] ^= 1
    page = tmp_path / "page.html"
    page.write_text(text.replace(image, base64.b64encode(changed).decode()))
    (right,) = ask(page, [{"what": "golden"}])
    assert right < 8


@needs_node
def test_drawn_digits_are_recognized(digits: Path) -> None:
    drawn, random = [(digit, strokes) for digit, some in DIGITS.items() for strokes in some], np.random.default_rng(0)
    copies = [
        (digit, turned(strokes, random.uniform(-10, 10), random.uniform(0.5, 1), *random.uniform(-0.1, 0.1, 2)))
        for digit, strokes in drawn
        for _ in range(6)
    ]
    frames = ask(digits, [{"what": "draw", "strokes": strokes} for _, strokes in drawn + copies])
    images = np.stack([unpacked(frame).reshape(1, 8, 8) for frame in frames])
    right = Engine(read(bsnn.zoo.path("digits"))).predict(images) == [digit for digit, _ in drawn + copies]
    assert right[:30].all()
    assert right[30:].sum() >= 175  # of 180; 178 when this was written
    # The same amount of ink, and the full height, as in the set.
    assert images.mean(axis=(1, 2, 3)) / 16 == pytest.approx(0.3054, abs=0.04)
    assert (images.max(axis=(1, 3)) > 0).all()


def of_pictures(**changes: Any) -> Artifact:
    """A network of random weights that takes gray pictures of 6 × 6 pixels."""
    artifact = NETWORKS["joined"]
    return replace(artifact, input=replace(artifact.input, divisor=255.0, shift=8, **changes))


@needs_node
@pytest.mark.parametrize("dark", [False, True], ids=["light ink", "dark ink"])
def test_drawings_of_other_sets_are_balanced(dark: bool, tmp_path: Path) -> None:
    artifact = of_pictures(mean=(0.9 if dark else 0.1,))
    export_wasm(artifact, tmp_path / "page.html")
    (frame,) = ask(tmp_path / "page.html", [{"what": "draw", "strokes": [[(0.1, 0.1), (0.1, 0.5)]]}])
    ink = unpacked(frame).reshape(6, 6).astype(float)
    ink = 255 - ink if dark else ink
    assert ink.max() > 0
    assert ink[0].max() == 0  # a margin
    for axis in (0, 1):
        assert (ink.sum(1 - axis) * (np.arange(6) + 0.5)).sum() / ink.sum() == pytest.approx(3, abs=0.2)


@needs_node
@pytest.mark.parametrize("margin", [1.0, 256 / 224])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_becomes_what_predict_makes_of_it(margin: float, channels: int, tmp_path: Path) -> None:
    artifact, random = NETWORKS["residual" if channels == 3 else "joined"], np.random.default_rng(1)
    bytes_of = {"divisor": 255.0, "shift": 8, "multiplier": (1,) * channels, "offset": (0,) * channels}
    artifact = replace(artifact, input=replace(artifact.input, **bytes_of, decode={"margin": margin}))
    export_wasm(artifact, tmp_path / "page.html")
    calls, expected = [], []
    for width, height in (40, 31), (6, 6), (8, 8), (5, 3), (200, 97), (80, 200):
        rgba = random.integers(0, 256, (height, width, 4), np.uint8)
        Image.fromarray(rgba[..., :3]).save(tmp_path / "picture.png")
        expected.append(read_input(tmp_path / "picture.png", artifact.input, 1))
        calls.append({"what": "picture", "rgba": packed(rgba), "width": width, "height": height})
    *frames, tall = [unpacked(frame).astype(int) for frame in ask(tmp_path / "page.html", calls)]
    *pictures, last = [np.moveaxis(picture, 0, -1).ravel() for picture in expected]
    for frame, picture in zip(frames, pictures, strict=True):
        np.testing.assert_array_equal(frame, picture)
    # Pillow resizes tall pictures down first from version 13 on, and rounds in between.
    np.testing.assert_allclose(tall, last, atol=1, rtol=0)


@needs_node
@pytest.mark.parametrize(
    "size", [{}, {"bands": 20, "frames": 63, "window": 512, "hop": 256}], ids=["32 × 32", "20 × 63"]
)
def test_a_sound_becomes_what_predict_makes_of_it(size: dict[str, int], tmp_path: Path) -> None:
    artifact, random = of_sounds(4, **size), np.random.default_rng(2)
    export_wasm(artifact, tmp_path / "page.html")
    calls, expected = [], []
    for length, loudness in (16_000, 8000), (9000, 300), (20_001, 3), (16_000, 0):
        tones = np.sin(np.arange(length) * random.uniform(0.01, 2, (3, 1))).sum(0) * np.linspace(0, 1, length) ** 3
        sound = np.rint(loudness * (tones + 0.1 * random.standard_normal(length))).astype(np.int16)
        soundfile.write(tmp_path / "sound.wav", sound, 16_000)
        expected.append(read_input(tmp_path / "sound.wav", artifact.input, 1))
        calls.append({"what": "sound", "samples": packed(sound)})
    right, *frames = ask(tmp_path / "page.html", [{"what": "golden"}, *calls])
    assert right == 4
    found = np.array(frames)
    np.testing.assert_array_equal(found, np.array(expected).reshape(found.shape))
    assert len(np.unique(found[0])) > 500
    assert len(set(found[3])) == 1  # silence


def test_the_page_needs_nothing_else(digits: Path) -> None:
    text = digits.read_text()
    assert "default-src 'none'" in text
    assert not any(word in text for word in ("http://", "https://", "import(", "fetch(", "XMLHttpRequest"))
    assert len(text) < 130_000


def test_too_many_spikes_to_show(tmp_path: Path) -> None:
    artifact = replace(read(bsnn.zoo.path("digits")), time_steps=50_000)
    with pytest.raises(bsnn.UserError, match="could fire 326,400,000 times in 50000 time steps"):
        export_wasm(artifact, tmp_path / "page.html")


def test_names_cannot_leave_their_place(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>&\"'<!--"
    artifact = of_pictures()
    export_wasm(replace(artifact, name=evil, classes=(evil, "b", "ü")), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "alert(1)</script>" not in text.replace("&lt;", "")
    assert text.count("</script>") == 3
    assert json.loads(model_of(tmp_path / "page.html"))["classes"] == [evil, "b", "ü"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "event"}, "takes events, and a page has no camera"),
        ({"kind": "sound"}, "sounds of 1 × 8 × 8, divided by 16"),
        ({"divisor": 1.0}, "does not say how to normalize"),
        ({"shape": (2, 8, 8)}, "takes 2 channels"),
    ],
)
def test_networks_without_an_input_for_a_page(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    artifact = read(bsnn.zoo.path("digits"))
    spec = replace(artifact.input, **changes)
    object.__setattr__(artifact, "input", spec)
    with pytest.raises(bsnn.UserError, match=re.escape(message)):
        export_wasm(artifact, tmp_path / "page.html")


def test_the_command_writes_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    shutil.copy(bsnn.zoo.path("digits"), tmp_path / "run" / "model.bsnn")
    for model, out in ("digits", "digits.html"), ("run", "run/page.html"), ("run/model.bsnn", "run/model.html"):
        assert cli.main(["export", model, "--format", "wasm", "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["path"], result["bytes"]) == (out, (tmp_path / out).stat().st_size)
        assert json.loads(model_of(tmp_path / out))["golden"]["real"]
    assert cli.main(["export", "run", "--format", "wasm"]) == 0
    assert "open it in a browser; it checks 10 golden vectors" in capsys.readouterr().out
    for options, message in ([], "digits.html is there already"), (["--compare"], "expected a model file"):
        assert cli.main(["export", "digits", "--format", "wasm", *options]) == 2
        assert message in capsys.readouterr().err


def test_an_engine_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other = tmp_path / "engine.c"
    other.write_text("int x;")
    monkeypatch.setattr(webassembly, "_SOURCES", (other, *webassembly._SOURCES[1:]))
    with pytest.raises(bsnn.UserError, match="run make wasm"):
        webassembly.engine_wasm()
    monkeypatch.setattr(webassembly, "_FILE", tmp_path / "none.wasm")
    with pytest.raises(bsnn.UserError, match="install bsnn again"):
        webassembly.engine_wasm()


def test_the_engine_is_what_its_sources_compile_to() -> None:
    pytest.importorskip("ziglang", reason="the compiler of `make wasm` is not installed")
    assert webassembly.compile_engine() == webassembly.engine_wasm()
