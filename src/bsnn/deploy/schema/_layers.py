"""The model file: a deployed network as integers, checked on the way in (docs/model-file.md defines it).

NumPy only. An `Artifact` is the file in memory; what each layer makes, its kind, shape and range, is inferred while it
is read, so that whoever runs it can rely on them.
"""

import hashlib
import json
import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from bsnn.atomic import replace_file
from bsnn.errors import UserError

Kind = Literal["input", "spikes", "counts", "fixed"]
Pair = tuple[int, int]

MAGIC = b"BSNNMODL"
VERSION = 1
LARGEST = 2**30
"""Fixed values lie between minus this and this."""
LARGEST_COUNT = 32767
_START = struct.Struct("<8sIIQ")
_HEADER_AT = _START.size + 32
_MAX_SIDE, _MAX_KERNEL, _MAX_SHIFT, _MAX_LAYERS, _MAX_STEPS = 65536, 255, 40, 4096, 65536
_FREE_ELEMENTS, _ELEMENTS_A_BYTE, _MAX_ADDITIONS, _MAX_ALL_ADDITIONS = 2**22, 64, 2**34, 2**36
_SPARE_PADDING, _MAX_SENSOR, _MAX_TEXT = 7, 1280, 1000


class BadModel(UserError):
    """A file that is not a whole and consistent model."""


@dataclass(frozen=True)
class Value:
    """What a layer makes at one time step: integers of `shape` (C, H, W) between `low` and `high`."""

    kind: Kind
    shape: tuple[int, int, int]
    low: int
    high: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def _fixed(shape: tuple[int, int, int]) -> Value:
    return Value("fixed", shape, -LARGEST, LARGEST)


