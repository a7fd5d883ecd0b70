"""A deployed network as a folder of C99 for a microcontroller: the engine's own C, weights as constants.

Nothing is allocated: memory is static, and its size stands in model.h. Golden vectors come with it, and a `main` that
checks them.
"""

import ctypes
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from bsnn.deploy.artifact import Artifact, Scale, Synapse
from bsnn.deploy.engine import Engine
from bsnn.deploy.engine.layout import Layout, lay_out
from bsnn.deploy.engine.weights import weights
from bsnn.errors import UserError

_ENGINE = Path(__file__).parents[1] / "engine" / "csrc"
_SHARED = Path(__file__).parents[2] / "csrc"
_HEADERS = ("convolution.h", "count.h", "count_width.h", "words.h")
_WORD_BITS = 32
_GOLDEN = 4
_POINTERS = ("weight", "multiplier", "offset")


def export_c(artifact: Artifact, out: Path, samples: np.ndarray | None = None) -> dict[str, Any]:
    """Writes the folder.

    Args:
        artifact: The network.
        out: The folder; files of an earlier export in it are replaced.
        samples: Inputs of the golden vectors, as `Engine` takes them, `[B, C, H, W]`; by default random integers.

    Returns:
        Its path and bytes, and how much constant data and memory the network takes on a device.
    """
    layout = lay_out(artifact, True, 1, _WORD_BITS)
    constants, tables, flash = _tables(artifact, layout)
    ram = _memory(artifact, layout)
    engine = Engine(artifact)
    if samples is None:
        samples = np.random.default_rng(0).integers(-8192, 8192, (_GOLDEN, *artifact.input.shape), np.int16)
    header = _header(artifact, ram, flash)
    portable = f"/* Plain C99 in words of {_WORD_BITS} bits; the same source runs in the bsnn engine with vectors. */\n"
    portable += f"#define BSNN_PORTABLE\n#define BSNN_WORD_BITS {_WORD_BITS}\n\n"
    files = {
        "engine.h": portable + (_ENGINE / "engine.h").read_text(),
        "engine.c": (_ENGINE / "engine.c").read_text(),
        **{name: (_SHARED / name).read_text() for name in _HEADERS},
        "model.h": header,
        "model.c": _source(artifact, layout, constants, tables),
        "golden.h": _golden(engine, samples),
        "main.c": _MAIN,
        "Makefile": _MAKEFILE,
        "README.md": _readme(artifact, ram, flash),
    }
    total = sum(_write(out, name, text) for name, text in files.items())
    return {"path": os.fspath(out), "bytes": total, "flash_bytes": flash, "ram_bytes": sum(ram.values())}


def _write(out: Path, name: str, text: str) -> int:
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out / name} cannot be written ({error.strerror or error}); choose another --out.") from error
    return len(text.encode())


def _memory(artifact: Artifact, layout: Layout) -> dict[str, int]:
    """Bytes of static memory."""
    membranes = sum(4 * artifact.values[i + 1].size for i in artifact.lifs)
    return {"membranes": membranes, "values": layout.values_bytes, "scratch": layout.scratch_bytes}


def _numbers(array: np.ndarray) -> str:
    texts = [str(number) for number in array.tolist()]
    return ",\n".join(",".join(texts[start : start + 24]) for start in range(0, len(texts), 24))


def _constant(kind: str, name: str, array: np.ndarray) -> str:
    return f"static const {kind} {name}[{len(array)}] = {{\n{_numbers(array)}\n}};\n"


