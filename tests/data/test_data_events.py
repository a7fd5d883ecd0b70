import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from data_files import HEADER, aedat, nmnist_bin, own_cache, put  # noqa: F401

from bsnn import UserError
from bsnn.data import dvs_cifar10, events as events_module, nmnist
from bsnn.data.cifar import CIFAR10_CLASSES
from bsnn.data.event_sets import dvs_cifar10_files
from bsnn.data.events import Events, count_frames, decode_events, read_events, unwrap

EVENTS = [(0, 0, 10, 1), (127, 5, 20, 0), (64, 127, 30, 1), (3, 4, 40, 0)]
SMALL = [(0, 0, 10, 1), (33, 5, 20, 0), (16, 33, 30, 1), (3, 4, 8_000_000, 0)]


def rows(events: Events) -> list[tuple[int, int, int, int]]:
    return list(zip(*(array.tolist() for array in events[:4]), strict=True))


def npz(path: Path, **arrays: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, np.asarray(array))
    return path


def test_formats_round_trip(tmp_path):
    assert rows(read_events(put(tmp_path / "a.aedat", aedat(EVENTS)))) == EVENTS
    assert rows(read_events(put(tmp_path / "a.bin", nmnist_bin(SMALL)))) == SMALL
    x, y, t, p = zip(*EVENTS, strict=True)
    assert rows(read_events(npz(tmp_path / "a.npz", x=x, y=y, t=t, p=p))) == EVENTS


@pytest.mark.parametrize(
    "header",
    [
        b"#!AER-DAT2.0\r\n",
        b"#!AER-DAT2.0\n",
        HEADER + b"#\r\n# created Thu 12:00 \xe9t\xe9\r\n",
        HEADER + b"#End Of ASCII Header\r\n",
    ],
)
def test_headers_of_aedat(tmp_path, header):
    assert rows(read_events(put(tmp_path / "a.aedat", aedat(EVENTS, header)))) == EVENTS


def test_an_address_that_looks_like_a_comment(tmp_path):
    # 0x23 is '#': the first address of a DAVIS camera can start with it.
    address = 0x23 << 24 | 5 << 12 | 1 << 11
    header = b"#!AER-DAT2.0\r\n# AEChip: eu.seebetter.ini.chips.davis.DAVIS240C\r\n"
    content = header + struct.pack(">II", address, 0x0A) + struct.pack(">II", address, 11)
    events = read_events(put(tmp_path / "a.aedat", content))
    assert events.sensor == (180, 240)
    assert rows(events) == [(5, 0x23 << 24 >> 22, 10, 1), (5, 0x23 << 24 >> 22, 11, 1)]


@pytest.mark.parametrize(
    "line",
    [b"# AEChip: eu.seebetter.ini.chips.davis.DavisRGBW640\r\n", b"#AEChip: DAVIS640\r\n", b"# my Davis 640\r\n"],
)
def test_cameras_of_the_davis_family(tmp_path, line):
    content = b"#!AER-DAT2.0\r\n" + line + struct.pack(">II", 400 << 22 | 600 << 12, 1)
    events = read_events(put(tmp_path / "a.aedat", content))
    assert (rows(events), events.sensor) == ([(600, 400, 1, 0)], (480, 640))


def test_a_mention_of_a_davis_does_not_make_one(tmp_path):
    mention = b"# <entry key='DAVIS240C.hardware' value='none'/>\r\n"
    path = put(tmp_path / "a.aedat", aedat(EVENTS, HEADER + b"# AEChip: ch.unizh.ini.jaer.chip.DVS128\r\n" + mention))
    assert (rows(read_events(path)), read_events(path).sensor) == (EVENTS, (128, 128))
    with pytest.raises(UserError, match=r"b.aedat: the header mentions a DAVIS240 .* look like those of a DVS128"):
        read_events(put(tmp_path / "b.aedat", aedat(EVENTS, HEADER + mention)))


