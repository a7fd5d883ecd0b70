"""Model files that are damaged, wrong or too much work are refused with a message that says how."""

import dataclasses
import importlib.util
import struct
from pathlib import Path

import numpy as np
import pytest
from model_bytes import changed, sealed

import bsnn
from bsnn.deploy.codec import decode, encode, write
from bsnn.deploy.engine.native import libraries
from bsnn.deploy.schema import Artifact, BadModel, InputSpec, MaxPool, Synapse


def test_a_changed_header_with_a_right_checksum_is_read_when_it_is_sound(content: bytes) -> None:
    assert decode(changed(content, lambda header: header.update(name="ten"))).name == "ten"
    assert decode(changed(content, lambda header: header.update(dict(reversed(header.items()))))).name == "digits"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: b"", "not a model file"),
        (lambda c: c[:40], "not a model file"),
        (lambda c: b"PK" + c[2:], "not a model file"),
        (lambda c: sealed(c[:8] + b"\x02" + c[9:]), "version 2 of the format.*update bsnn"),
        (lambda c: c[:8] + b"\x03" + c[9:], "checksum is wrong: the file is damaged"),
        (lambda c: c[:11] + b"\x80" + c[12:], "checksum is wrong: the file is damaged"),
        (lambda c: c[:-1], "bytes long"),
        (lambda c: c + b"\0", "bytes long"),
        (lambda c: c[:2000] + bytes([c[2000] ^ 1]) + c[2001:], "checksum"),
        (lambda c: sealed(c[:12] + struct.pack("<I", 2**31) + c[16:]), "header is said"),
        (lambda c: sealed(c[:56] + b"[" * 64 + c[120:]), "not JSON"),
    ],
)
def test_a_damaged_file_is_refused_and_says_how(content: bytes, damage, message: str) -> None:
    with pytest.raises(BadModel, match=message):
        decode(damage(content))


def layer(kind: str = "synapse", **keys):
    """A change of the first layer of a kind."""
    return lambda header: next(layer for layer in header["layers"] if layer["op"] == kind).update(keys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.pop("layers"), "lacks `layers`"),
        (lambda h: h.update(layers=[]), "a list of 1"),
        (lambda h: h.update(layers=[3]), "expected an object"),
        (lambda h: h.update(classes=["a"] * 9), "one output per class"),
        (lambda h: h.update(classes=[1] * 10), "not a text"),
        (lambda h: h.update(time_steps=0), "from 1 to"),
        (lambda h: h.update(time_steps=True), "whole number"),
        (lambda h: h.update(output_scale=float("nan")), "finite"),
        (lambda h: h.update(output_scale=10**400), "finite"),
        (lambda h: h["input"].update(shape=[1, 8]), "`shape`"),
        (lambda h: h["input"].update(std=[0.0]), "above 0"),
        (lambda h: h["input"].update(kind="smell"), "`kind`"),
        (layer(op="dream"), "`op`"),
        (layer(inputs=[1]), "made before it"),
        (layer(inputs=[0, 0]), "takes 1 inputs"),
        (layer(out=25), "expected .* rows|weights are"),
        (layer(weight=[0, 10**6]), "ends at byte 1000000 of the data, which has"),
        (layer(kernel=[3, 4]), "its weights are"),
        (layer(kernel=[3, 0]), "whole numbers from 1"),
        (layer(stride=[0, 1]), "whole numbers from 1"),
        (layer(padding=[3, 1]), "not below the reach"),
        (layer(groups=5), "groups do not divide"),
        (layer(shift=41), "from 0 to 40"),
        (layer(input_shift=1), "only fixed"),
        (layer("lif", leak=65537), "from 0 to 65536"),
        (layer("lif", threshold=0), "from 1"),
        (layer("lif", inputs=[0]), "takes fixed"),
        (layer("lif", firing_rate=1.5), "from 0 to 1"),
        (layer("average_pool", kernel=[9, 9]), "does not fit"),
        (layer("average_pool", inputs=[1]), "taken by no layer|layer"),
    ],
)
def test_a_wrong_header_with_a_right_checksum_is_refused(content: bytes, change, message: str) -> None:
    with pytest.raises(BadModel, match=message):
        decode(changed(content, change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.update(note=1), "the header has the unknown key 'note'; expected `classes`, "),
        (lambda h: h["input"].update(note=1), "the input has the unknown key 'note'"),
        (lambda h: h["input"]["decode"].update(sensor=[1, 1]), "`decode` has the unknown key 'sensor'; expected none"),
        (layer(note=1), "layer conv1 has the unknown key 'note'"),
        (layer("lif", weight=[0, 8]), "layer lif1 has the unknown key 'weight'"),
    ],
)
def test_unknown_keys_are_refused(content: bytes, change, message: str) -> None:
    with pytest.raises(BadModel, match=message):
        decode(changed(content, change))


def test_sums_that_could_overflow_are_refused(content: bytes) -> None:
    made = decode(content)
    (first, *_) = made.layers
    heavy = np.full(first.weight.shape, 32767, np.int16)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(BadModel, match="below 2\\^30"):
        dataclasses.replace(made, layers=(dataclasses.replace(first, weight=heavy), *made.layers[1:]))


@pytest.mark.parametrize(("side", "window", "message"), [(3000, 3000, "elements per step"), (2000, 1000, "additions")])
def test_work_that_a_small_file_does_not_justify_is_refused(side: int, window: int, message: str) -> None:
    spec = InputSpec("image", (1, side, side), 0, 1.0, (0.0,), (1.0,), (1,), (0,), 0, {})
    one, bits = np.ones(1, np.int32), np.ones((4, 1), np.uint8)
    first = Synapse("s", (0,), 1, (2, 2), (1, 1), (0, 0), (1, 1), 1, "bits", 0, 0, bits, one, one)
    pools = (window, side - window) if side > window else (side - 1,)
    layers = (first, *(MaxPool("m", (n + 1,), (k, k), (1, 1), (0, 0), False) for n, k in enumerate(pools)))
    made = Artifact("big", ("a",), 1, 16, spec, layers, 1.0)
    content = encode(made)
    if message == "additions":
        content += bytes(200_000)  # enough for the elements
        content = sealed(content[:16] + struct.pack("<Q", len(content)) + content[24:])
    with pytest.raises(BadModel, match=message):
        decode(content)


@pytest.mark.skipif(not libraries(), reason="the C kernel was not built")
def test_mutated_files_are_refused_or_run(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "benchmarks" / "mutations.py"
    spec = importlib.util.spec_from_file_location("mutations", path)
    assert spec is not None
    assert spec.loader is not None
    mutations = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutations)
    counts = mutations.check(mutations.sources(tmp_path), count=600, seed=1)["counts"]
    assert sum(number for kind, number in counts.items() if "refused" in kind) > 400
    assert sum(number for kind, number in counts.items() if kind.endswith("run")) > 10


def test_writing_where_one_may_not_leaves_nothing(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(bsnn.UserError, match="cannot be written"):
        write(tmp_path / "nowhere" / "model.bsnn", decode(content))
    assert not list(tmp_path.iterdir())