def _tables(artifact: Artifact, layout: Layout) -> tuple[str, str, int]:
    """Weights and tables as text, and the bytes that they take on a device of 32 bits."""
    constants, flash, pointers = [], 0, {}
    for i, layer in enumerate(artifact.layers):
        if not isinstance(layer, Synapse | Scale):
            continue
        numbers = weights(layer, artifact.values[layer.inputs[0]])
        pointers[i] = {"row": numbers.row, "wide": int(numbers.wide)}
        # 16-bit weights are read as such; bytes of one-bit weights may begin anywhere.
        dense = numbers.row and any(op.op == 1 for op, at in zip(layout.ops, layout.layers, strict=True) if at == i)
        arrays = {
            "weight": ("int16_t", numbers.weight.view(np.int16)) if dense else ("uint8_t", numbers.weight),
            "multiplier": ("int32_t", numbers.multiplier),
            "offset": ("int32_t", numbers.offset),
        }
        for key, (kind, array) in arrays.items():
            constants.append(_constant(kind, f"{key}{i}", array))
            pointers[i][key] = f"{key}{i}"
            flash += array.nbytes
    ops = []
    for op, layer in zip(layout.ops, layout.layers, strict=True):
        fields = {name: _field(op, name) for name in _names(op) if name not in _POINTERS}
        ops.append("    {" + ", ".join(f".{k} = {v}" for k, v in (fields | pointers.get(layer, {})).items()) + "}")
    values = [
        "    {" + ", ".join(f".{name} = {_field(value, name)}" for name in _names(value)) + "}"
        for value in layout.values
    ]
    tables = (
        f"static const bsnn_op ops[{len(ops)}] = {{\n" + ",\n".join(ops) + "\n};\n\n"
        f"static const bsnn_value values[{len(values)}] = {{\n" + ",\n".join(values) + "\n};\n"
    )
    words = sum(
        len(_field(op, name).split(",")) if name not in _POINTERS else 1 for op in layout.ops for name in _names(op)
    )
    words += sum(len(_names(value)) for value in layout.values)
    return "\n".join(constants), tables, flash + 4 * words


def _names(table: ctypes.Structure) -> list[str]:
    return [field[0] for field in table._fields_]


def _field(table: ctypes.Structure, name: str) -> str:
    value = getattr(table, name)
    return str(int(value)) if isinstance(value, int) else "{" + ", ".join(map(str, value)) + "}"


def _text(text: str) -> str:
    """A string of C: other than printable ASCII in octal, which ends after three digits."""
    plain = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{plain}"'


def _comment(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9 .,:_+-]", "?", text)


def _header(artifact: Artifact, ram: dict[str, int], flash: int) -> str:
    channels, height, width = artifact.input.shape
    return f"""/* {_comment(artifact.name)}: a binary spiking network. Memory is static; nothing is allocated. */

#ifndef BSNN_MODEL_H
#define BSNN_MODEL_H

#include <stdint.h>

#define BSNN_CLASSES {len(artifact.classes)}
#define BSNN_TIME_STEPS {artifact.time_steps}
#define BSNN_HEIGHT {height}
#define BSNN_WIDTH {width}
#define BSNN_CHANNELS {channels}
#define BSNN_INPUT_SIZE (BSNN_HEIGHT * BSNN_WIDTH * BSNN_CHANNELS)

#define BSNN_MEMBRANE_BYTES {ram["membranes"]}
#define BSNN_VALUE_BYTES {ram["values"]}
#define BSNN_SCRATCH_BYTES {ram["scratch"]}
#define BSNN_RAM_BYTES (BSNN_MEMBRANE_BYTES + BSNN_VALUE_BYTES + BSNN_SCRATCH_BYTES)
#define BSNN_CONSTANT_BYTES {flash}

extern const char *const bsnn_classes[BSNN_CLASSES];

/* Input integers from raw bytes, both [BSNN_HEIGHT][BSNN_WIDTH][BSNN_CHANNELS]. */
void bsnn_from_bytes(const uint8_t *raw, int16_t *input);

/* Shows a still input BSNN_TIME_STEPS times; writes the summed outputs and returns the class. */
int bsnn_predict(const int16_t *input, int64_t outputs[BSNN_CLASSES]);

/* A stream: begin with bsnn_reset, then one time step a call, whose outputs are added to `outputs`. */
void bsnn_reset(void);
void bsnn_step(const int16_t *input, int64_t outputs[BSNN_CLASSES]);

/* The membranes of all layers, BSNN_MEMBRANE_BYTES / 4 of them. */
const int32_t *bsnn_membranes(void);

#endif
"""


