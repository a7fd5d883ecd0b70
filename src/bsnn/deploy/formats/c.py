"""A deployed network as a folder of C99 for a microcontroller: the engine's own C, with weights as constants.

Nothing is allocated: memory is static, and its size stands in model.h. Golden vectors come with it, and a `main` that
checks them.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from bsnn.deploy.engine import Engine
from bsnn.deploy.engine.layout import Layout
from bsnn.deploy.engine.tables import DENSE, OpTable, ValueTable, contents
from bsnn.deploy.engine.weights import Weights
from bsnn.deploy.footprint import WORD_BITS, device_layout, device_weights, footprint
from bsnn.deploy.formats import _c_text
from bsnn.deploy.schema import Artifact
from bsnn.errors import UserError

_ENGINE = Path(__file__).parents[1] / "engine" / "csrc"
_SHARED = Path(__file__).parents[2] / "csrc"
_HEADERS = ("convolution.h", "count.h", "count_width.h", "words.h")
_GOLDEN = 4
_POINTERS = ("weight", "multiplier", "offset")


def export_c(artifact: Artifact, out: Path, samples: np.ndarray | None = None) -> dict[str, Any]:
    """Writes the folder.

    Args:
        artifact: The network.
        out: The folder; files of an earlier export in it are replaced.
        samples: Inputs of the golden vectors, as `Engine` takes them, `[B, C, H, W]`; by default random integers.

    Returns:
        Its path and bytes, the bytes of the network's weights, and how much constant data and memory the network takes
        on a device.
    """
    layout, size = device_layout(artifact), footprint(artifact)
    engine = Engine(artifact)
    if samples is None:
        samples = np.random.default_rng(0).integers(-8192, 8192, (_GOLDEN, *artifact.input.shape), np.int16)
    files = {
        "engine.h": _c_text.portable(WORD_BITS) + (_ENGINE / "engine.h").read_text(),
        "engine.c": (_ENGINE / "engine.c").read_text(),
        **{name: (_SHARED / name).read_text() for name in _HEADERS},
        "model.h": _c_text.header(artifact, size),
        "model.c": _c_text.source(artifact, len(layout.ops), *_tables(layout, device_weights(artifact))),
        "golden.h": _golden(engine, samples),
        "main.c": _c_text.MAIN,
        "Makefile": _c_text.MAKEFILE,
        "README.md": _c_text.readme(artifact, size),
    }
    total = sum(_write(out, name, text) for name, text in files.items())
    return {
        "path": os.fspath(out),
        "bytes": total,
        "weight_bytes": artifact.weight_bytes,
        "flash_bytes": size.flash,
        "ram_bytes": size.ram,
    }


def _write(out: Path, name: str, text: str) -> int:
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out / name} cannot be written ({error.strerror or error}); choose another --out.") from error
    return len(text.encode())


def _tables(layout: Layout, numbers: dict[int, Weights]) -> tuple[str, str]:
    """Weights as constants, and the tables that point to them."""
    dense = {layer for op, layer in zip(layout.ops, layout.layers, strict=True) if op.op == DENSE}
    constants = []
    for layer, found in numbers.items():
        # 16-bit weights are read as such; bytes of one-bit weights may begin anywhere.
        whole = ("int16_t", found.weight.view(np.int16)) if layer in dense else ("uint8_t", found.weight)
        arrays = whole, ("int32_t", found.multiplier), ("int32_t", found.offset)
        for key, (kind, array) in zip(_POINTERS, arrays, strict=True):
            constants.append(_c_text.constant(kind, f"{key}{layer}", array))
    ops = []
    for op, layer in zip(layout.ops, layout.layers, strict=True):
        fields = {name: value for name, value in _fields(op).items() if name not in _POINTERS}
        if layer in numbers:
            fields |= {"row": str(numbers[layer].row), "wide": str(int(numbers[layer].wide))}
            fields |= {key: f"{key}{layer}" for key in _POINTERS}
        ops.append(fields)
    tables = [_c_text.table("bsnn_op", "ops", ops), _c_text.table("bsnn_value", "values", map(_fields, layout.values))]
    return "\n".join(constants), "\n".join(tables)


def _fields(table: OpTable | ValueTable) -> dict[str, str]:
    """The fields of a table as C."""
    return {
        name: "{" + ", ".join(map(str, value)) + "}" if isinstance(value, list) else str(value)
        for name, value in contents(table).items()
    }


def _checksum(membranes: list[np.ndarray]) -> int:
    """FNV-1a over 32-bit words, as main.c computes it."""
    total = 2166136261
    for word in np.concatenate([m.ravel() for m in membranes]).view(np.uint32).tolist() if membranes else []:
        total = ((total ^ word) * 16777619) & 0xFFFFFFFF
    return total


def _golden(engine: Engine, samples: np.ndarray) -> str:
    """What the engine makes of some samples."""
    frames = engine.integers(samples)[0]
    outputs, checksums = [], []
    for frame in frames:
        membranes = engine.artifact.membranes(1)
        outputs.append(engine.run(frame[None, None], engine.time_steps, membranes)[0])
        checksums.append(_checksum(membranes))
    return _c_text.golden(frames, outputs, checksums)
