"""A reader of the model file and the network in it, written from docs/model-file.md alone; files that are wrong."""

import dataclasses
import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import bsnn
from bsnn.deploy import artifact
from bsnn.deploy.artifact import BadModel
from bsnn.deploy.engine import Engine

# The reader begins here. It shares no code with the package.


def read_model(content: bytes) -> tuple[dict, bytes]:
    assert content[:8] == b"BSNNMODL"
    version, header_length, length = struct.unpack_from("<IIQ", content, 8)
    assert version == 1
    assert length == len(content)
    assert header_length % 8 == 0
    assert content[24:56] == hashlib.sha256(content[:24] + content[56:]).digest()
    return json.loads(content[56 : 56 + header_length]), content[56 + header_length :]


def tensor(layer: dict, key: str, data: bytes, dtype: str) -> np.ndarray:
    offset, length = layer[key]
    assert offset % 8 == 0
    return np.frombuffer(data[offset : offset + length], dtype).astype(np.int64)


def sat(x):
    return np.clip(x, -(2**30), 2**30)


def round_shift(x, s):
    return x if s == 0 else (x + 2 ** (s - 1)) // 2**s


def places(layer: dict, shape: tuple, y: int, x: int):
    """The places of a window that lie in the input: (tap down, tap across, row, column)."""
    dilation = layer.get("dilation", [1, 1])
    for i in range(layer["kernel"][0]):
        for j in range(layer["kernel"][1]):
            row = y * layer["stride"][0] + i * dilation[0] - layer["padding"][0]
            column = x * layer["stride"][1] + j * dilation[1] - layer["padding"][1]
            if 0 <= row < shape[1] and 0 <= column < shape[2]:
                yield i, j, row, column