def _source(artifact: Artifact, layout: Layout, constants: str, tables: str) -> str:
    spec = artifact.input
    sizes = [artifact.values[i + 1].size for i in artifact.lifs]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    pointers = ", ".join(f"membranes + {start}" for start in starts) or "0"
    names = ",\n    ".join(_text(name) for name in artifact.classes)
    multiplier, offset = (_numbers(np.array(v, np.int64)) for v in (spec.multiplier, spec.offset))
    return f"""/* Weights and tables of the network; written by bsnn. */

#include "model.h"
#include "engine.h"

#include <string.h>

{constants}
{tables}
static const bsnn_model model = {{
    {len(layout.ops)}, {len(layout.values)}, {len(layout.values) - 1}, BSNN_INPUT_SIZE, ops, values
}};

const char *const bsnn_classes[BSNN_CLASSES] = {{
    {names}
}};

static const int32_t input_multiplier[BSNN_CHANNELS] = {{{multiplier}}};
static const int32_t input_offset[BSNN_CHANNELS] = {{{offset}}};

static int32_t membranes[BSNN_MEMBRANE_BYTES / 4 + 1];
static int32_t *const membrane_of[] = {{{pointers}}};
/* Of 64-bit numbers, so that all that lies in it is aligned. */
static uint64_t workspace[(BSNN_VALUE_BYTES + BSNN_SCRATCH_BYTES) / 8 + 1];

void bsnn_from_bytes(const uint8_t *raw, int16_t *input)
{{
    int32_t i;
    for (i = 0; i < BSNN_INPUT_SIZE; i++) {{
        const int32_t c = i % BSNN_CHANNELS;
        int64_t x = (int64_t)raw[i] * input_multiplier[c] + input_offset[c];
        x = (x + ((INT64_C(1) << {spec.shift}) >> 1)) >> {spec.shift};
        input[i] = (int16_t)(x > 32767 ? 32767 : x < -32768 ? -32768 : x);
    }}
}}

static void run(const int16_t *input, int32_t time_steps, int64_t *outputs)
{{
    bsnn_call call;
    memset(&call, 0, sizeof call);
    call.model = &model;
    call.frames = input;
    call.num_frames = 1;
    call.batch = 1;
    call.time_steps = time_steps;
    call.chunk = 1;
    call.membranes = membrane_of;
    call.outputs = outputs;
    call.workspace = (uint8_t *)workspace;
    call.values_bytes = BSNN_VALUE_BYTES;
    call.scratch_bytes = BSNN_SCRATCH_BYTES;
    call.threads = 1;
    bsnn_run(&call, 0);
}}

void bsnn_reset(void)
{{
    memset(membranes, 0, sizeof membranes);
}}

void bsnn_step(const int16_t *input, int64_t outputs[BSNN_CLASSES])
{{
    run(input, 1, outputs);
}}

int bsnn_predict(const int16_t *input, int64_t outputs[BSNN_CLASSES])
{{
    int c, best = 0;
    bsnn_reset();
    memset(outputs, 0, BSNN_CLASSES * sizeof outputs[0]);
    run(input, BSNN_TIME_STEPS, outputs);
    for (c = 1; c < BSNN_CLASSES; c++)
        if (outputs[c] > outputs[best])
            best = c;
    return best;
}}

const int32_t *bsnn_membranes(void)
{{
    return membranes;
}}
"""


def _checksum(membranes: list[np.ndarray]) -> int:
    """FNV-1a over 32-bit words, as main.c computes it."""
    total = 2166136261
    for word in np.concatenate([m.ravel() for m in membranes]).view(np.uint32).tolist() if membranes else []:
        total = ((total ^ word) * 16777619) & 0xFFFFFFFF
    return total


