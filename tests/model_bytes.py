"""Takes model files apart and assembles others, sound or not, with a right checksum."""

import hashlib
import json
import struct
from collections.abc import Callable


def split(content: bytes) -> tuple[dict, bytes]:
    """The header and the data of a sound file."""
    (length,) = struct.unpack_from("<I", content, 12)
    return json.loads(content[56 : 56 + length]), content[56 + length :]


def tensors(header: dict) -> list[list[int]]:
    """All `[offset, length]` of a header, in order."""
    keys = ("weight", "multiplier", "offset")
    return [layer[key] for layer in header["layers"] for key in keys if key in layer]


def padded(text: str) -> bytes:
    """A header of this JSON, filled up with spaces."""
    return text.encode() + b" " * (-len(text.encode()) % 8)


def sealed(content: bytes) -> bytes:
    """The same with a right checksum."""
    return content[:24] + hashlib.sha256(content[:24] + content[56:]).digest() + content[56:]


def assembled(text: bytes, data: bytes) -> bytes:
    """A file of this header and data."""
    start = b"BSNNMODL" + struct.pack("<IIQ", 1, len(text), 56 + len(text) + len(data))
    return sealed(start + bytes(32) + text + data)


def changed(content: bytes, change: Callable[[dict], object]) -> bytes:
    """The same with another header."""
    header, data = split(content)
    change(header)
    return assembled(padded(json.dumps(header)), data)
