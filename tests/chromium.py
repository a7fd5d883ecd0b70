"""Headless Chromium, driven over a pipe with the DevTools protocol: messages of JSON, each ended by a zero byte."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PROGRAM = next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")
_MICROPHONE = (
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--autoplay-policy=no-user-gesture-required",
)


class Chromium:
    """One page of a browser of its own; a context manager.

    Args:
        width: Of the window, in the units of CSS.
        height: Likewise.
        phone: Whether it is a phone, which is touched.
        microphone: A wav that its microphone hears, again and again.
        features: What the page's style may ask for, such as `prefers-color-scheme="dark"`.
    """

    def __init__(
        self,
        width: int = 1280,
        height: int = 900,
        phone: bool = False,
        microphone: Path | None = None,
        **features: str,
    ) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        requests, answers = os.pipe(), os.pipe()
        heard = (*_MICROPHONE, f"--use-file-for-fake-audio-capture={microphone}") if microphone else ()

        def connect() -> None:
            """In the child: descriptors 3 and 4, by way of others that these do not close."""
            ends = os.dup2(requests[0], 100), os.dup2(answers[1], 101)
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self._process = subprocess.Popen(
            [PROGRAM or "", *_FLAGS, *heard, f"--user-data-dir={self._profile.name}", "about:blank"],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(requests[0])
        os.close(answers[1])
        self._out, self._in = os.fdopen(requests[1], "wb"), os.fdopen(answers[0], "rb")
        self._number, self._session = 0, None
        self.requested: list[str] = []
        self.messages: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)
        media = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.call("Emulation.setEmulatedMedia", features=media)

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._out.close()
        self._in.close()
        self._profile.cleanup()

    def call(self, method: str, **parameters: Any) -> Any:
        """Sends a request and waits for its answer; notes what the page requests and logs."""
        self._number += 1
        request = {"id": self._number, "method": method, "params": parameters}
        self._out.write(json.dumps(request | ({"sessionId": self._session} if self._session else {})).encode() + b"\0")
        self._out.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer.get("method"), answer.get("params", {}))

    def _receive(self) -> dict[str, Any]:
        content = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            assert byte, "the browser has ended"
            content += byte
        return json.loads(content)

    def _note(self, method: str | None, event: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requested.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(event["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.messages.append(event["entry"]["text"])

    def open(self, file: Path) -> None:
        """Loads a page from the disk, and waits until it has given its verdict."""
        self.call("Page.navigate", url=file.resolve().as_uri())
        self.wait("document.readyState === 'complete' && find('verdict').dataset.state !== 'waiting'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, or of the promise that it makes."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Waits until a condition holds; an error in it means not yet."""
        self.evaluate(
            "new Promise((done) => { const look = () => { let there = false; try { there = "
            f"{condition}; }} catch {{}} if (there) done(); else setTimeout(look, 20); }}; look(); }})"
        )

    def draw(self, strokes: Sequence[Sequence[tuple[float, float]]], selector: str) -> None:
        """Draws strokes, on a square of side 1, onto an element, with mouse or finger."""
        box = self.evaluate(
            f"(() => {{ const e = document.querySelector('{selector}'); e.scrollIntoView({{block: 'center'}}); "
            "const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()"
        )
        for stroke in strokes:
            for number, (x, y) in enumerate(stroke):
                at = {"x": box[0] + x * box[2], "y": box[1] + y * box[3]}
                self._mouse("mouseMoved" if number else "mousePressed", **at)
            self._mouse("mouseReleased", **at)

    def _mouse(self, kind: str, x: float, y: float) -> None:
        button = {"button": "left", "buttons": 0 if kind == "mouseReleased" else 1, "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def press(self, key: str, text: str = "") -> None:
        """Presses a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, text=text if kind == "keyDown" else "")

    def screenshot(self, file: Path) -> None:
        """Writes the whole page as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))