def _golden(engine: Engine, samples: np.ndarray) -> str:
    frames = engine.integers(samples)[0]
    outputs, checksums = [], []
    for frame in frames:
        membranes = engine.artifact.membranes(1)
        outputs.append(engine.run(frame[None, None], engine.time_steps, membranes)[0])
        checksums.append(_checksum(membranes))
    texts = ",\n".join("{" + ", ".join(f"INT64_C({int(x)})" for x in row) + "}" for row in outputs)
    inputs = ",\n".join("{" + _numbers(frame.ravel()) + "}" for frame in frames)
    sums = ", ".join(f"{number}u" for number in checksums)
    return f"""/* Inputs, and what the bsnn engine makes of them: outputs, and a checksum of the last membranes. */

#define GOLDEN {len(frames)}

static const int16_t golden_inputs[GOLDEN][BSNN_INPUT_SIZE] = {{
{inputs}
}};

static const int64_t golden_outputs[GOLDEN][BSNN_CLASSES] = {{
{texts}
}};

static const uint32_t golden_membranes[GOLDEN] = {{{sums}}};
"""


_MAIN = """/* Checks the golden vectors: this program, and no other file here, prints. */

#include "model.h"
#include "golden.h"

#include <stdio.h>

int main(void)
{
    int64_t outputs[BSNN_CLASSES];
    int i, c, wrong = 0;
    for (i = 0; i < GOLDEN; i++) {
        const int32_t *const membranes = bsnn_membranes();
        uint32_t sum = 2166136261u;
        long k;
        int bad = 0;
        const int found = bsnn_predict(golden_inputs[i], outputs);
        for (c = 0; c < BSNN_CLASSES; c++)
            bad |= outputs[c] != golden_outputs[i][c];
        for (k = 0; k < BSNN_MEMBRANE_BYTES / 4; k++)
            sum = ((sum ^ (uint32_t)membranes[k]) * 16777619u) & 0xFFFFFFFFu;
        bad |= sum != golden_membranes[i];
        printf("vector %d: %s, %s\\n", i, bsnn_classes[found], bad ? "WRONG" : "as expected");
        wrong += bad;
    }
    printf("%d of %d vectors wrong; %ld bytes of constants, %ld bytes of memory\\n", wrong, GOLDEN,
           (long)BSNN_CONSTANT_BYTES, (long)BSNN_RAM_BYTES);
    return wrong != 0;
}
"""

_MAKEFILE = """# make check: builds the network and compares it with its golden vectors.
# For a device: make check CC=arm-linux-gnueabihf-gcc LDFLAGS=-static RUN=qemu-arm

CC ?= cc
CFLAGS ?= -O2
WARNINGS = -std=c99 -Wall -Wextra -Werror -pedantic

check: network
	$(RUN) ./network

network: main.c model.c engine.c $(wildcard *.h)
	$(CC) $(CFLAGS) $(WARNINGS) main.c model.c engine.c $(LDFLAGS) -o $@

clean:
	rm -f network

.PHONY: check clean
"""


def _readme(artifact: Artifact, ram: dict[str, int], flash: int) -> str:
    channels, height, width = artifact.input.shape
    classes, steps = len(artifact.classes), artifact.time_steps
    return f"""# {artifact.name} in C99

A binary spiking network: {classes} classes from {channels} × {height} × {width}, T = {steps}. `make check` builds
it and compares it with its golden vectors, which the bsnn engine made: the same integers on every machine.

| | bytes |
| --- | --- |
| constants (weights, tables) | {flash:,} |
| membranes | {ram["membranes"]:,} |
| values between layers | {ram["values"]:,} |
| scratch | {ram["scratch"]:,} |

To use it, add `engine.c`, `model.c` and the headers beside them to your project, and call `bsnn_predict` of `model.h`,
or `bsnn_reset` and `bsnn_step` for a stream. They need a C99 compiler, `memcpy` and `memset`; they allocate nothing.
`main.c`, `golden.h` and the Makefile are for the check alone.
"""
