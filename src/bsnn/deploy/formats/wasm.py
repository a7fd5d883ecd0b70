"""A deployed network as one HTML file: draw, drop or say something, and see spikes and scores at every time step.

The page holds the engine's own C as WebAssembly, with the tables and weights of the network as its memory. It needs no
network access, and its policy forbids it. On loading it checks golden vectors.
"""

import base64
import hashlib
import json
import os
from dataclasses import asdict
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from bsnn.atomic import write_file
from bsnn.data.audio import SAMPLE_RATE
from bsnn.data.front_end import RANGE, SILENT_BELOW
from bsnn.deploy.engine.webassembly import engine_wasm
from bsnn.deploy.footprint import takes_bytes
from bsnn.deploy.formats._c_sound import golden_sounds
from bsnn.deploy.formats._golden import Golden, golden_vectors
from bsnn.deploy.formats._memory import BASE, lay_memory
from bsnn.deploy.schema import Artifact
from bsnn.deploy.sound import sound_of
from bsnn.errors import UserError

_PAGE = Path(__file__).with_name("page")
_LIBRARY = ("network.js", "drawing.js", "picture.js", "sound.js")
_MOST_SPIKES = 2**28
_SOUNDS = 2
"""Golden vectors that begin with the samples of a sound, 32 KB each."""
_PROGRAM = ("view.js", "pad.js", "speech.js", "app.js")


def export_wasm(artifact: Artifact, out: Path, samples: np.ndarray | None = None) -> dict[str, Any]:
    """Writes the page.

    Args:
        artifact: The network.
        out: The file.
        samples: Inputs of the golden vectors, as `Engine` takes them, which the page also shows; sounds are 16-bit
            samples, `[B, samples]`. By default random ones.

    Returns:
        Its path and bytes, the bytes of the network's weights, and the number of golden vectors.

    Raises:
        UserError: If a page has no input for this network.
    """
    _check(artifact)
    inputs, sounds = samples, np.zeros((0, 0), np.int16)
    if artifact.input.kind == "sound":
        sound = sound_of(artifact.input)
        sounds = golden_sounds(sound, samples)
        inputs = sound.integers(sounds)
    golden = golden_vectors(artifact, inputs)
    content = _page(artifact, golden, samples is not None, sounds[:_SOUNDS]).encode()
    write_file(out, content)
    return {
        "path": os.fspath(out),
        "bytes": len(content),
        "weight_bytes": artifact.weight_bytes,
        "golden_vectors": len(golden.outputs),
    }


def _page(artifact: Artifact, golden: Golden, real: bool, sounds: np.ndarray) -> str:
    """The text of the page.

    Args:
        artifact: The network.
        golden: The golden vectors.
        real: Whether they are samples to show.
        sounds: The sounds of the first ones, int16, `[N, samples]`.
    """
    memory, spec = lay_memory(artifact), artifact.input
    model = {
        "name": artifact.name,
        "kind": spec.kind,
        "shape": spec.shape,
        "classes": artifact.classes,
        "time_steps": artifact.time_steps,
        "output_scale": artifact.output_scale,
        "reject_below": artifact.reject_below,
        "bytes": takes_bytes(spec),
        "divisor": spec.divisor,
        "margin": spec.decode.get("margin", 1.0),
        "drawing": _drawing(artifact) if spec.kind == "image" and spec.shape[0] == 1 else None,
        "sound": _sound(artifact) if spec.kind == "sound" else None,
        "layers": [{"name": artifact.layers[i].name, "shape": artifact.values[i + 1].shape} for i in artifact.lifs],
        "weight_bytes": artifact.weight_bytes,
        "memory": {name: place for name, place in asdict(memory).items() if name != "image"} | {"base": BASE},
        "golden": {
            "inputs": _base64(golden.inputs.astype(golden.inputs.dtype.newbyteorder("<")).tobytes()),
            "outputs": golden.outputs.tolist(),
            "checksums": golden.checksums,
            "sounds": [_base64(sound.astype("<i2").tobytes()) for sound in sounds],
            "real": real,
        },
        "engine": _base64(engine_wasm()),
        "image": _base64(memory.image),
    }
    style, library, program = (_joined(*names) for names in (("page.css",), _LIBRARY, _PROGRAM))
    return Template(_joined("page.html")).substitute(
        title=escape(f"{artifact.name}: a binary spiking network"),
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(library)} "
        # What hears the microphone is a script of its own, made by the page.
        f"{_hash(program)} 'wasm-unsafe-eval'" + (" data:" if spec.kind == "sound" else ""),
        style=style,
        library=library,
        program=program,
        # A name in it cannot end the script that it lies in.
        model=json.dumps(model, separators=(",", ":")).replace("<", "\\u003c"),
    )


def _check(artifact: Artifact) -> None:
    """Refuses networks that a page has no input for, or that have too much to show."""
    spec, name = artifact.input, artifact.name
    spikes = artifact.time_steps * sum(artifact.values[i + 1].size for i in artifact.lifs)
    if spikes > _MOST_SPIKES:
        raise UserError(
            f"{name}: its neurons could fire {spikes:,} times in {artifact.time_steps} time steps; a page shows at "
            f"most {_MOST_SPIKES:,}. Use --format c."
        )
    if spec.kind == "event":
        raise UserError(f"{name}: takes events, and a page has no camera for them. Use --format c.")
    if spec.kind == "sound":
        sound_of(spec)  # refuses what cannot be made from samples
        return
    if spec.shape[0] not in (1, 3):
        raise UserError(f"{name}: takes {spec.shape[0]} channels, which no picture has. Use --format c.")
    if not takes_bytes(spec):
        raise UserError(
            f"{name}: does not say how to normalize the bytes of a picture; export the model file with its data set "
            "(data=... or spec=...) first."
        )


def _drawing(artifact: Artifact) -> dict[str, Any]:
    """How images of the set that a network was trained on were made from handwriting.

    The bundled digits were sheared upright, scaled in each direction to fill 20 × 32 of 32 × 32 pixels, and averaged;
    all have the same amount of ink. Others are taken to be like those of MNIST: the longer side fills 20 of 28 pixels,
    and the center of mass lies in the middle.
    """
    spec = artifact.input
    dark = spec.mean[0] > 0.5  # ink on a light ground
    if artifact.name == "digits":
        return {"box": (1.0, 20 / 32), "stretch": 2, "upright": True, "pen": 0, "ink": spec.mean[0], "dark": dark}
    pen = 2.4 / 28 * min(spec.shape[1:])
    return {"box": (20 / 28, 20 / 28), "stretch": 1, "balanced": True, "pen": pen, "dark": dark}


def _sound(artifact: Artifact) -> dict[str, Any]:
    """The front end of a network for sounds."""
    spec, sound = artifact.input, sound_of(artifact.input)
    front_end, tables = sound.front_end, sound.front_end.tables()
    return {
        "rate": SAMPLE_RATE,
        "samples": front_end.samples,
        "window": front_end.window,
        "hop": front_end.hop,
        "range": RANGE,
        "silent_below": SILENT_BELOW,
        "multiplier": sound.multiplier,
        "offset": sound.offset,
        "mean": spec.mean[0],
        "std": spec.std[0],
        "fraction_bits": spec.fraction_bits,
        **{name: table.tolist() for name, table in tables._asdict().items()},
    }


def _joined(*names: str) -> str:
    return "\n".join((_PAGE / name).read_text(encoding="utf-8") for name in names)


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _hash(text: str) -> str:
    """What the policy of a page calls a script or a style."""
    return f"'sha256-{_base64(hashlib.sha256(text.encode()).digest())}'"