def _counts(shape: tuple[int, int, int], high: int, name: str) -> Value:
    if high > LARGEST_COUNT:
        raise BadModel(f"layer {name}: its counts can reach {high}; at most {LARGEST_COUNT} are allowed.")
    return Value("counts", shape, 0, high)


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer: a name, and the numbers of the values that it takes."""

    op: ClassVar[str]
    num_inputs: ClassVar[int | None] = 1
    name: str
    inputs: tuple[int, ...]

    def output(self, inputs: Sequence[Value]) -> Value:
        """What it makes of such inputs.

        Raises:
            BadModel: If it cannot take them.
        """
        raise NotImplementedError

    def additions(self, taken: Value, made: Value) -> int:
        """How many additions it takes at one time step to make a value of its first input, if all of it is there."""
        return made.size

    def _takes(self, value: Value, *kinds: Kind) -> None:
        if value.kind not in kinds:
            raise BadModel(f"layer {self.name}: {self.op} takes {' or '.join(kinds)}, and it is given {value.kind}.")


@dataclass(frozen=True, eq=False)
class Synapse(Layer):
    """A convolution of one-bit or 16-bit weights, then a multiplication, a shift and an addition a channel."""

    op = "synapse"
    out: int
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int
    weights: Literal["bits", "int16"]
    input_shift: int
    shift: int
    weight: np.ndarray
    """One row for each tap and input channel: `ceil(out / groups / 8)` bytes, or `out / groups` int16."""
    multiplier: np.ndarray
    offset: np.ndarray

    def output(self, inputs: Sequence[Value]) -> Value:
        """See `Layer.output`."""
        (value,) = inputs
        self._takes(value, "input", "spikes", "counts", "fixed")
        if self.input_shift and value.kind != "fixed":
            raise BadModel(f"layer {self.name}: input_shift is {self.input_shift}; only fixed values are shifted.")
        channels, *sides = value.shape
        if channels % self.groups or self.out % self.groups:
            raise BadModel(f"layer {self.name}: {self.groups} groups do not divide {channels} and {self.out} channels.")
        outs = self.out // self.groups
        row = outs if self.weights == "int16" else -(-outs // 8)
        if self.weight.shape != (self.kernel[0] * self.kernel[1] * channels, row):
            raise BadModel(
                f"layer {self.name}: its weights are {self.weight.shape}; expected "
                f"{(self.kernel[0] * self.kernel[1] * channels, row)} for {channels} input channels."
            )
        largest = self.largest_sum(value)
        if largest >= 2**30:
            raise BadModel(f"layer {self.name}: a sum can reach {largest}; it must stay below 2^30.")
        reach = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
        _check_padding(self, reach, sides)
        rows, columns = (
            (side + 2 * p - r) // s + 1 if side + 2 * p >= r else 0
            for side, p, r, s in zip(sides, self.padding, reach, self.stride, strict=True)
        )
        if rows < 1 or columns < 1:
            raise BadModel(f"layer {self.name}: a kernel that reaches over {reach} does not fit into {sides}.")
        return _fixed((self.out, rows, columns))

    def additions(self, taken: Value, made: Value) -> int:
        """See `Layer.additions`."""
        return made.size * self.kernel[0] * self.kernel[1] * (taken.shape[0] // self.groups)

    def largest_input(self, value: Value) -> int:
        """The largest magnitude that meets a weight."""
        largest = max(-value.low, value.high)
        return min(largest + (1 << self.input_shift) >> self.input_shift, 32768) if self.input_shift else largest

    def largest_sum(self, value: Value) -> int:
        """The largest magnitude that a sum can have, for any input."""
        taps, channels = self.kernel[0] * self.kernel[1], value.shape[0]
        largest = min(self.largest_input(value), 32768)
        if self.weights == "bits":
            return taps * (channels // self.groups) * largest
        grouped = self.weight.reshape(taps, self.groups, channels // self.groups, -1)
        return int(np.abs(grouped.astype(np.int64)).sum((0, 2)).max(initial=0)) * largest


@dataclass(frozen=True, eq=False)
class Lif(Layer):
    """Neurons with a leak of `leak` / 2^16 and a threshold."""

    op = "lif"
    leak: int
    threshold: int
    firing_rate: float | None = None
    """As measured when it was exported."""

    def output(self, inputs: Sequence[Value]) -> Value:
        """See `Layer.output`."""
        self._takes(inputs[0], "fixed")
        return Value("spikes", inputs[0].shape, 0, 1)


@dataclass(frozen=True, eq=False)
class Pool(Layer):
    """Base of what makes one value of each window."""

    kernel: Pair
    stride: Pair
    padding: Pair
    ceil: bool

    def additions(self, taken: Value, made: Value) -> int:
        """See `Layer.additions`."""
        return made.size * self.kernel[0] * self.kernel[1]

    def pooled(self, shape: tuple[int, int, int]) -> tuple[int, int, int]:
        """The shape after pooling; with `ceil` rounded up, as PyTorch rounds."""
        _check_padding(self, self.kernel, shape[1:])
        sides = []
        for side, k, s, p in zip(shape[1:], self.kernel, self.stride, self.padding, strict=True):
            length = -(-(side + 2 * p - k) // s) + 1 if self.ceil else (side + 2 * p - k) // s + 1
            if self.ceil and (length - 1) * s >= side + p:
                length -= 1
            if side + 2 * p < k or length < 1:
                raise BadModel(f"layer {self.name}: a window of {self.kernel} does not fit into {shape[1:]}.")
            sides.append(length)
        return shape[0], sides[0], sides[1]


@dataclass(frozen=True, eq=False)
class AveragePool(Pool):
    """The sum over a window of spikes or counts; the rounded average of fixed values."""

    op = "average_pool"
    count_padding: bool

    def output(self, inputs: Sequence[Value]) -> Value:
        """See `Layer.output`."""
        self._takes(inputs[0], "spikes", "counts", "fixed")
        shape = self.pooled(inputs[0].shape)
        if inputs[0].kind == "fixed":
            return _fixed(shape)
        return _counts(shape, inputs[0].high * self.kernel[0] * self.kernel[1], self.name)


@dataclass(frozen=True, eq=False)
class MaxPool(Pool):
    """The largest value of a window."""

    op = "max_pool"

    def output(self, inputs: Sequence[Value]) -> Value:
        """See `Layer.output`."""
        self._takes(inputs[0], "spikes", "counts", "fixed")
        value = inputs[0]
        return Value(value.kind, self.pooled(value.shape), value.low, value.high)


@dataclass(frozen=True, eq=False)
class Add(Layer):
    """The sum of two values."""

    op = "add"
    num_inputs = 2

    def output(self, inputs: Sequence[Value]) -> Value:
        """See `Layer.output`."""
        first, second = inputs
        if first.shape != second.shape or (first.kind == "fixed") != (second.kind == "fixed"):
            raise BadModel(
                f"layer {self.name}: adds {first.kind} of shape {first.shape} and {second.kind} of shape "
                f"{second.shape}; expected the same shape, both fixed or neither."
            )
        self._takes(first, "spikes", "counts", "fixed")
        self._takes(second, "spikes", "counts", "fixed")
        return (
            _fixed(first.shape) if first.kind == "fixed" else _counts(first.shape, first.high + second.high, self.name)
        )


@dataclass(frozen=True, eq=False)
class Concat(Layer):
    """Values one after another along the channels."""

    op = "concat"
    num_inputs = None

    def output(self, inputs: Sequence[Value]) -> Value:
        """See `Layer.output`."""
        for value in inputs:
            self._takes(value, "spikes", "counts", "fixed")
        kinds = {value.kind for value in inputs}
        if len({value.shape[1:] for value in inputs}) > 1 or ("fixed" in kinds and len(kinds) > 1):
            shapes = ", ".join(f"{value.kind} {value.shape}" for value in inputs)
            raise BadModel(f"layer {self.name}: joins {shapes}; expected one kind, the same height and width.")
        shape = (sum(value.shape[0] for value in inputs), *inputs[0].shape[1:])
        kind: Kind = "counts" if "counts" in kinds else inputs[0].kind
        return Value(kind, shape, min(v.low for v in inputs), max(v.high for v in inputs))


@dataclass(frozen=True, eq=False)
class Scale(Layer):
    """A multiplication, a shift and an addition a channel."""

    op = "scale"
    shift: int
    multiplier: np.ndarray
    offset: np.ndarray

    def output(self, inputs: Sequence[Value]) -> Value:
        """See `Layer.output`."""
        (value,) = inputs
        if len(self.multiplier) != value.shape[0]:
            raise BadModel(
                f"layer {self.name}: has {len(self.multiplier)} multipliers for {value.shape[0]} channels; "
                "expected one each."
            )
        return _fixed(value.shape)


@dataclass(frozen=True)
class InputSpec:
    """How a raw input becomes integers, and of what shape it is."""

    kind: Literal["image", "sound", "event"]
    shape: tuple[int, int, int]
    fraction_bits: int
    divisor: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    multiplier: tuple[int, ...]
    offset: tuple[int, ...]
    shift: int
    decode: dict[str, Any]
    """How a file becomes an array, beyond kind and shape."""

    def from_bytes(self, raw: np.ndarray) -> np.ndarray:
        """Integers from raw bytes `[..., C, H, W]`."""
        multiplier, offset = (np.array(v, np.int64).reshape(-1, 1, 1) for v in (self.multiplier, self.offset))
        product = raw.astype(np.int64) * multiplier + offset
        return _cut16((product + ((1 << self.shift) >> 1)) >> self.shift)

    def from_reals(self, normalized: np.ndarray) -> np.ndarray:
        """Integers from real numbers that are normalized already."""
        return _cut16(np.rint(np.asarray(normalized, np.float32) * np.float32(2**self.fraction_bits)))

    def normalize(self, raw: np.ndarray) -> np.ndarray:
        """Normalized real numbers from raw ones `[..., C, H, W]`."""
        mean, std = (np.array(v, np.float32).reshape(-1, 1, 1) for v in (self.mean, self.std))
        return (raw.astype(np.float32) / np.float32(self.divisor) - mean) / std


def _cut16(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -32768, 32767).astype(np.int16)


@dataclass(frozen=True, eq=False)
class Artifact:
    """A deployed network: layers in order, value 0 the input, value i + 1 made by layer i."""

    name: str
    classes: tuple[str, ...]
    time_steps: int
    fraction_bits: int
    input: InputSpec
    layers: tuple[Layer, ...]
    output_scale: float
    values: tuple[Value, ...] = field(init=False)

    def __post_init__(self) -> None:
        values = [Value("input", self.input.shape, -32768, 32767)]
        taken = set()
        for number, layer in enumerate(self.layers):
            if any(not 0 <= index <= number for index in layer.inputs):
                raise BadModel(
                    f"layer {layer.name}: takes values {layer.inputs}; only 0 to {number} are made before it."
                )
            taken.update(layer.inputs)
            value = layer.output([values[index] for index in layer.inputs])
            if max(value.shape) > _MAX_SIDE:
                raise BadModel(f"layer {layer.name}: makes {value.shape}; at most {_MAX_SIDE} each way are allowed.")
            values.append(value)
        unused = [self.layers[i - 1].name if i else "the input" for i in range(len(self.layers)) if i not in taken]
        if unused:
            raise BadModel(f"{unused[0]} is taken by no layer; expected that only of the last one.")
        if values[-1].kind == "input" or values[-1].shape != (len(self.classes), 1, 1):
            raise BadModel(
                f"the network yields {values[-1].kind} of shape {values[-1].shape}; expected "
                f"{(len(self.classes), 1, 1)}, one output a class."
            )
        object.__setattr__(self, "values", tuple(values))

    @property
    def lifs(self) -> tuple[int, ...]:
        """The numbers of the layers of neurons."""
        return tuple(i for i, layer in enumerate(self.layers) if isinstance(layer, Lif))

    @property
    def additions(self) -> list[int]:
        """Additions of each layer at one time step if every input is there."""
        pairs = zip(self.layers, self.values[1:], strict=True)
        return [layer.additions(self.values[layer.inputs[0]], made) for layer, made in pairs]

    def unchanging(self, still: bool) -> list[bool]:
        """Of each value, whether it is the same at all time steps, when a still input is given or another."""
        same = [still]
        for layer in self.layers:
            same.append(not isinstance(layer, Lif) and all(same[i] for i in layer.inputs))
        return same

    def membranes(self, batch: int) -> list[np.ndarray]:
        """Zeros, one array `[B, H, W, C]` a layer of neurons: where a network begins."""
        shapes = [self.values[i + 1].shape for i in self.lifs]
        return [np.zeros((batch, height, width, channels), np.int32) for channels, height, width in shapes]

    @property
    def num_elements(self) -> int:
        """Elements of all values of one time step."""
        return sum(value.size for value in self.values)


def _check_padding(layer: Any, reach: Sequence[int], sides: Sequence[int]) -> None:
    if any(p > side + _SPARE_PADDING for p, side in zip(layer.padding, sides, strict=True)):
        raise BadModel(f"layer {layer.name}: padding {layer.padding} is far beyond an input of {tuple(sides)}.")
    if any(p >= r for p, r in zip(layer.padding, reach, strict=True)):
        raise BadModel(
            f"layer {layer.name}: padding {layer.padding} is not below the reach {tuple(reach)} of its kernel."
        )


# Writing


def encode(artifact: Artifact) -> bytes:
    """The bytes of the file."""
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

    header = {f.name: described(getattr(artifact, f.name)) for f in fields(artifact) if f.init}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    start = _START.pack(MAGIC, VERSION, len(text), _HEADER_AT + len(text) + len(data))
    body = text + bytes(data)
    return start + hashlib.sha256(start + body).digest() + body


def write(path: str | os.PathLike[str], artifact: Artifact) -> int:
    """Writes the file, whole or not at all, and returns its length."""
    path, content = Path(path), encode(artifact)
    decode(content)  # what a reader would refuse is not written
    try:
        replace_file(path, content)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror or error}); choose another place.") from error
    return len(content)


# Reading


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
    """The network in the bytes of a file; arrays are views of them."""
    if len(content) < _HEADER_AT or content[:8] != MAGIC:
        raise BadModel("this is no model file (it does not begin with BSNNMODL); make one with `bsnn export`.")
    _, version, header_length, length = _START.unpack_from(content)
    if version != VERSION:
        raise BadModel(f"it has version {version} of the format, and this bsnn reads version {VERSION}; update bsnn.")
    if length != len(content):
        raise BadModel(f"it is {len(content)} bytes long and should be {length}; copy or export it again.")
    body = memoryview(content)[_HEADER_AT:]
    digest = hashlib.sha256(content[: _START.size])
    digest.update(body)
    if digest.digest() != content[_START.size : _HEADER_AT]:
        raise BadModel("its checksum is wrong: the file is damaged; copy or export it again.")
    if header_length > len(body) or header_length % 8:
        raise BadModel(f"its header is said to be {header_length} bytes long, which does not fit into the file.")
    try:
        header = json.loads(str(body[:header_length], "utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadModel(f"its header is not JSON ({error}).") from error
    return _artifact(_Fields(header, "the header", body[header_length:]), len(content))


class _Fields:
    """An object of the header, read field by field, each checked."""

    def __init__(self, content: Any, where: str, data: memoryview) -> None:
        if not isinstance(content, dict):
            raise BadModel(f"{where} is {_short(content)}; expected an object.")
        self.content, self.where, self.data = content, where, data

    def _get(self, key: str) -> Any:
        if key not in self.content:
            raise BadModel(f"{self.where} lacks `{key}`.")
        return self.content[key]

    def _wrong(self, key: str, expected: str) -> BadModel:
        return BadModel(f"{self.where}: `{key}` is {_short(self.content[key])}; expected {expected}.")

    def text(self, key: str, *choices: str) -> Any:
        value = self._get(key)
        if not _is_text(value) or (choices and value not in choices):
            raise self._wrong(key, " or ".join(choices) or "a text")
        return value

    def flag(self, key: str) -> bool:
        if not isinstance(self._get(key), bool):
            raise self._wrong(key, "true or false")
        return self.content[key]

    def integer(self, key: str, low: int, high: int) -> int:
        if not _is_integer(self._get(key), low, high):
            raise self._wrong(key, f"a whole number from {low} to {high}")
        return self.content[key]

    def integers(self, key: str, low: int, high: int, count: int | None) -> tuple[Any, ...]:
        value = self._get(key)
        if not isinstance(value, list) or len(value) != (count or len(value)) or not value:
            raise self._wrong(key, f"a list of {count or 'some'} whole numbers")
        if not all(_is_integer(item, low, high) for item in value):
            raise self._wrong(key, f"whole numbers from {low} to {high}")
        return tuple(value)

    def pair(self, key: str, low: int) -> Pair:
        return self.integers(key, low, _MAX_KERNEL, 2)  # pyright: ignore[reportReturnType]

    def window(self, key: str) -> Pair:
        return self.integers(key, 1, _MAX_SIDE, 2)  # pyright: ignore[reportReturnType]

    def number(self, key: str) -> float:
        if not _is_number(self._get(key)):
            raise self._wrong(key, "a finite number")
        return float(self.content[key])

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        value = self._get(key)
        if not isinstance(value, list) or len(value) != count or not all(_is_number(item) for item in value):
            raise self._wrong(key, f"a list of {count} finite numbers")
        return tuple(float(item) for item in value)

    def list(self, key: str, longest: int) -> list[Any]:
        value = self._get(key)
        if not isinstance(value, list) or not 1 <= len(value) <= longest:
            raise self._wrong(key, f"a list of 1 to {longest}")
        return value

    def tensor(self, key: str, dtype: str, columns: int | None = None) -> np.ndarray:
        offset, length = self.integers(key, 0, 2**53, 2)
        size = np.dtype(dtype).itemsize * (columns or 1)
        if offset % 8 or offset + length > len(self.data) or length % size:
            raise self._wrong(key, f"a place within {len(self.data)} bytes of data, of whole rows of {size} bytes")
        flat = np.frombuffer(self.data[offset : offset + length], dtype).astype(dtype.lstrip("<"), copy=False)
        return flat if columns is None else flat.reshape(-1, columns)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_text(value: Any) -> bool:
    # Half of a surrogate pair, which JSON can write, is no text.
    return isinstance(value, str) and len(value) <= _MAX_TEXT and not any("\ud800" <= c <= "\udfff" for c in value)


def _is_integer(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _artifact(header: _Fields, length: int) -> Artifact:
    source = _Fields(header._get("input"), "the input", header.data)
    shape = source.integers("shape", 1, _MAX_SIDE, 3)
    channels = shape[0]
    spec = InputSpec(
        kind=source.text("kind", "image", "sound", "event"),
        shape=shape,  # pyright: ignore[reportArgumentType]
        fraction_bits=source.integer("fraction_bits", 0, 15),
        divisor=source.number("divisor"),
        mean=source.numbers("mean", channels),
        std=source.numbers("std", channels),
        multiplier=source.integers("multiplier", -(2**31), 2**31 - 1, channels),
        offset=source.integers("offset", -(2**31), 2**31 - 1, channels),
        shift=source.integer("shift", 0, _MAX_SHIFT),
        decode=_decoding(_Fields(source._get("decode"), "the input's `decode`", header.data), source.text("kind")),
    )
    if not spec.divisor > 0 or not all(std > 0 for std in spec.std):
        raise BadModel(f"the input: divisor {spec.divisor} and std {spec.std} must be above 0.")
    classes = header.list("classes", _MAX_SIDE)
    if not all(_is_text(name) for name in classes):
        raise BadModel("the header: `classes` holds what is not a text; expected a list of names.")
    contents = header.list("layers", _MAX_LAYERS)
    layers = [_layer(_Fields(content, f"layer {number}", header.data)) for number, content in enumerate(contents)]
    artifact = Artifact(
        name=header.text("name"),
        classes=tuple(classes),
        time_steps=header.integer("time_steps", 1, _MAX_STEPS),
        fraction_bits=header.integer("fraction_bits", 8, 24),
        input=spec,
        layers=tuple(layers),
        output_scale=header.number("output_scale"),
    )
    if not 0 < artifact.output_scale <= 1:
        raise BadModel(f"the header: `output_scale` is {artifact.output_scale}; expected a number above 0, at most 1.")
    elements, allowed = artifact.num_elements, _FREE_ELEMENTS + _ELEMENTS_A_BYTE * length
    if elements > allowed:
        raise BadModel(f"its values hold {elements} elements a step; a file of {length} bytes may have {allowed}.")
    additions = sum(artifact.additions)
    if additions > _MAX_ADDITIONS:
        raise BadModel(f"a time step takes {additions} additions; at most {_MAX_ADDITIONS} are allowed.")
    if additions * artifact.time_steps > _MAX_ALL_ADDITIONS:
        raise BadModel(f"{artifact.time_steps} time steps of {additions} additions; at most 2^36 in all are allowed.")
    return artifact


def _decoding(source: _Fields, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if kind == "image" and "margin" in source.content:
        found["margin"] = source.number("margin")
        if not 1 <= found["margin"] <= 4:
            raise source._wrong("margin", "a number from 1 to 4")
    if kind == "event":
        found |= {key: source.flag(key) for key in ("presence", "turned") if key in source.content}
        if "sensor" in source.content:
            found["sensor"] = source.integers("sensor", 1, _MAX_SENSOR, 2)
    return found


def _layer(source: _Fields) -> Layer:
    op = source.text("op", *_READERS)
    name = source.text("name")
    source.where = f"layer {name}"
    inputs = source.integers("inputs", 0, _MAX_LAYERS, None)
    kind, reader = _READERS[op]
    if len(inputs) != (kind.num_inputs or len(inputs)):
        raise BadModel(f"layer {name}: {op} takes {kind.num_inputs} inputs, and it is given {len(inputs)}.")
    return kind(name, inputs, **reader(source))


def _read_synapse(source: _Fields) -> dict[str, Any]:
    out, groups = source.integer("out", 1, _MAX_SIDE), source.integer("groups", 1, _MAX_SIDE)
    weights = source.text("weights", "bits", "int16")
    if out % groups:
        raise BadModel(f"{source.where}: {groups} groups do not divide {out} channels.")
    columns = out // groups if weights == "int16" else -(-(out // groups) // 8)
    weight = source.tensor("weight", "<i2" if weights == "int16" else "u1", columns)
    if weights == "bits" and (out // groups) % 8 and (weight[:, -1] >> (out // groups) % 8).any():
        raise BadModel(f"{source.where}: bits beyond the last output channel are set; expected zeros.")
    return {
        "out": out,
        "kernel": source.window("kernel"),
        "stride": source.pair("stride", 1),
        "padding": source.pair("padding", 0),
        "dilation": source.pair("dilation", 1),
        "groups": groups,
        "weights": weights,
        "input_shift": source.integer("input_shift", 0, _MAX_SHIFT),
        "weight": weight,
        **_read_scale(source, out),
    }


def _read_lif(source: _Fields) -> dict[str, Any]:
    return {
        "leak": source.integer("leak", 0, 65536),
        "threshold": source.integer("threshold", 1, LARGEST),
        "firing_rate": None if source.content.get("firing_rate") is None else source.number("firing_rate"),
    }


def _read_max_pool(source: _Fields) -> dict[str, Any]:
    return {
        "kernel": source.window("kernel"),
        "stride": source.window("stride"),
        "padding": source.pair("padding", 0),
        "ceil": source.flag("ceil"),
    }


def _read_average_pool(source: _Fields) -> dict[str, Any]:
    return {**_read_max_pool(source), "count_padding": source.flag("count_padding")}


def _read_scale(source: _Fields, channels: int | None = None) -> dict[str, Any]:
    multiplier, offset = source.tensor("multiplier", "<i4"), source.tensor("offset", "<i4")
    if len(multiplier) != len(offset) or len(multiplier) != (channels or len(multiplier)):
        raise BadModel(
            f"{source.where}: {len(multiplier)} multipliers and {len(offset)} offsets; expected one a channel."
        )
    return {"shift": source.integer("shift", 0, _MAX_SHIFT), "multiplier": multiplier, "offset": offset}


_READERS: dict[str, tuple[type[Layer], Any]] = {
    "synapse": (Synapse, _read_synapse),
    "lif": (Lif, _read_lif),
    "average_pool": (AveragePool, _read_average_pool),
    "max_pool": (MaxPool, _read_max_pool),
    "add": (Add, lambda source: {}),
    "concat": (Concat, lambda source: {}),
    "scale": (Scale, _read_scale),
}