def test_external_signals_and_image_samples_are_no_events(tmp_path):
    content = aedat(EVENTS) + struct.pack(">II", 0x8000, 50) + struct.pack(">II", 0x8000_0001, 51)
    assert rows(read_events(put(tmp_path / "a.aedat", content))) == EVENTS
    davis = b"#!AER-DAT2.0\r\n# AEChip: Davis346red\r\n"
    words = [(7 << 22 | 300 << 12, 1), (1 << 31 | 7 << 22, 2), (1 << 10, 3)]
    content = davis + b"".join(struct.pack(">II", *word) for word in words)
    events = read_events(put(tmp_path / "b.aedat", content))
    assert (rows(events), events.sensor) == ([(300, 7, 1, 0)], (260, 346))


def test_clocks_wrap_and_events_get_in_order(tmp_path):
    wrapped = [(1, 0, 2**32 - 5, 1), (2, 0, 2**32 - 1, 1), (3, 0, 2**32 + 3, 1), (4, 0, 2**32 + 9, 0)]
    read = read_events(put(tmp_path / "a.aedat", aedat(wrapped)))
    assert rows(read) == wrapped
    mixed = [wrapped[index] for index in (0, 2, 1, 3)]
    assert rows(read_events(put(tmp_path / "b.aedat", aedat(mixed)))) == wrapped
    shuffled = [EVENTS[index] for index in (2, 0, 3, 1)]
    assert rows(read_events(put(tmp_path / "c.aedat", aedat(shuffled)))) == EVENTS
    short = [(1, 1, 2**23 - 2, 1), (2, 1, 2**23 + 4, 0)]
    assert rows(read_events(put(tmp_path / "d.bin", nmnist_bin(short)))) == short
    signed = np.array([2**31 - 1, -(2**31), 5 - 2**31], np.int32)
    path = npz(tmp_path / "e.npz", x=[0, 1, 2], y=[0, 0, 0], t=signed, p=[0, 1, 1])
    assert read_events(path).x.tolist() == [0, 1, 2]


def test_a_long_pause_is_no_wrap():
    times = np.array([0, 3 * 2**30, 3 * 2**30 + 1])
    assert np.array_equal(unwrap(times, 2**32), times)
    assert unwrap(np.array([200, 1, 255, 2, 1, 200, 3]), 256).tolist() == [200, 257, 255, 258, 257, 200, 259]


def test_events_of_one_time_keep_their_order(tmp_path):
    same = [(x, 0, 7, 1) for x in range(9)] + [(99, 0, 6, 1)]
    read = read_events(put(tmp_path / "a.aedat", aedat(same)))
    assert read.x.tolist() == [99, *range(9)]


def test_overflow_markers_of_nmnist(tmp_path):
    path = put(tmp_path / "a.bin", nmnist_bin([(1, 1, 100, 1), (0, 240, 0, 0), (2, 2, 50, 0)]))
    assert rows(read_events(path)) == [(1, 1, 100, 1), (2, 2, 50 + 2**13, 0)]
    late = put(tmp_path / "b.bin", nmnist_bin([(1, 1, 5_000_000, 1), (0, 240, 0, 0), (2, 2, 5_000_001, 0)]))
    assert read_events(late).t.tolist() == [5_000_000, 5_000_001 + 2**13]


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint16, np.int64, np.uint64, np.float32, np.float64])
def test_npz_of_any_numbers(tmp_path, kind):
    x, y, t, p = (np.array(values, kind) for values in ([3, 9], [1, 2], [5, 6], [0, 1]))
    assert rows(read_events(npz(tmp_path / "a.npz", x=x, y=y, t=t, p=p))) == [(3, 1, 5, 0), (9, 2, 6, 1)]


@pytest.mark.parametrize("p", [[False, True], [-1, 1], [0, 1], [-1.0, 1.0], [1, 2]])
def test_npz_of_any_polarity(tmp_path, p):
    events = read_events(npz(tmp_path / "a.npz", x=[0, 0], y=[0, 0], t=[0, 1], p=p))
    assert events.p.tolist() == [0, 1]


