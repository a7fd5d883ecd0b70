"""The text of the files that the C99 export writes; `bsnn.deploy.formats.c` fills it in."""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from bsnn.deploy.footprint import Footprint
from bsnn.deploy.schema import Artifact


def numbers(array: np.ndarray) -> str:
    """Numbers between commas, 24 per line."""
    texts = [str(number) for number in array.tolist()]
    return ",\n".join(",".join(texts[start : start + 24]) for start in range(0, len(texts), 24))


def constant(kind: str, name: str, array: np.ndarray) -> str:
    """An array of numbers."""
    return f"static const {kind} {name}[{len(array)}] = {{\n{numbers(array)}\n}};\n"


def table(kind: str, name: str, rows: Iterable[dict[str, str]]) -> str:
    """An array of structures, each given by its fields."""
    lines = ["    {" + ", ".join(f".{key} = {value}" for key, value in row.items()) + "}" for row in rows]
    return f"static const {kind} {name}[{len(lines)}] = {{\n" + ",\n".join(lines) + "\n};\n"


def string(text: str) -> str:
    """A string; all but printable ASCII is octal, which ends after three digits."""
    plain = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{plain}"'


def comment(text: str) -> str:
    """Text that cannot leave its comment."""
    return re.sub(r"[^A-Za-z0-9 .,:_+-]", "?", text)


def portable(word_bits: int) -> str:
    """What engine.h begins with on a device."""
    return (
        f"/* Plain C99 in words of {word_bits} bits; the same source runs in the bsnn engine with vectors. */\n"
        f"#define BSNN_PORTABLE\n#define BSNN_WORD_BITS {word_bits}\n\n"
    )


def header(artifact: Artifact, size: Footprint) -> str:
    """model.h."""
    channels, height, width = artifact.input.shape
    return f"""/* {comment(artifact.name)}: a binary spiking network. Memory is static; nothing is allocated. */

#ifndef BSNN_MODEL_H
#define BSNN_MODEL_H

#include <stdint.h>

#define BSNN_CLASSES {len(artifact.classes)}
#define BSNN_TIME_STEPS {artifact.time_steps}
#define BSNN_HEIGHT {height}
#define BSNN_WIDTH {width}
#define BSNN_CHANNELS {channels}
#define BSNN_INPUT_SIZE (BSNN_HEIGHT * BSNN_WIDTH * BSNN_CHANNELS)

#define BSNN_MEMBRANE_BYTES {size.membranes}
#define BSNN_VALUE_BYTES {size.values}
#define BSNN_SCRATCH_BYTES {size.scratch}
#define BSNN_RAM_BYTES (BSNN_MEMBRANE_BYTES + BSNN_VALUE_BYTES + BSNN_SCRATCH_BYTES)
#define BSNN_CONSTANT_BYTES {size.flash}

extern const char *const bsnn_classes[BSNN_CLASSES];

/* Input integers from raw bytes, both [BSNN_HEIGHT][BSNN_WIDTH][BSNN_CHANNELS]. */
void bsnn_from_bytes(const uint8_t *raw, int16_t *input);

/* Shows a still input BSNN_TIME_STEPS times; writes the summed outputs and returns the class. */
int bsnn_predict(const int16_t *input, int64_t outputs[BSNN_CLASSES]);

/* A stream: begin with bsnn_reset, then one time step per call, whose outputs are added to `outputs`. */
void bsnn_reset(void);
void bsnn_step(const int16_t *input, int64_t outputs[BSNN_CLASSES]);

/* The membranes of all layers, BSNN_MEMBRANE_BYTES / 4 of them. */
const int32_t *bsnn_membranes(void);

#endif
"""


def source(artifact: Artifact, num_ops: int, constants: str, tables: str) -> str:
    """model.c."""
    spec = artifact.input
    sizes = [artifact.values[i + 1].size for i in artifact.lifs]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    pointers = ", ".join(f"membranes + {start}" for start in starts) or "0"
    names = ",\n    ".join(string(name) for name in artifact.classes)
    multiplier, offset = (numbers(np.array(v, np.int64)) for v in (spec.multiplier, spec.offset))
    return f"""/* Weights and tables of the network; written by bsnn. */

#include "model.h"
#include "engine.h"

#include <string.h>

{constants}
{tables}
static const bsnn_model model = {{
    {num_ops}, {len(artifact.values)}, {len(artifact.values) - 1}, BSNN_INPUT_SIZE, ops, values
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


def golden(frames: np.ndarray, outputs: Sequence[np.ndarray], checksums: Sequence[int]) -> str:
    """golden.h, from inputs `[N, H, W, C]`, outputs, and checksums of the membranes."""
    texts = ",\n".join("{" + ", ".join(f"INT64_C({int(x)})" for x in row) + "}" for row in outputs)
    inputs = ",\n".join("{" + numbers(frame.ravel()) + "}" for frame in frames)
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


MAIN = """/* Checks the golden vectors: this program, and no other file here, prints. */

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

MAKEFILE = """# make check: builds the network and compares it with its golden vectors.
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


def readme(artifact: Artifact, size: Footprint) -> str:
    """README.md."""
    channels, height, width = artifact.input.shape
    classes, steps = len(artifact.classes), artifact.time_steps
    return f"""# {artifact.name} in C99

A binary spiking network: {classes} classes from {channels} × {height} × {width}, T = {steps}. `make check` builds
it and compares it with its golden vectors, which the bsnn engine made: the same integers on every machine.

| | bytes |
| --- | --- |
| constants (weights, tables) | {size.flash:,} |
| membranes | {size.membranes:,} |
| values between layers | {size.values:,} |
| scratch | {size.scratch:,} |

To use it, add `engine.c`, `model.c` and the headers beside them to your project, and call `bsnn_predict` of `model.h`,
or `bsnn_reset` and `bsnn_step` for a stream. They need a C99 compiler, `memcpy` and `memset`; they allocate nothing.
`main.c`, `golden.h` and the Makefile are for the check alone.
"""
