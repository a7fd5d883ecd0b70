"""A reader of the model file and the network in it, written from docs/model-file.md alone; files that are wrong."""

import dataclasses
import hashlib
import importlib.util
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

import bsnn
from bsnn.deploy.codec import decode, encode, write
from bsnn.deploy.engine import Engine
from bsnn.deploy.engine.native import libraries
from bsnn.deploy.schema import Artifact, BadModel, InputSpec, MaxPool, Synapse

# The reader begins here. It shares no code with the package.


def read_model(content: bytes) -> tuple[dict, bytes]:
    assert content[:8] == b"BSNNMODL"
    version, header_length, length = struct.unpack_from("<IIQ", content, 8)
    assert version == 1
    assert length == len(content)
    assert header_length % 8 == 0
    assert content[24:56] == hashlib.sha256(content[:24] + content[56:]).digest()
    header, data = json.loads(content[56 : 56 + header_length]), content[56 + header_length :]
    assert content[56 : 56 + header_length].rstrip(b" ").endswith(b"}")
    end = 0
    for offset, size in tensors(header):
        assert offset == -(-end // 8) * 8
        assert not any(data[end:offset])
        end = offset + size
    assert end == len(data)
    return header, data


def tensors(header: dict) -> list[list[int]]:
    """All `[offset, length]` of a header, in order."""
    keys = ("weight", "multiplier", "offset")
    return [layer[key] for layer in header["layers"] for key in keys if key in layer]


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
    outputs = Engine(decode(content)).outputs(images, record)
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
    assert encode(decode(content)) == content


def sealed(content: bytes) -> bytes:
    """The same with a right checksum."""
    return content[:24] + hashlib.sha256(content[:24] + content[56:]).digest() + content[56:]


def assembled(text: bytes, data: bytes) -> bytes:
    """A file of this header and data."""
    start = b"BSNNMODL" + struct.pack("<IIQ", 1, len(text), 56 + len(text) + len(data))
    return sealed(start + bytes(32) + text + data)


def changed(content: bytes, change) -> bytes:
    """The same with another header."""
    header, data = read_model(content)
    change(header)
    text = json.dumps(header).encode()
    return assembled(text + b" " * (-len(text) % 8), data)


def test_a_changed_header_with_a_right_checksum_is_read_when_it_is_sound(content: bytes) -> None:
    assert decode(changed(content, lambda header: header.update(name="ten"))).name == "ten"
    assert decode(changed(content, lambda header: header.update(dict(reversed(header.items()))))).name == "digits"


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


def move(number: int, offset: int, length: int = 0):
    """A change of where a tensor begins and how long it is."""

    def change(header: dict) -> None:
        place = tensors(header)[number]
        place[:] = place[0] + offset, place[1] + length

    return change


def swap(first: int, second: int):
    def change(header: dict) -> None:
        one, other = tensors(header)[first], tensors(header)[second]
        one[:], other[:] = other[:], one[:]

    return change


@pytest.fixture(scope="module")
def odd() -> bytes:
    """A network of 3 outputs, whose tensors leave gaps of 2 and 4 bytes."""
    spec = InputSpec("image", (2, 1, 1), 0, 1.0, (0.0, 0.0), (1.0, 1.0), (1, 1), (0, 0), 0, {})
    weight, numbers = np.ones((2, 3), np.int16), np.ones(3, np.int32)
    layer = Synapse("s", (0,), 3, (1, 1), (1, 1), (0, 0), (1, 1), 1, "int16", 0, 0, weight, numbers, numbers)
    return encode(Artifact("odd", ("a", "b", "c"), 1, 16, spec, (layer,), 1.0))


def test_tensors_lie_one_after_another(odd: bytes) -> None:
    header, data = read_model(odd)
    assert tensors(header) == [[0, 12], [16, 12], [32, 12]]
    assert len(data) == 44
    assert decode(odd).weight_bytes == 36


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (move(1, 4), "`multiplier` begins at byte 20 of the data; expected a multiple of 8"),
        (swap(1, 2), "`multiplier` begins at byte 32 of the data and leaves a gap; expected it at 16"),
        (move(2, -32), "`offset` lies before the tensor before it; expected tensors in the order"),
        (move(2, -8), "`offset` begins at byte 24 of the data and overlaps .* ends at 28; expected it at 32"),
        (move(1, -16), "`multiplier` begins at byte 0 of the data and overlaps"),
        (move(0, 8), "`weight` begins at byte 8 of the data and leaves a gap; expected it at 0"),
        (move(2, 8), "`offset` begins at byte 40 .* leaves a gap; expected it at 32, where the tensor before it ends"),
        (move(2, 0, 4), "`offset` ends at byte 48 of the data, which has 44"),
        (move(0, 0, -2), "`weight` is 10 bytes long; expected whole rows of 6"),
        (move(2, 0, -4), "3 multipliers and 2 offsets"),
    ],
)
def test_tensors_out_of_place_are_refused(odd: bytes, change, message: str) -> None:
    with pytest.raises(BadModel, match=message):
        decode(changed(odd, change))


@pytest.mark.parametrize(("place", "name"), [(12, "multiplier"), (15, "multiplier"), (31, "offset")])
def test_gaps_between_tensors_are_zero(odd: bytes, place: int, name: str) -> None:
    (length,) = struct.unpack_from("<I", odd, 12)
    filled = bytearray(odd)
    filled[56 + length + place] = 1
    with pytest.raises(BadModel, match=f"between layer s: `{name}` and the tensor before it are not zero"):
        decode(sealed(bytes(filled)))


@pytest.mark.parametrize("extra", [1, 4, 8])
def test_nothing_is_left_over_at_the_end(odd: bytes, extra: int) -> None:
    header, data = read_model(odd)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    assert decode(assembled(text, data)).name == "odd"
    with pytest.raises(BadModel, match=f"{extra} bytes are left over behind the last tensor"):
        decode(assembled(text, data + bytes(extra)))


@pytest.mark.parametrize("filling", [b"\0", b"\n", b"\t", b"}", b"x"])
def test_a_header_is_filled_up_with_spaces_alone(odd: bytes, filling: bytes) -> None:
    header, data = read_model(odd)
    text = json.dumps(header).encode()
    spaces = 8 + -len(text) % 8
    assert decode(assembled(text + b" " * spaces, data)).name == "odd"
    with pytest.raises(BadModel, match="filled up with something else than spaces"):
        decode(assembled(text + b" " * (spaces - 1) + filling, data))
    with pytest.raises(BadModel, match="not JSON"):
        decode(assembled(b" " * spaces + text, data))


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


@pytest.mark.parametrize("key", ["name", "shape", "op"])
def test_keys_that_stand_twice_are_refused(odd: bytes, key: str) -> None:
    header, data = read_model(odd)
    text = json.dumps(header).replace(f'"{key}":', f'"{key}": 0, "{key}":', 1).encode()
    with pytest.raises(BadModel, match=f"has the key '{key}' twice in one object"):
        decode(assembled(text + b" " * (-len(text) % 8), data))


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
