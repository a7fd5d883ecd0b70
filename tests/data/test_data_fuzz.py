"""Damages a file of each format at random: a reader gives a sample, or an error that names the file."""

import gzip
import io
import pickle
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from data_files import aedat, idx, nmnist_bin, put, wav
from PIL import Image
from test_data_archive import tar, zipped
from test_data_cifar import batch, pixels

from bsnn import UserError
from bsnn.data.archive import extract
from bsnn.data.audio import decode_sound
from bsnn.data.events import decode_events
from bsnn.data.idx import read_idx
from bsnn.data.images import decode_image
from bsnn.data.pickles import read_pickle

DAMAGES = 40
EVENTS = [(number % 34, number % 33, number, number % 2) for number in range(40)]
TONE = np.sin(np.arange(3000) / 9) / 2


def picture(form: str, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8)
    Image.fromarray(noise).convert(mode).save(buffer, form)
    return buffer.getvalue()


def npz() -> bytes:
    buffer = io.BytesIO()
    ticks = np.arange(50)
    np.savez_compressed(buffer, x=ticks % 34, y=ticks % 34, t=ticks, p=ticks % 2)
    return buffer.getvalue()


def made(tmp_path: Path, make, name: str) -> bytes:
    return make(tmp_path / name, ("a", b"1" * 300), ("b/b", b"2")).read_bytes()


def read_batch(path: Path) -> None:
    read_pickle(path, path.read_bytes())


def unpack(path: Path) -> None:
    place = path.parent / "out"
    extract(path, place, max_bytes=10**7)
    place.rename(path.parent / f"out{len(list(path.parent.iterdir()))}")


see = partial(decode_image, size=(16, 16), channels=3)
watch = partial(decode_events, time_steps=4, sensor=(34, 34), size=(20, 20))
watch_dvs128 = partial(decode_events, time_steps=4, sensor=(128, 128), size=(20, 20))
READERS = {
    "python2-batch": (lambda _: batch(0), read_batch),
    "python3-batch": (lambda _: pickle.dumps({"data": pixels(1), "labels": [1]}), read_batch),
    "a.idx": (lambda _: idx(np.zeros((2, 5, 5), np.uint8)), read_idx),
    "a.idx.gz": (lambda _: gzip.compress(idx(np.zeros((2, 5, 5), np.uint8))), read_idx),
    "a.png": (lambda _: picture("PNG"), see),
    "palette.png": (lambda _: picture("PNG", "P"), see),
    "a.jpg": (lambda _: picture("JPEG"), see),
    "cmyk.jpg": (lambda _: picture("JPEG", "CMYK"), see),
    "a.gif": (lambda _: picture("GIF"), see),
    "a.bmp": (lambda _: picture("BMP"), see),
    "a.webp": (lambda _: picture("WEBP"), see),
    "a.ppm": (lambda _: picture("PPM"), see),
    "a.aedat": (lambda _: aedat(EVENTS), watch_dvs128),
    "a.bin": (lambda _: nmnist_bin(EVENTS), watch),
    "a.npz": (lambda _: npz(), watch),
    "a.wav": (lambda _: wav(TONE), decode_sound),
    "extensible.wav": (lambda _: wav(TONE, bits=24, extensible=True), decode_sound),
    "float.wav": (lambda _: wav(TONE, bits=32, floating=True), decode_sound),
    "a.tar.gz": (lambda tmp_path: made(tmp_path, tar, "made.tar.gz"), unpack),
    "a.tar": (lambda tmp_path: gzip.decompress(made(tmp_path, tar, "made.tar.gz")), unpack),
    "a.zip": (lambda tmp_path: made(tmp_path, zipped, "made.zip"), unpack),
}


def damaged(whole: bytes, rng: np.random.Generator) -> bytes:
    content = bytearray(whole)
    place = int(rng.integers(min(len(content), 300)))
    kind = rng.integers(4)
    if kind == 0:
        return bytes(content[: rng.integers(len(content))])
    if kind == 1:
        for _ in range(rng.integers(1, 6)):
            content[rng.integers(len(content))] = rng.integers(256)
    elif kind == 2:
        content[place : place + rng.integers(1, 9)] = rng.bytes(int(rng.integers(9)))
    else:
        content[place : place + 4] = (b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f")[rng.integers(4)]
    return bytes(content)


@pytest.mark.parametrize("name", READERS)
def test_damage_is_refused_or_harmless(tmp_path, name):
    write, read = READERS[name]
    whole = write(tmp_path)
    rng = np.random.default_rng(0)
    messages = []
    for _ in range(DAMAGES):
        path = put(tmp_path / name, damaged(whole, rng))
        try:
            with warnings.catch_warnings():
                # Pillow warns about odd headers that it can read past.
                warnings.simplefilter("ignore")
                read(path)
        except UserError as error:
            messages.append(str(error))
    assert messages
    assert all(name in message for message in messages)
