"""The exported C sums the events of a camera to the frames that NumPy makes of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_files import nmnist_bin
from sounds import InC

import bsnn
from bsnn.data.events import Events, count_frames, decode_events
from bsnn.deploy.camera import why_no_events
from bsnn.deploy.codec import read
from bsnn.deploy.formats._c_events import event_files
from bsnn.deploy.formats.c import export_c

TAKEN, FULL, OUTSIDE = range(3)
RANDOM = np.random.default_rng(0)


def recording(number: int) -> Events:
    """Events with a few busy pixels, at times with ties and pauses."""
    x, y = np.minimum(RANDOM.integers(0, 40, (2, number)), 33)
    times = np.cumsum(RANDOM.integers(0, 3, number) * RANDOM.integers(0, 2000, number))
    return Events(x, y, times, RANDOM.integers(0, 2, number), (34, 34))


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> InC:
    folder = tmp_path_factory.mktemp("events")
    export_c(read(bsnn.zoo.path("nmnist")), folder)
    return InC(folder)


def frames_in_c(in_c: InC, events: Events, begin: str, size: int, first_time: int = 0) -> tuple[np.ndarray, list[int]]:
    """Frames `[T, 2, H, W]`, and what became of each event."""
    made = np.full((5, 34, 34, 2), 7, np.uint8)
    in_c(begin, made, size)
    columns = (events.x, events.y, (events.t + first_time) % 2**32, events.p)
    became = [in_c("bsnn_events_push", made, *map(int, event)) for event in zip(*columns, strict=True)]
    return np.moveaxis(made, -1, 1), became


@pytest.mark.parametrize("number", [1, 4, 5, 7, 998, 20_000])
def test_by_number(in_c: InC, number: int) -> None:
    events = recording(number)
    made, became = frames_in_c(in_c, events, "bsnn_events_by_number", number)
    assert np.array_equal(made, np.minimum(count_frames(events, 5, (34, 34)) * 8, 255))
    assert set(became) == {TAKEN}
    assert in_c("bsnn_events_push", np.zeros(made.shape, np.uint8), 1, 1, 0, 1) == FULL


@pytest.mark.parametrize("first_time", [0, 2**32 - 500])
@pytest.mark.parametrize("duration", [1, 999, 100_000, 10**9])
def test_by_time(in_c: InC, duration: int, first_time: int) -> None:
    """Also when the camera's clock of 32 bits runs over."""
    events = recording(3000)
    made, became = frames_in_c(in_c, events, "bsnn_events_by_time", duration, first_time)
    assert np.array_equal(made, np.minimum(count_frames(events, 5, (34, 34), duration) * 8, 255))
    assert became == [TAKEN if t - events.t[0] < duration else FULL for t in events.t]


def test_by_time_by_hand() -> None:
    events = Events(np.arange(4), np.zeros(4, int), np.array([100, 149, 150, 200]), np.zeros(4, int), (1, 4))
    assert count_frames(events, 2, (1, 4), duration=100)[:, 0, 0].tolist() == [[1, 1, 0, 0], [0, 0, 1, 0]]


def test_a_file_of_events(in_c: InC, tmp_path: Path) -> None:
    events = recording(500)
    columns = (events.x, events.y, events.t // 2, events.p)  # the format's clock has 23 bits
    (tmp_path / "a.bin").write_bytes(nmnist_bin(list(zip(*(column.tolist() for column in columns), strict=True))))
    frames = decode_events(tmp_path / "a.bin", time_steps=5, sensor=(34, 34), size=(34, 34))
    made, _ = frames_in_c(in_c, Events(*columns, (34, 34)), "bsnn_events_by_number", 500)
    assert np.array_equal(made, frames)


def test_no_pixel(in_c: InC) -> None:
    frames = np.zeros((5, 34, 34, 2), np.uint8)
    in_c("bsnn_events_by_number", frames, 10)
    assert [in_c("bsnn_events_push", frames, x, y, 0, 1) for x, y in ((34, 0), (0, 34), (-1, 0))] == [OUTSIDE] * 3
    assert not frames.any()


def test_a_camera_on_its_side_and_frames_of_presence() -> None:
    """The macros of the header say what `decode_events` does."""
    spec = replace(
        read(bsnn.zoo.path("nmnist")).input,
        shape=(2, 4, 3),
        decode={"sensor": (3, 4), "turned": True, "presence": True},
    )
    text = event_files(spec)["events.h"]
    assert "#define BSNN_EVENTS_LEVEL 255" in text
    frame = np.zeros((3, 4), int)
    frame[2, 1] = 1
    (row,), (column,) = np.nonzero(np.rot90(frame, -1))
    y, x = 2, 1
    assert "BSNN_EVENTS_ROW(x, y) (x)\n" in text
    assert "BSNN_EVENTS_COLUMN(x, y) (2 - (y))\n" in text
    assert (row, column) == (x, 2 - y)


@pytest.mark.parametrize(
    ("decode", "reason"),
    [
        ({}, "does not say of what camera"),
        ({"sensor": (128, 128)}, "34 × 34 are resized from a camera of 128 × 128"),
        ({"sensor": (34, 35), "turned": True}, "34 × 34 are resized from a camera of 35 × 34"),
    ],
)
def test_frames_of_another_size_than_the_camera_are_not_summed(decode: dict, reason: str, tmp_path: Path) -> None:
    artifact = read(bsnn.zoo.path("nmnist"))
    assert why_no_events(artifact.input) is None
    artifact = replace(artifact, input=replace(artifact.input, decode=decode))
    assert not event_files(artifact.input)
    assert reason in export_c(artifact, tmp_path)["no_events"]
    assert reason in (tmp_path / "README.md").read_text()