def test_npz_of_other_layouts(tmp_path):
    table = np.array(EVENTS, np.dtype([("x", "<i2"), ("y", "<i2"), ("t", "<i8"), ("p", "<i1")]))
    assert rows(read_events(npz(tmp_path / "a.npz", events=table))) == EVENTS
    columns = {name: table[name][:, None] for name in "xytp"}
    assert rows(read_events(npz(tmp_path / "b.npz", **columns))) == EVENTS
    sized = npz(tmp_path / "c.npz", width=346, height=260, **columns)
    assert read_events(sized).sensor == (260, 346)
    assert read_events(sized, (300, 400)).sensor == (300, 400)
    with pytest.raises(UserError, match=r"d.npz: holds a, b; expected arrays x, y, t and p"):
        read_events(npz(tmp_path / "d.npz", events=np.zeros(2, [("a", int), ("b", int)])))


@pytest.mark.parametrize("kind", [np.uint16, np.int16])
def test_narrow_times_wrap(tmp_path, kind):
    times = np.arange(0, 200_000, 5000)
    zeros = np.zeros_like(times)
    path = npz(tmp_path / "a.npz", x=np.arange(len(times)), y=zeros, t=times.astype(kind), p=zeros)
    assert np.array_equal(read_events(path).x, np.arange(len(times)))


def test_an_npz_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(events_module, "_MAX_NPZ_BYTES", 1000)
    ticks = np.arange(200)
    with pytest.raises(UserError, match=r"a.npz: unpacks to .* bytes; refused as a bomb"):
        read_events(npz(tmp_path / "a.npz", x=ticks, y=ticks, t=ticks, p=ticks % 2))


def test_the_header_of_aedat_ends_where_it_says(tmp_path):
    # This event, read as text, is one more line of comment.
    address, time = struct.unpack(">II", b"# xext\r\n")
    header = b"#!AER-DAT2.0\r\n# AEChip: DAVIS640\r\n#End Of ASCII Header\r\n"
    content = header + struct.pack(">IIII", address, time, 5 << 22 | 6 << 12, time + 1)
    events = read_events(put(tmp_path / "a.aedat", content))
    assert events.t.tolist() == [time, time + 1]


