"""A deployed network as a folder of C99 for a microcontroller: the engine's own C, with weights as constants.

Nothing is allocated: memory is static, and its size stands in model.h. Golden vectors come with it, and programs that
check them: a `main`, and one for a bare Cortex-M4 under qemu.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np

from bsnn.atomic import write_files
from bsnn.deploy.camera import why_no_events
from bsnn.deploy.engine import Engine
from bsnn.deploy.engine.tables import DENSE, OpTable, TaskTable, ValueTable, contents
from bsnn.deploy.footprint import Device, of_byte, on_device, takes_bytes
from bsnn.deploy.formats import _c_events, _c_readme, _c_sound, _c_text
from bsnn.deploy.formats._golden import golden_vectors
from bsnn.deploy.schema import Artifact
from bsnn.deploy.sound import sound_of
from bsnn.errors import UserError

_ENGINE = Path(__file__).parents[1] / "engine" / "csrc"
_SHARED = Path(__file__).parents[2] / "csrc"
_CORTEX_M = Path(__file__).with_name("cortex_m")
_ARDUINO = Path(__file__).with_name("arduino")
_HEADERS = ("count.h", "count_width.h", "words.h")
_POINTERS = ("weight", "multiplier", "offset")
# The Makefile compiles them if they are there.
_OF_SOME_NETWORKS = (*_c_sound.NAMES, *_c_events.NAMES)


def export_c(artifact: Artifact, out: Path, samples: np.ndarray | None = None) -> dict[str, Any]:
    """Writes the folder.

    Args:
        artifact: The network.
        out: The folder; it is new or empty, or holds an earlier export, whose files are replaced. If one of them
            cannot be written, all remain as they were.
        samples: Inputs of the golden vectors, raw, as `Engine` takes them, `[B, C, H, W]`, or `[T, B, C, H, W]` for
            events; if the network takes bytes, so must they be. Sounds are 16-bit samples, `[B, samples]`. By default
            random ones.

    Returns:
        Its path and bytes, the bytes of the network's weights, and how much flash and RAM the network takes on a
        device, in all and by layer.
    """
    _check_folder(out)
    device, front_end = on_device(artifact), {}
    if artifact.input.kind == "sound":
        sound = sound_of(artifact.input)
        sounds = _c_sound.golden_sounds(sound, samples)
        front_end, samples = _c_sound.sound_files(Engine(artifact), sound, sounds), sound.integers(sounds)
    library = {
        "engine.h": _c_text.portable(device) + (_ENGINE / "engine.h").read_text(),
        "engine.c": (_ENGINE / "engine.c").read_text(),
        **{name: (_SHARED / name).read_text() for name in _HEADERS},
        "model.h": _c_text.header(device),
        "model.c": _c_text.source(device, *_tables(device)),
        "stream.c": _c_text.stream(device),
    }
    golden = _c_text.golden(*golden_vectors(artifact, samples))
    files = {
        **library,
        "golden.h": golden,
        "main.c": _c_text.MAIN,
        "Makefile": _c_text.MAKEFILE,
        "README.md": _c_readme.readme(device),
        **front_end,
        **_c_events.event_files(artifact.input),
        **{f"cortex-m/{file.name}": file.read_text() for file in sorted(_CORTEX_M.iterdir())},
        "arduino/library.properties": _c_readme.properties(artifact),
        **{f"arduino/src/{name}": text for name, text in library.items()},
        "arduino/src/bsnn_model.h": (_ARDUINO / "bsnn_model.h").read_text(),
        "arduino/examples/golden/golden.h": golden,
        "arduino/examples/golden/golden.ino": (_ARDUINO / "golden.ino").read_text(),
    }
    contents = {out / name: text.encode() for name, text in files.items()}
    write_files(contents)
    for name in _OF_SOME_NETWORKS:
        if name not in files:
            (out / name).unlink(missing_ok=True)
    return {
        "path": os.fspath(out),
        "bytes": sum(map(len, contents.values())),
        "weight_bytes": artifact.weight_bytes,
        **device.figures(),
        "layers": device.by_layer(),
        "no_events": why_no_events(artifact.input),
    }


def _check_folder(out: Path) -> None:
    """Refuses a folder with files of the user's own, among which some would be replaced."""
    source = out / "model.c"
    ours = source.is_file() and source.read_bytes().startswith(_c_text.WRITTEN.encode())
    if out.is_dir() and any(out.iterdir()) and not ours:
        raise UserError(
            f"{out}: holds other files, and no earlier export; expected a new or an empty folder. Choose another --out."
        )


def _tables(device: Device) -> tuple[str, str]:
    """Weights as constants, and the tables that point to them."""
    layout = device.layout
    dense = {layer for op, layer in zip(layout.ops, layout.layers, strict=True) if op.op == DENSE}
    constants = []
    if takes_bytes(device.artifact.input):
        constants.append(_c_text.constant("int16_t", "of_byte", of_byte(device.artifact.input).ravel()))
    for layer, found in device.weights.items():
        # 16-bit weights are read as such; bytes of one-bit weights may begin anywhere.
        whole = ("int16_t", found.weight.view(np.int16)) if layer in dense else ("uint8_t", found.weight)
        arrays = whole, ("int32_t", found.multiplier), ("int32_t", found.offset)
        for key, (kind, array) in zip(_POINTERS, arrays, strict=True):
            if len(array):
                constants.append(_c_text.constant(kind, f"{key}{layer}", array))
    ops = []
    for op, layer in zip(layout.ops, layout.layers, strict=True):
        fields = {name: value for name, value in _fields(op).items() if name not in _POINTERS}
        if layer in device.weights:
            found = device.weights[layer]
            fields |= {"row": str(found.row), "wide": str(int(found.wide))}
            fields |= {key: f"{key}{layer}" for key in _POINTERS if len(getattr(found, key))}
        ops.append(fields)
    tables = {"bsnn_op": ops, "bsnn_value": map(_fields, layout.values), "bsnn_task": map(_fields, layout.tasks)}
    return "\n".join(constants), "\n".join(_c_text.table(kind, f"{kind[5:]}s", rows) for kind, rows in tables.items())


def _fields(table: OpTable | ValueTable | TaskTable) -> dict[str, str]:
    """The fields of a table as C."""
    return {
        name: "{" + ", ".join(map(str, value)) + "}" if isinstance(value, list) else str(value)
        for name, value in contents(table).items()
    }
