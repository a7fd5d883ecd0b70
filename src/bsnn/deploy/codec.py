"""The model file: a deployed network as bytes, and back; docs/model-file.md defines it.

A reader checks everything that the page promises, and says what is wrong.
"""

import hashlib
import json
import os
import struct
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from bsnn.atomic import write_file
from bsnn.deploy._fields import Fields, Tensors
from bsnn.deploy._header import read_artifact
from bsnn.deploy.schema import Artifact, BadModel, InputSpec, Layer
from bsnn.errors import UserError

_MAGIC = b"BSNNMODL"
_VERSION = 1
_START = struct.Struct("<8sIIQ")
_HEADER_AT = _START.size + 32


def encode(artifact: Artifact) -> bytes:
    """The bytes of a model file."""
    data = bytearray()

    def described(part: Any) -> Any:
        if isinstance(part, np.ndarray):
            data.extend(bytes(-len(data) % 8))
            content = np.ascontiguousarray(part, part.dtype.newbyteorder("<")).tobytes()
            data.extend(content)
            return [len(data) - len(content), len(content)]
        if isinstance(part, tuple):
            return [described(item) for item in part]
        if isinstance(part, Layer | InputSpec):
            own = {f.name: described(getattr(part, f.name)) for f in fields(part)}
            return {"op": part.op, **own} if isinstance(part, Layer) else own
        return part

    known = (f.name for f in fields(artifact) if f.init and getattr(artifact, f.name) is not None)
    header = {name: described(getattr(artifact, name)) for name in known}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = _START.pack(_MAGIC, _VERSION, len(text), _HEADER_AT + len(text) + len(data))
    body = text + bytes(data)
    return start + hashlib.sha256(start + body).digest() + body


def write(path: str | os.PathLike[str], artifact: Artifact) -> int:
    """Writes a model file, whole or not at all, and returns its length."""
    path, content = Path(path), encode(artifact)
    decode(content)  # what a reader would refuse is not written
    write_file(path, content)
    return len(content)


def read(path: str | os.PathLike[str]) -> Artifact:
    """Reads and checks a model file.

    Raises:
        BadModel: If it is not a whole and consistent model file.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}); expected a model file (.bsnn).") from error
    try:
        return decode(content)
    except BadModel as error:
        raise BadModel(f"{path}: {error}") from error


def decode(content: bytes) -> Artifact:
    """The network in the bytes of a model file; its arrays are views of them.

    Raises:
        BadModel: If they are not a whole and consistent model file.
    """
    if content[:8] != _MAGIC:
        raise BadModel("this is not a model file (it does not begin with BSNNMODL); make one with `bsnn export`.")
    if len(content) < _HEADER_AT:
        raise BadModel(f"this is not a model file but its first {len(content)} bytes; copy or export it again.")
    _, version, header_length, length = _START.unpack_from(content)
    if length != len(content):
        raise BadModel(f"it is {len(content)} bytes long and should be {length}; copy or export it again.")
    body = memoryview(content)[_HEADER_AT:]
    digest = hashlib.sha256(content[: _START.size])
    digest.update(body)
    if digest.digest() != content[_START.size : _HEADER_AT]:
        raise BadModel("its checksum is wrong: the file is damaged; copy or export it again.")
    # After the checksum, so that a damaged version is not taken for a newer one.
    if version != _VERSION:
        raise BadModel(f"it has version {version} of the format, and this bsnn reads version {_VERSION}; update bsnn.")
    if header_length > len(body) or header_length % 8:
        raise BadModel(
            f"its header is said to be {header_length} bytes long; expected a multiple of 8 that fits into the file."
        )
    tensors = Tensors(body[header_length:])
    artifact = read_artifact(Fields(_json(body[:header_length]), "the header", tensors), len(content))
    tensors.finish()
    return artifact


def _json(header: memoryview) -> Any:
    """The one JSON value of a header, behind which only spaces may follow."""
    try:
        text = str(header, "utf-8")
        content, end = json.JSONDecoder(object_pairs_hook=_without_repeats).raw_decode(text)
    except BadModel:
        raise
    except (ValueError, RecursionError) as error:
        raise BadModel(f"its header is not JSON ({error}).") from error
    if text[end:].strip(" "):
        raise BadModel("its header is filled up with something else than spaces.")
    return content


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise BadModel(f"its header has the key {key[:60]!r} twice in one object; expected it once.")
        found[key] = value
    return found