def test_frames_share_events_evenly():
    count = 23
    ticks = np.arange(count)
    events = Events(ticks % 4, ticks % 3, ticks, ticks % 2, (3, 4))
    frames = count_frames(events, 5, (3, 4))
    assert frames.sum((1, 2, 3)).tolist() == [4, 5, 4, 5, 5]
    assert frames[0, 0].tolist() == [[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]
    assert count_frames(events, 30, (3, 4)).sum() == count


def test_decoded_frames(tmp_path):
    path = put(tmp_path / "a.aedat", aedat([(10, 20, 1, 1)] * 3 + [(10, 20, 2, 0)] * 50))
    counts = decode_events(path, time_steps=1, sensor=(128, 128), size=(128, 128))
    assert (counts.dtype, counts.shape) == (np.uint8, (1, 2, 128, 128))
    assert counts[0, :, 20, 10].tolist() == [255, 24]
    assert counts.sum() == 279
    seen = decode_events(path, time_steps=1, sensor=(128, 128), size=(128, 128), presence=True)
    assert seen[0, :, 20, 10].tolist() == [255, 255]
    whole = put(tmp_path / "b.aedat", aedat([(x, y, 1, 1) for x in range(128) for y in range(128)]))
    small = decode_events(whole, time_steps=1, sensor=(128, 128), size=(48, 48), presence=True)
    assert np.all(small[0, 1] == 255)
    assert not small[0, 0].any()


BROKEN = {
    "a.aedat no header": (aedat(EVENTS, b""), r"expected #!AER-DAT2.0"),
    "a.aedat empty": (b"", r"expected #!AER-DAT2.0"),
    "a.aedat version 3": (b"#!AER-DAT3.1\r\n" + bytes(28), "AEDAT 3.1; expected AEDAT 2.0"),
    "a.aedat version 1": (b"#!AER-DAT1.0\r\n" + bytes(6), "AEDAT 1.0; expected AEDAT 2.0"),
    "a.aedat cut": (aedat(EVENTS)[:-3], "not whole events of 8 bytes"),
    "a.aedat no events": (HEADER, "holds no events"),
    "a.aedat signals only": (HEADER + struct.pack(">II", 0x8000, 1), "holds no events"),
    "a.aedat other camera": (HEADER + struct.pack(">II", 1 << 20, 1), "do not fit a DVS128"),
    "a.aedat beyond DAVIS": (
        b"#!AER-DAT2.0\r\n#DAVIS240\r\n" + struct.pack(">II", 250 << 12, 1),
        "outside of the sensor, the first at x = 250, y = 0",
    ),
    "a.bin cut": (nmnist_bin(SMALL)[:-1], "not whole events of 5 bytes"),
    "a.bin empty": (b"", "holds no events"),
    "a.bin outside": (nmnist_bin([(34, 0, 1, 1)]), "x = 34, y = 0; expected x below 34"),
    "a.bin text": (b"hello", "outside of the sensor"),
    "a.npz text": (b"hello", "not a whole .npz file"),
    "a.npz empty": (b"", "not a whole .npz file"),
    "a.txt": (b"1 2 3 4", "not an event file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_recordings_are_refused_by_name(tmp_path, name):
    content, message = BROKEN[name]
    file = name.split()[0]
    with pytest.raises(UserError, match=message) as caught:
        read_events(put(tmp_path / file, content))
    assert file in str(caught.value)


GOOD = {"x": [1, 2], "y": [1, 2], "t": [1, 2], "p": [0, 1]}
BROKEN_NPZ = {
    "missing": ({"p": None}, "expected arrays x, y, t and p"),
    "lengths": ({"x": [1, 2, 3]}, "four arrays of one length"),
    "axes": ({"x": [[1, 2]]}, "four arrays of one length"),
    "fractions": ({"x": [0.5, 1]}, "x is float64 and not all whole numbers"),
    "not a number": ({"y": [np.nan, 1]}, "y is float64"),
    "infinite time": ({"t": [np.inf, 1]}, "t is float64"),
    "words": ({"t": ["a", "b"]}, "t is <U1"),
    "negative": ({"x": [-1, 2]}, "x or y is below 0"),
    "polarity": ({"p": [0, 3]}, "expected 0 and 1, -1 and 1, or 1 and 2"),
    "polarity words": ({"p": ["on", "off"]}, "p is <U3"),
    "none": ({key: [] for key in "xytp"}, "holds no events"),
    "objects": ({"x": np.array([{}, 1], object)}, "of plain arrays"),
    "huge": ({"x": np.array([2**63 + 5, 1], np.uint64)}, "is no pixel"),
}


@pytest.mark.parametrize("name", BROKEN_NPZ)
def test_broken_npz_are_refused_by_name(tmp_path, name):
    change, message = BROKEN_NPZ[name]
    arrays = {key: value for key, value in (GOOD | change).items() if value is not None}
    with pytest.raises(UserError, match=message) as caught:
        read_events(npz(tmp_path / "a.npz", **arrays))
    assert "a.npz" in str(caught.value)


def test_a_cut_npz_is_refused(tmp_path):
    path = npz(tmp_path / "a.npz", **GOOD)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(UserError, match=r"a.npz: not a whole .npz file"):
        read_events(path)


def test_a_given_sensor_bounds_npz(tmp_path):
    path = npz(tmp_path / "a.npz", **GOOD)
    assert read_events(path, (3, 3)).sensor == (3, 3)
    with pytest.raises(UserError, match="outside of the sensor"):
        read_events(path, (3, 2))


def write_dvs_cifar10(root: Path, count: int) -> Path:
    for label, name in enumerate(CIFAR10_CLASSES):
        for number in range(count):
            content = aedat([(label, number, time, time % 2) for time in range(20)])
            put(root / name / f"cifar10_{name}_{number}.aedat", content)
    return root


def test_dvs_cifar10(tmp_path, own_cache):  # noqa: F811
    root = write_dvs_cifar10(tmp_path, 20)
    train, test = dvs_cifar10(root), dvs_cifar10(root, "test")
    assert (len(train), len(test)) == (180, 20)
    assert np.bincount(test.labels).tolist() == [2] * 10
    assert train.shape == (10, 2, 48, 48)
    files = sorted((own_cache / "decoded").iterdir())
    assert len(files) == 2
    again = dvs_cifar10(root)
    assert np.array_equal(again.read(7), train.read(7))
    small = dvs_cifar10(root, time_steps=4, size=128)
    assert small.shape == (4, 2, 128, 128)
    assert small.read(0)[0].any(0).sum() == 1


def test_pictures_of_dvs_cifar10_stand_upright(tmp_path):
    root = write_dvs_cifar10(tmp_path, 2)
    row, column = 100, 7
    content = HEADER + struct.pack(">II", row << 8 | column << 1, 1)
    for number in range(2):
        put(root / "airplane" / f"cifar10_airplane_{number}.aedat", content)
    frame = dvs_cifar10(root, time_steps=1, size=128).read(0)[0, 1]
    assert np.argwhere(frame).tolist() == [[127 - column, 127 - row]]


def test_the_split_of_dvs_cifar10_is_fixed(tmp_path):
    root = write_dvs_cifar10(tmp_path, 20)
    held_out = [path.stem for path in dvs_cifar10_files(root, "test").paths]
    assert held_out[:4] == [
        "cifar10_airplane_1",
        "cifar10_airplane_18",
        "cifar10_automobile_1",
        "cifar10_automobile_11",
    ]
    everything = {path for split in ("train", "test") for path in dvs_cifar10_files(root, split).paths}
    assert len(everything) == 200


def test_dvs_cifar10_mistakes(tmp_path):
    root = write_dvs_cifar10(tmp_path, 2)
    put(root / "cat" / "cifar10_cat_1.aedat", HEADER)
    (split,) = (
        split
        for split in ("train", "test")
        if any(path.name == "cifar10_cat_1.aedat" for path in dvs_cifar10_files(root, split).paths)
    )
    with pytest.raises(UserError, match=r"cifar10_cat_1.aedat: holds no events"):
        dvs_cifar10(root, split)
    (root / "truck").rename(root / "lorry")
    with pytest.raises(UserError, match="DVS-CIFAR10 has airplane"):
        dvs_cifar10(root)


def write_nmnist(root: Path) -> Path:
    for split in ("Train", "Test"):
        for digit in range(10):
            content = nmnist_bin([(digit, digit, time, time % 2) for time in range(40)])
            put(root / split / str(digit) / "00001.bin", content)
    return root


def test_nmnist(tmp_path):
    train, test = nmnist(write_nmnist(tmp_path)), nmnist(tmp_path, "test")
    assert (len(train), len(test), train.shape, train.scale) == (10, 10, (10, 2, 34, 34), 8.0)
    assert train.labels.tolist() == list(range(10))
    assert train.read(3)[0, :, 3, 3].tolist() == [16, 16]
    assert train.mean == test.mean
    assert train.mean[0] == pytest.approx(2 / 34**2)


def test_nmnist_mistakes(tmp_path):
    put(write_nmnist(tmp_path) / "Train" / "4" / "00002.bin", b"\xff" * 5)
    with pytest.raises(UserError, match=r"00002.bin: 1 of 1 events lie outside of the sensor"):
        nmnist(tmp_path)
    put(tmp_path / "Train" / "ten" / "00001.bin", nmnist_bin(SMALL))
    with pytest.raises(UserError, match="N-MNIST has folders 0 to 9"):
        nmnist(tmp_path)
    with pytest.raises(UserError, match="expected Train and Test"):
        nmnist(tmp_path / "Train")
