"""From the header of a model file to the network that it describes, within the limits of docs/model-file.md."""

from typing import Any

from bsnn.deploy._fields import Fields
from bsnn.deploy.schema import (
    LARGEST,
    MAX_SIDE,
    Add,
    Artifact,
    AveragePool,
    BadModel,
    Concat,
    InputSpec,
    Layer,
    Lif,
    MaxPool,
    Pair,
    Scale,
    Synapse,
)

_MAX_STEP, _MAX_SHIFT, _MAX_LAYERS, _MAX_TIME_STEPS, _MAX_SENSOR, _MAX_FRAME = 255, 40, 4096, 65536, 1280, 16_000
_FREE_ELEMENTS, _ELEMENTS_PER_BYTE, _MAX_ADDITIONS, _MAX_ALL_ADDITIONS = 2**22, 64, 2**34, 2**36
_INT32 = -(2**31), 2**31 - 1


def read_artifact(header: Fields, length: int) -> Artifact:
    """The network that a header describes.

    Args:
        header: The whole header.
        length: Of the file, by which the work that it may ask for is bounded.
    """
    artifact = Artifact(
        name=header.text("name"),
        classes=header.texts("classes", MAX_SIDE),
        time_steps=header.integer("time_steps", 1, _MAX_TIME_STEPS),
        fraction_bits=header.integer("fraction_bits", 8, 24),
        input=_input(header.object("input", "the input")),
        layers=tuple(_layer(source) for source in header.objects("layers", "layer", _MAX_LAYERS)),
        output_scale=header.number("output_scale"),
    )
    header.finish()
    if not 0 < artifact.output_scale <= 1:
        raise header.wrong("output_scale", "a number above 0, at most 1")
    _check_work(artifact, length)
    return artifact


def _check_work(artifact: Artifact, length: int) -> None:
    elements, allowed = artifact.num_elements, _FREE_ELEMENTS + _ELEMENTS_PER_BYTE * length
    if elements > allowed:
        raise BadModel(
            f"its values hold {elements} elements per step; a file of {length} bytes may have at most {allowed}."
        )
    additions = sum(artifact.additions)
    if additions > _MAX_ADDITIONS:
        raise BadModel(f"a time step takes {additions} additions; at most {_MAX_ADDITIONS} are allowed.")
    if additions * artifact.time_steps > _MAX_ALL_ADDITIONS:
        raise BadModel(f"{artifact.time_steps} time steps of {additions} additions; at most 2^36 in all are allowed.")


def _input(source: Fields) -> InputSpec:
    channels, height, width = source.integers("shape", 1, MAX_SIDE, 3)
    kind = source.text("kind", "image", "sound", "event")
    spec = InputSpec(
        kind=kind,
        shape=(channels, height, width),
        fraction_bits=source.integer("fraction_bits", 0, 15),
        divisor=source.number("divisor"),
        mean=source.numbers("mean", channels),
        std=source.numbers("std", channels),
        multiplier=source.integers("multiplier", *_INT32, channels),
        offset=source.integers("offset", *_INT32, channels),
        shift=source.integer("shift", 0, _MAX_SHIFT),
        decode=_decoding(source.object("decode", "the input's `decode`"), kind),
    )
    source.finish()
    if not spec.divisor > 0 or not all(std > 0 for std in spec.std):
        raise BadModel(f"the input: divisor {spec.divisor} and std {spec.std} must be above 0.")
    return spec


def _decoding(source: Fields, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if kind == "image" and "margin" in source:
        found["margin"] = source.number("margin", 1, 4)
    if kind == "sound":
        found |= {key: source.integer(key, 1, _MAX_FRAME) for key in ("window", "hop") if key in source}
    if kind == "event":
        found |= {key: source.flag(key) for key in ("presence", "turned") if key in source}
        if "sensor" in source:
            found["sensor"] = source.integers("sensor", 1, _MAX_SENSOR, 2)
    source.finish()
    return found


def _layer(source: Fields) -> Layer:
    op = source.text("op", *_READERS)
    name = source.text("name")
    source.where = f"layer {name}"
    inputs = source.integers("inputs", 0, _MAX_LAYERS, None)
    kind, read = _READERS[op]
    if len(inputs) != (kind.num_inputs or len(inputs)):
        raise BadModel(f"layer {name}: {op} takes {kind.num_inputs} inputs, and it is given {len(inputs)}.")
    layer = kind(name, inputs, **read(source))
    source.finish()
    return layer


def _window(source: Fields, key: str) -> Pair:
    down, across = source.integers(key, 1, MAX_SIDE, 2)
    return down, across


def _steps(source: Fields, key: str, low: int) -> Pair:
    down, across = source.integers(key, low, _MAX_STEP, 2)
    return down, across


def _synapse(source: Fields) -> dict[str, Any]:
    out, groups = source.integer("out", 1, MAX_SIDE), source.integer("groups", 1, MAX_SIDE)
    weights = source.text("weights", "bits", "int16")
    if out % groups:
        raise BadModel(f"{source.where}: {groups} groups do not divide {out} channels.")
    outs = out // groups
    if weights == "int16":
        weight = source.tensor("weight", "<i2", outs)
    else:
        weight = source.tensor("weight", "u1", -(-outs // 8))
        if outs % 8 and (weight[:, -1] >> outs % 8).any():
            raise BadModel(f"{source.where}: bits beyond the last output channel are set; expected zeros.")
    return {
        "out": out,
        "kernel": _window(source, "kernel"),
        "stride": _steps(source, "stride", 1),
        "padding": _steps(source, "padding", 0),
        "dilation": _steps(source, "dilation", 1),
        "groups": groups,
        "weights": weights,
        "input_shift": source.integer("input_shift", 0, _MAX_SHIFT),
        "weight": weight,
        **_scale(source, out),
    }


def _scale(source: Fields, channels: int | None = None) -> dict[str, Any]:
    multiplier, offset = source.tensor("multiplier", "<i4"), source.tensor("offset", "<i4")
    if len(multiplier) != len(offset) or len(multiplier) != (channels or len(multiplier)):
        raise BadModel(
            f"{source.where}: {len(multiplier)} multipliers and {len(offset)} offsets; expected one of each per "
            "channel."
        )
    return {"shift": source.integer("shift", 0, _MAX_SHIFT), "multiplier": multiplier, "offset": offset}


def _lif(source: Fields) -> dict[str, Any]:
    return {
        "leak": source.integer("leak", 0, 65536),
        "threshold": source.integer("threshold", 1, LARGEST),
        "firing_rate": source.optional_number("firing_rate", 0, 1),
    }


def _max_pool(source: Fields) -> dict[str, Any]:
    return {
        "kernel": _window(source, "kernel"),
        "stride": _window(source, "stride"),
        "padding": _steps(source, "padding", 0),
        "ceil": source.flag("ceil"),
    }


def _average_pool(source: Fields) -> dict[str, Any]:
    return {**_max_pool(source), "count_padding": source.flag("count_padding")}


_READERS: dict[str, tuple[type[Layer], Any]] = {
    "synapse": (Synapse, _synapse),
    "lif": (Lif, _lif),
    "average_pool": (AveragePool, _average_pool),
    "max_pool": (MaxPool, _max_pool),
    "add": (Add, lambda source: {}),
    "concat": (Concat, lambda source: {}),
    "scale": (Scale, _scale),
}
