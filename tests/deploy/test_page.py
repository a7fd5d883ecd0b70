"""The exported page in a browser: what is drawn, dropped or typed is recognized, on a wide window and on a phone."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from chromium import PROGRAM, Chromium
from drawn_digits import DIGITS
from PIL import Image
from random_networks import NETWORKS, of_sounds

import bsnn
from bsnn.deploy.codec import read
from bsnn.deploy.engine import Engine
from bsnn.deploy.files import read_input
from bsnn.deploy.formats.wasm import export_wasm

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="chromium is not installed")

WINDOWS: dict[str, dict[str, Any]] = {
    "desk": {"width": 1280, "height": 900},
    "phone": {"width": 360, "height": 740, "phone": True, "prefers_color_scheme": "dark"},
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = tmp_path_factory.mktemp("page") / "digits.html"
    export_wasm(read(bsnn.zoo.path("digits")), page, bsnn.data.digits("test").samples[:8])
    return page


@pytest.fixture(scope="module", params=WINDOWS)
def browser(request: pytest.FixtureRequest, digits: Path) -> Any:
    with Chromium(**WINDOWS[request.param], prefers_reduced_motion="reduce") as browser:
        browser.open(digits)
        yield browser


def text(browser: Chromium, name: str) -> str:
    return browser.evaluate(f"find('{name}').textContent")


def drop(browser: Chromium, content: bytes, name: str) -> None:
    """Drops a file onto the pad."""
    browser.evaluate(
        f"(() => {{ const data = new DataTransfer(), bytes = bytesOf('{base64.b64encode(content).decode()}'); "
        f"data.items.add(new File([bytes], '{name}')); find('pad').dispatchEvent(new DragEvent('drop', "
        "{dataTransfer: data, bubbles: true, cancelable: true})); })()"
    )


def test_the_golden_vectors_match_and_nothing_is_requested(browser: Chromium, digits: Path) -> None:
    assert text(browser, "verdict") == "All 8 golden vectors match the bsnn engine bit for bit."
    assert browser.requested == [digits.resolve().as_uri()]
    assert browser.messages == []


def test_nothing_is_wider_than_the_window(browser: Chromium) -> None:
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("digit", DIGITS)
def test_a_drawn_digit_is_recognized(browser: Chromium, digit: int) -> None:
    browser.draw(DIGITS[digit][0], "#paper")
    assert text(browser, "answer") == str(digit)
    assert text(browser, "step-label") == "Time step 4 of 4"
    assert all(browser.evaluate("rasters.map((raster) => parseFloat(raster.rate.textContent) > 0)"))
    browser.evaluate("find('clear').click()")
    assert text(browser, "answer") == ""


def test_keys_draw_and_move_through_time(browser: Chromium) -> None:
    browser.evaluate("paper.focus()")
    browser.press(" ", " ")
    for _ in range(14):
        browser.press("ArrowDown")
    browser.press(" ", " ")
    assert text(browser, "answer") == "1"
    assert browser.evaluate("strokes.length") == 1
    browser.evaluate("find('step').focus()")
    browser.press("Home")
    assert text(browser, "step-label") == "Time step 1 of 4"
    browser.evaluate("paper.focus()")
    browser.press("Escape")
    assert browser.evaluate("strokes.length") == 0


def test_every_control_has_a_name_and_can_be_reached(browser: Chromium) -> None:
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "slider", "application")
    names = [node["name"]["value"] for node in nodes if node.get("role", {}).get("value") in roles]
    assert all(names)
    assert {"Paper", "Clear", "Undo", "Open a picture", "Play the time steps", "Test sample 8"} <= set(names)
    assert browser.evaluate("[...document.querySelectorAll('button, #paper, #step')].every((e) => e.tabIndex === 0)")


def test_a_sample_plays(digits: Path) -> None:
    with Chromium() as browser:
        browser.open(digits)
        browser.evaluate("document.querySelector('.sample').click()")
        assert text(browser, "step-label") == "Time step 1 of 4"
        browser.wait("find('step-label').textContent === 'Time step 4 of 4'")
        assert text(browser, "answer") == str(bsnn.data.digits("test").labels[0])


def test_a_dropped_picture_gives_the_engine_s_outputs(tmp_path: Path) -> None:
    artifact = NETWORKS["residual"]
    colors = {"multiplier": (30,) * 3, "offset": (-3000,) * 3, "divisor": 255.0, "mean": (0.5,) * 3, "std": (0.2,) * 3}
    evil = "<img src=x onerror=alert(1)>"
    artifact = replace(artifact, input=replace(artifact.input, **colors), classes=(evil, "b", "c"), name=evil)
    export_wasm(artifact, tmp_path / "page.html")
    pixels, file = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8), io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    with Chromium(prefers_reduced_motion="reduce") as browser:
        browser.open(tmp_path / "page.html")
        assert text(browser, "name") == evil
        assert text(browser, "input-title") == "Drop a picture"
        drop(browser, b"no picture", "a.txt")
        browser.wait("find('hint').textContent.includes('“a.txt” is no picture')")
        drop(browser, file.getvalue(), "a.png")
        browser.wait("steps.length === 3")
        found = browser.evaluate("steps.at(-1).outputs")
        assert browser.evaluate("document.querySelectorAll('img').length") == 0
        assert browser.evaluate("[...document.querySelectorAll('.class')].map((e) => e.textContent)")[1] == evil
        assert browser.messages == []
    assert found == Engine(artifact).outputs(np.moveaxis(pixels, -1, 0))[0].tolist()


def test_a_sound_is_heard_and_read(tmp_path: Path) -> None:
    artifact, time = of_sounds(4), np.arange(16_000) / 16_000
    export_wasm(artifact, tmp_path / "page.html")
    tone = np.rint(9000 * np.sin(2 * np.pi * 700 * time) * np.sin(np.pi * time) ** 4).astype(np.int16)
    soundfile.write(tmp_path / "sound.wav", tone, 16_000)
    soundfile.write(tmp_path / "long.wav", np.concatenate([tone, tone, tone]), 16_000)
    soundfile.write(tmp_path / "microphone.wav", np.repeat(tone, 3), 48_000)
    expected = read_input(tmp_path / "sound.wav", artifact.input, 1).ravel()
    with Chromium(microphone=tmp_path / "microphone.wav", prefers_reduced_motion="reduce") as browser:
        browser.open(tmp_path / "page.html")
        drop(browser, (tmp_path / "sound.wav").read_bytes(), "sound.wav")
        browser.wait("steps.length === 3")
        read = np.array(browser.evaluate("Array.from(given.frame)"))
        np.testing.assert_array_equal(read, expected)
        outputs = Engine(artifact).outputs(read.astype(np.int16).reshape(1, 1, 32, 32), normalized=True)[0].tolist()
        assert browser.evaluate("steps.at(-1).outputs") == outputs
        # Of a longer sound, the page says which part counts; a file that is no sound leaves nothing on it.
        drop(browser, (tmp_path / "long.wav").read_bytes(), "long.wav")
        browser.wait("find('hint').textContent === 'Of the 3.0 s of “long.wav”, the middle 1 s counts.'")
        np.testing.assert_array_equal(np.array(browser.evaluate("Array.from(given.frame)")), expected)
        drop(browser, b"no sound", "a.txt")
        browser.wait("find('hint').textContent.includes('“a.txt” is no sound')")
        assert (browser.evaluate("steps.length"), text(browser, "answer")) == (0, "")
        # The microphone's tone is resampled, and its second begins anywhere: the same bands are loud.
        loud = set(np.argsort(expected.reshape(32, 32).max(1))[-2:])
        for button, ended in ("record", "!microphone && steps.length"), ("listen", "microphone && steps.length"):
            browser.evaluate(f"clear(); find('{button}').click()")
            browser.wait(ended)
            heard = np.array(browser.evaluate("Array.from(given.frame)")).reshape(32, 32)
            assert set(np.argsort(heard.max(1))[-2:]) == loud
        browser.evaluate("find('listen').click()")
        assert browser.evaluate("microphone") is None
        assert browser.messages == []


def test_a_wrong_network_takes_no_input(digits: Path, tmp_path: Path) -> None:
    page = digits.read_text()
    golden = json.loads(page.split('id="model">')[1].split("</script>")[0])["golden"]["checksums"][0]
    (tmp_path / "page.html").write_text(page.replace(str(golden), str(golden ^ 1)))
    with Chromium() as browser:
        browser.open(tmp_path / "page.html")
        assert text(browser, "verdict").startswith("1 of 8 golden vectors differ from the bsnn engine.")
        browser.draw(DIGITS[3][0], "#paper")
        assert text(browser, "answer") == ""
