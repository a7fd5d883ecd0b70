"""Writes tiny data files byte by byte, as the formats define them, for the tests of the readers."""

import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keeps decoded samples out of the user's cache folder."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("BSNN_CACHE", str(folder))
    return folder


def put(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def short_string(text: str) -> bytes:
    """A Python 2 string in a pickle."""
    return b"U" + bytes([len(text)]) + text.encode()


def pickled_array(array: np.ndarray, core: str = "numpy.core", code: str = "u1") -> bytes:
    """The opcodes that Python 2 and NumPy 1 wrote for an array."""
    shape = b"(" + b"".join(b"J" + struct.pack("<i", side) for side in array.shape) + b"t"
    kind = b"cnumpy\ndtype\n" + short_string(code) + b"K\x00K\x01\x87R"
    kind += b"(K\x03U\x01|NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    content = array.tobytes()
    return (
        f"c{core}.multiarray\n_reconstruct\ncnumpy\nndarray\n".encode()
        + b"K\x00\x85U\x01b\x87R(K\x01"
        + shape
        + kind
        + b"\x89T"
        + struct.pack("<i", len(content))
        + content
        + b"tb"
    )


def pickled(entries: dict[str, bytes]) -> bytes:
    """A Python 2 dictionary of values that are opcodes already."""
    return b"\x80\x02}(" + b"".join(short_string(key) + value for key, value in entries.items()) + b"u."


def pickled_list(items: Iterable[int | str]) -> bytes:
    words = [short_string(item) if isinstance(item, str) else b"J" + struct.pack("<i", item) for item in items]
    return b"](" + b"".join(words) + b"e"


def idx(array: np.ndarray, code: int = 8) -> bytes:
    sides = b"".join(struct.pack(">I", side) for side in array.shape)
    return bytes([0, 0, code, array.ndim]) + sides + array.tobytes()


def png(array: np.ndarray, color: int, depth: int = 8, palette: bytes = b"") -> bytes:
    """A PNG of rows; color 0 is gray, 2 RGB, 3 palette, 4 gray with alpha, 6 RGBA."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = array if depth == 8 else array.astype(">u2")
    lines = b"".join(b"\0" + row.tobytes() for row in rows)
    head = struct.pack(">IIBBBBB", array.shape[1], array.shape[0], depth, color, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + (chunk(b"PLTE", palette) if palette else b"")
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )


HEADER = b"#!AER-DAT2.0\r\n# This is a raw AE data file\r\n# Timestamps tick is 1 us\r\n"


def aedat(events: Iterable[tuple[int, int, int, int]], header: bytes = HEADER) -> bytes:
    """A DVS128 recording of (x, y, t, p) as jAER writes it: columns from the right, bit 0 for brighter."""
    words = [struct.pack(">II", y << 8 | (127 - x) << 1 | (1 - p), t % 2**32) for x, y, t, p in events]
    return header + b"".join(words)


def nmnist_bin(events: Iterable[tuple[int, int, int, int]]) -> bytes:
    return b"".join(bytes([x, y, p << 7 | (t >> 16) & 0x7F, (t >> 8) & 0xFF, t & 0xFF]) for x, y, t, p in events)


def wav(
    samples: Sequence[float] | np.ndarray,
    rate: int = 16_000,
    bits: int = 16,
    channels: int = 1,
    floating: bool = False,
    extensible: bool = False,
    before: bytes = b"",
) -> bytes:
    """A wav of interleaved samples in [-1, 1]; `before` goes in front of the data chunk."""
    values = np.asarray(samples, np.float64)
    if floating:
        content = values.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        content = np.round(values * 127 + 128).astype(np.uint8).tobytes()
    else:
        whole = np.round(values * (2 ** (bits - 1) - 1)).astype("<i4")
        content = whole.view(np.uint8).reshape(-1, 4)[:, : bits // 8].tobytes()
    code = 3 if floating else 1
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", 0xFFFE if extensible else code, channels, rate, rate * block, block, bits)
    if extensible:
        guid = struct.pack("<H", code) + bytes.fromhex("000000001000800000aa00389b71")
        form += struct.pack("<HHI", 22, bits, 0) + guid
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + before
    body += b"data" + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", len(body)) + body


def write_tones(root: Path, count: int = 10, names: str = "{number}") -> Path:
    """Folders of tones, `low` and `high`, with some noise, so that no two are the same."""
    rng = np.random.default_rng(0)
    for name, frequency in (("low", 300), ("high", 2000)):
        for number in range(count):
            samples = 0.3 * np.sin(np.arange(12_000) * (2 * np.pi * frequency / 16_000))
            samples += 0.01 * rng.standard_normal(12_000)
            put(root / name / f"{names.format(number=number)}.wav", wav(samples))
    return root