def length(layer: dict, side: int, axis: int) -> int:
    """Rows or columns of the output of a synapse or a pool."""
    reach = layer.get("dilation", [1, 1])[axis] * (layer["kernel"][axis] - 1) + 1
    stride, padding = layer["stride"][axis], layer["padding"][axis]
    room = side + 2 * padding - reach
    if not layer.get("ceil"):
        return room // stride + 1
    up = -(-room // stride) + 1
    return up - 1 if (up - 1) * stride >= side + padding else up


def scaled(layer: dict, data: bytes, x: np.ndarray) -> np.ndarray:
    multiplier, offset = (tensor(layer, key, data, "<i4")[:, None, None] for key in ("multiplier", "offset"))
    return sat(round_shift(x * multiplier, layer["shift"]) + offset)


def synapse(layer: dict, data: bytes, x: np.ndarray) -> np.ndarray:
    x = np.clip(round_shift(x, layer["input_shift"]), -32768, 32767)
    channels, groups, (down, across) = x.shape[0], layer["groups"], layer["kernel"]
    outs, part = layer["out"] // groups, channels // groups
    if layer["weights"] == "bits":
        rows = tensor(layer, "weight", data, "u1").reshape(down, across, channels, -1)
        bits = (rows[..., None] >> np.arange(8)) & 1
        weight = 2 * bits.reshape(down, across, channels, -1)[..., :outs] - 1
    else:
        weight = tensor(layer, "weight", data, "<i2").reshape(down, across, channels, outs)
    result = np.zeros((layer["out"], length(layer, x.shape[1], 0), length(layer, x.shape[2], 1)), np.int64)
    for y, column in np.ndindex(*result.shape[1:]):
        for i, j, row, at in places(layer, x.shape, y, column):
            for g in range(groups):
                inside = slice(g * part, (g + 1) * part)
                result[g * outs : (g + 1) * outs, y, column] += x[inside, row, at] @ weight[i, j, inside]
    return scaled(layer, data, result)


def pool(layer: dict, x: np.ndarray, fixed: bool) -> np.ndarray:
    result = np.zeros((x.shape[0], length(layer, x.shape[1], 0), length(layer, x.shape[2], 1)), np.int64)
    for y, column in np.ndindex(*result.shape[1:]):
        window = np.stack([x[:, row, at] for _, _, row, at in places(layer, x.shape, y, column)])
        if layer["op"] == "max_pool":
            result[:, y, column] = window.max(0)
            continue
        total, n = window.sum(0), len(window)
        if fixed:
            if layer["count_padding"]:
                n = 1
                for axis, place in enumerate((y, column)):
                    first = place * layer["stride"][axis] - layer["padding"][axis]
                    n *= min(first + layer["kernel"][axis], x.shape[1 + axis] + layer["padding"][axis]) - first
            total = (2 * total + n) // (2 * n)
        result[:, y, column] = total
    return result


def run_model(content: bytes, x: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Outputs summed over time, and the spikes of every layer, of one image of bytes or integers [C, H, W]."""
    header, data = read_model(content)
    source = header["input"]
    if x.dtype == np.uint8:
        multiplier, offset = (np.array(source[key])[:, None, None] for key in ("multiplier", "offset"))
        x = np.clip(round_shift(x.astype(np.int64) * multiplier + offset, source["shift"]), -32768, 32767)
    membranes: dict[int, np.ndarray] = {}
    spikes: dict[str, list] = {}
    total = 0
    for _ in range(header["time_steps"]):
        values, fixed = [x.astype(np.int64)], [False]
        for number, layer in enumerate(header["layers"]):
            inputs, op = [values[i] for i in layer["inputs"]], layer["op"]
            of_fixed = fixed[layer["inputs"][0]]
            if op == "synapse":
                values.append(synapse(layer, data, inputs[0]))
            elif op == "scale":
                values.append(scaled(layer, data, inputs[0]))
            elif op == "add":
                values.append(sat(inputs[0] + inputs[1]) if of_fixed else inputs[0] + inputs[1])
            elif op == "concat":
                values.append(np.concatenate(inputs))
            elif op == "lif":
                u = sat(round_shift(membranes.get(number, 0) * layer["leak"], 16) + inputs[0])
                s = (u >= layer["threshold"]).astype(np.int64)
                membranes[number] = u - layer["threshold"] * s
                spikes.setdefault(layer["name"], []).append(s)
                values.append(s)
            else:
                values.append(pool(layer, inputs[0], of_fixed))
            fixed.append(op in ("synapse", "scale") or (op != "lif" and of_fixed))
        total = total + values[-1].reshape(-1)
    return np.asarray(total), {name: np.stack(steps) for name, steps in spikes.items()}


# And ends here.


@pytest.fixture(scope="module")
def content() -> bytes:
    return bsnn.digits_model().read_bytes()


def test_a_reader_written_from_the_documentation_gives_the_same_spikes_and_outputs(content: bytes) -> None:
    images = bsnn.data.digits("test").samples[:3]
    record: dict[str, np.ndarray] = {}
    outputs = Engine(artifact.decode(content)).outputs(images, record)
    for number, image in enumerate(images):
        expected, spikes = run_model(content, image)
        assert outputs[number].tolist() == expected.tolist()
        for name, steps in spikes.items():
            assert np.array_equal(record[name][:, number], steps)


def test_the_reader_agrees_on_every_kind_of_layer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    nn = torch.nn
    mixed = bsnn.Sequential(
        nn.AvgPool2d(2, ceil_mode=True, padding=1),
        bsnn.BinaryConv2d(2, 6, 3, 2, padding=2, dilation=2, groups=2),
        nn.AvgPool2d(2, 1, padding=1, count_include_pad=False),
        bsnn.BatchNorm2d(6),
        nn.MaxPool2d(2, 2, 1, ceil_mode=True),
        bsnn.LIF(leak=0.7),
        bsnn.Concat(nn.Identity(), bsnn.Sequential(bsnn.BinaryConv2d(6, 4, 1), bsnn.LIF())),
        nn.Flatten(),
        nn.Linear(10 * 3 * 3, 3),
    )
    for net in (mixed, bsnn.models.resnet18(num_classes=3, in_channels=2, width=0.0625)):
        x = torch.randn(2, 2, 19, 19) if net is not mixed else torch.randn(2, 2, 15, 15)
        with bsnn.estimating_statistics(net):
            bsnn.predict(net, x, 2)
        path = bsnn.export(net, tmp_path / "m.bsnn", input_shape=x.shape[1:], time_steps=2).path
        engine, record = bsnn.load(path), {}
        outputs = engine.outputs(x.numpy(), record)
        integers = np.moveaxis(engine.integers(x.numpy())[0], -1, 1)
        for number in range(2):
            expected, spikes = run_model(Path(path).read_bytes(), integers[number])
            assert outputs[number].tolist() == expected.tolist()
            for name, steps in spikes.items():
                assert np.array_equal(record[name][:, number], steps)


def test_the_same_network_is_the_same_bytes(content: bytes) -> None:
    assert artifact.encode(artifact.decode(content)) == content


def sealed(content: bytes) -> bytes:
    """The same with a right checksum."""
    return content[:24] + hashlib.sha256(content[:24] + content[56:]).digest() + content[56:]


def changed(content: bytes, change) -> bytes:
    """The same with another header."""
    (length,) = struct.unpack_from("<I", content, 12)
    header = json.loads(content[56 : 56 + length])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    whole = 56 + len(text) + len(content) - 56 - length
    return sealed(b"BSNNMODL" + struct.pack("<IIQ", 1, len(text), whole) + bytes(32) + text + content[56 + length :])


def test_a_changed_header_with_a_right_checksum_is_read_when_it_is_sound(content: bytes) -> None:
    made = artifact.decode(changed(content, lambda header: header.update(name="ten", note="unknown keys are ignored")))
    assert made.name == "ten"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: b"", "no model file"),
        (lambda c: c[:40], "no model file"),
        (lambda c: b"PK" + c[2:], "no model file"),
        (lambda c: c[:8] + b"\x02" + c[9:], "version 2"),
        (lambda c: c[:-1], "bytes long"),
        (lambda c: c + b"\0", "bytes long"),
        (lambda c: c[:2000] + bytes([c[2000] ^ 1]) + c[2001:], "checksum"),
        (lambda c: sealed(c[:12] + struct.pack("<I", 2**31) + c[16:]), "header is said"),
        (lambda c: sealed(c[:56] + b"[" * 64 + c[120:]), "not JSON"),
    ],
)
def test_a_damaged_file_is_refused_and_says_how(content: bytes, damage, message: str) -> None:
    with pytest.raises(BadModel, match=message):
        artifact.decode(damage(content))


def layer(kind: str = "synapse", **keys):
    """A change of the first layer of a kind."""
    return lambda header: next(layer for layer in header["layers"] if layer["op"] == kind).update(keys)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.pop("layers"), "lacks `layers`"),
        (lambda h: h.update(layers=[]), "a list of 1"),
        (lambda h: h.update(layers=[3]), "expected an object"),
        (lambda h: h.update(classes=["a"] * 9), "one output a class"),
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
        (layer(weight=[0, 10**6]), "a place within"),
        (layer(weight=[4, 432]), "a place within"),
        (layer(kernel=[3, 4]), "its weights are"),
        (layer(kernel=[3, 0]), "whole numbers from 1"),
        (layer(stride=[0, 1]), "whole numbers from 1"),
        (layer(padding=[3, 1]), "not below the reach"),
        (layer(groups=5), "groups do not divide"),
        (layer(shift=41), "from 0 to 40"),
        (layer(input_shift=1), "only fixed"),
        (layer(multiplier=[0, 8]), "one a channel"),
        (layer("lif", leak=65537), "from 0 to 65536"),
        (layer("lif", threshold=0), "from 1"),
        (layer("lif", inputs=[0]), "takes fixed"),
        (layer("average_pool", kernel=[9, 9]), "does not fit"),
        (layer("average_pool", inputs=[1]), "taken by no layer|layer"),
    ],
)
def test_a_wrong_header_with_a_right_checksum_is_refused(content: bytes, change, message: str) -> None:
    with pytest.raises(BadModel, match=message):
        artifact.decode(changed(content, change))


def test_sums_that_could_overflow_are_refused(content: bytes) -> None:
    made = artifact.decode(content)
    (first, *_) = made.layers
    heavy = np.full(first.weight.shape, 32767, np.int16)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(BadModel, match="below 2\\^30"):
        dataclasses.replace(made, layers=(dataclasses.replace(first, weight=heavy), *made.layers[1:]))


@pytest.mark.parametrize(("side", "window", "message"), [(3000, 3000, "elements a step"), (2000, 1000, "additions")])
def test_work_that_a_small_file_does_not_justify_is_refused(side: int, window: int, message: str) -> None:
    spec = artifact.InputSpec("image", (1, side, side), 0, 1.0, (0.0,), (1.0,), (1,), (0,), 0, {})
    one, bits = np.ones(1, np.int32), np.ones((4, 1), np.uint8)
    first = artifact.Synapse("s", (0,), 1, (2, 2), (1, 1), (0, 0), (1, 1), 1, "bits", 0, 0, bits, one, one)
    pools = (window, side - window) if side > window else (side - 1,)
    layers = (first, *(artifact.MaxPool("m", (n + 1,), (k, k), (1, 1), (0, 0), False) for n, k in enumerate(pools)))
    made = artifact.Artifact("big", ("a",), 1, 16, spec, layers, 1.0)
    content = artifact.encode(made)
    if message == "additions":
        content += bytes(200_000)  # enough for the elements
        content = sealed(content[:16] + struct.pack("<Q", len(content)) + content[24:])
    with pytest.raises(BadModel, match=message):
        artifact.decode(content)


def test_mutated_files_are_refused_or_run(content: bytes) -> None:
    rng = np.random.default_rng(0)
    image = bsnn.data.digits("test").samples[:1]
    read = 0
    for number in range(300):
        mutated = bytearray(content)
        for _ in range(int(rng.integers(1, 4))):
            place = int(rng.integers(0, 4096 if rng.random() < 0.7 else len(content)))
            mutated[place] = int(rng.integers(256))
        cut = bytes(mutated[: int(rng.integers(len(content)))] if number % 10 == 0 else mutated)
        whole = sealed(cut) if number % 2 and len(cut) > 56 else cut
        try:
            engine = Engine(artifact.decode(whole))
        except BadModel:
            continue
        read += 1
        if engine.time_steps <= 64 and engine.artifact.input.shape == (1, 8, 8):
            assert engine.outputs(image).shape == (1, 10)
    assert read > 10


def test_writing_where_one_may_not_leaves_nothing(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(bsnn.UserError, match="cannot be written"):
        artifact.write(tmp_path / "nowhere" / "model.bsnn", artifact.decode(content))
    assert not list(tmp_path.iterdir())
