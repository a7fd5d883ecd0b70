"""A reader of the model file and the network in it, written from docs/model-file.md alone, agrees with the engine."""

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import torch
from model_bytes import tensors

import bsnn
from bsnn.deploy.codec import decode, encode
from bsnn.deploy.engine import Engine

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


def test_tensors_lie_one_after_another(odd: bytes) -> None:
    header, data = read_model(odd)
    assert tensors(header) == [[0, 12], [16, 12], [32, 12]]
    assert len(data) == 44
    assert decode(odd).weight_bytes == 36
