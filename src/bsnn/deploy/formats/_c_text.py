"""The text of the files that the C99 export writes; `bsnn.deploy.formats.c` fills it in."""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from bsnn.deploy.footprint import Device, takes_bytes
from bsnn.deploy.schema import InputSpec

WRITTEN = "/* Weights and tables of the network, and how it is run; written by bsnn. */"
"""The first line of model.c, by which an earlier export is recognized."""


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


def portable(device: Device) -> str:
    """What engine.h begins with on a device."""
    target = device.target
    return (
        f"/* Plain C99 in words of {target.word_bits} bits; the same source runs in the bsnn engine with vectors. */\n"
        "#define BSNN_SMALL\n"
        f"#define BSNN_WORD_BITS {target.word_bits}\n"
        f"#define BSNN_OFFSET_BITS {target.offset_bits}\n"
        f"#define BSNN_OFFSET_SHIFT {target.offset_shift}\n"
        f"#define BSNN_OPS {sum(1 << op for op in device.ops)}u /* those that the network has */\n\n"
    )


def header(device: Device) -> str:
    """model.h."""
    artifact, spec = device.artifact, device.artifact.input
    channels, height, width = spec.shape
    kind = "uint8_t" if takes_bytes(spec) else "int16_t"
    shown = "[BSNN_FRAMES] of them, one for each time step" if device.frames > 1 else "shown at every time step"
    return f"""/* {comment(artifact.name)}: a binary spiking network. Memory is static, and nothing is allocated.
   No function is reentrant: do not call one from an interrupt or a second thread while another runs. */

#ifndef BSNN_MODEL_H
#define BSNN_MODEL_H

#include <stdint.h>

#define BSNN_CLASSES {len(artifact.classes)}
#define BSNN_TIME_STEPS {artifact.time_steps}
#define BSNN_FRAMES {device.frames}
#define BSNN_HEIGHT {height}
#define BSNN_WIDTH {width}
#define BSNN_CHANNELS {channels}
#define BSNN_FRAME_SIZE (BSNN_HEIGHT * BSNN_WIDTH * BSNN_CHANNELS)
#define BSNN_INPUT_SIZE (BSNN_FRAMES * BSNN_FRAME_SIZE)

/* Bytes. RAM is the workspace of a prediction{" and its membranes" * device.by_steps}, and one input, which the caller
   provides; a stream (stream.c) keeps all membranes, and takes one frame at a time. Flash is constants, and code as it
   was measured for a Cortex-M4 (arm-none-eabi-gcc 12.2, -Os). */
#define BSNN_VALUE_BYTES {device.layout.values_bytes}
#define BSNN_SCRATCH_BYTES {device.layout.scratch_bytes}
#define BSNN_MEMBRANE_BYTES {device.membrane_bytes}
#define BSNN_RAM_BYTES {device.ram_bytes}
#define BSNN_STREAM_RAM_BYTES {device.stream_ram_bytes}
#define BSNN_CONSTANT_BYTES {device.constant_bytes}
#define BSNN_FLASH_BYTES {device.flash_bytes}

#ifdef __cplusplus
extern "C" {{
#endif

extern const char *const bsnn_classes[BSNN_CLASSES];

/* A frame is [BSNN_HEIGHT][BSNN_WIDTH][BSNN_CHANNELS]: {_ORDER[spec.kind]}.
   {_meaning(spec)}. */
typedef {kind} bsnn_input;

/* Computes all BSNN_TIME_STEPS time steps of an input, which is a frame, {shown};
   writes the summed outputs, which need not be zero before, and returns the class. */
int bsnn_predict(const bsnn_input *input, int64_t outputs[BSNN_CLASSES]);
{_REJECTS_HEADER.format(below=artifact.reject_below) if artifact.reject_below is not None else ""}
/* A stream, in stream.c: begin with bsnn_reset, which zeroes the membranes, then one frame and time step per call. Its
   outputs are added to `outputs`: zero them yourself whenever a sum is to begin. It shares its workspace with
   bsnn_predict, {"and its membranes: a prediction ends a stream" if device.by_steps else "but not its membranes"}. */
void bsnn_reset(void);
void bsnn_step(const bsnn_input *frame, int64_t outputs[BSNN_CLASSES]);

/* The membranes of all layers of a stream, BSNN_MEMBRANE_BYTES / 4 of them. */
const int32_t *bsnn_membranes(void);

/* What both are made of; not for other callers, since the workspace has room for their ways to call it only. */
void bsnn_compute(const bsnn_input *input, int32_t time_steps, int32_t *const *membranes, int64_t *outputs);

#ifdef __cplusplus
}}
#endif

#endif
"""


_ORDER = {
    "image": "rows from the top, pixels from the left; of three channels red, green, blue",
    "sound": "mel bands from the lowest, and in each the frames from the first",
    "event": "rows from the top, pixels from the left; the channels are darker and brighter",
}


def _meaning(spec: InputSpec) -> str:
    """What a number of the input means."""
    if takes_bytes(spec):
        counts = f"events per pixel and frame times {spec.divisor:g}"
        events = "255 if there was any event" if spec.decode.get("presence") else counts
        what = events if spec.kind == "event" else "raw"
        return f"Bytes, {what}, from 0 to {min(spec.largest, 255):g}, normalized as they are read: {spec.formula}"
    if spec.is_plain:
        return f"Numbers as the network was trained on, times {2**spec.fraction_bits}, rounded"
    return f"{spec.formula}, times {2**spec.fraction_bits}, rounded; raw is from 0 to {spec.largest:g}"


def source(device: Device, constants: str, tables: str) -> str:
    """model.c."""
    artifact = device.artifact
    names = ",\n    ".join(string(name) for name in artifact.classes)
    of_byte = "of_byte" if takes_bytes(artifact.input) else "0"
    return f"""{WRITTEN}

#include "model.h"
#include "engine.h"

#include <string.h>

{constants}
{tables}
static const bsnn_model model = {{
    {len(device.layout.tasks)}, {len(artifact.values) - 1}, BSNN_FRAME_SIZE, tasks, ops, values
}};

const char *const bsnn_classes[BSNN_CLASSES] = {{
    {names}
}};

/* Of 32-bit numbers, so that all that lies in it is aligned. */
static uint32_t workspace[(BSNN_VALUE_BYTES + BSNN_SCRATCH_BYTES) / 4];

void bsnn_compute(const bsnn_input *input, int32_t time_steps, int32_t *const *membranes, int64_t *outputs)
{{
    bsnn_call call;
    memset(&call, 0, sizeof call);
    call.model = &model;
    call.frames = input;
    call.of_byte = {of_byte};
    call.num_frames = time_steps == 1 ? 1 : BSNN_FRAMES;
    call.batch = 1;
    call.time_steps = time_steps;
    call.chunk = time_steps;
    call.membranes = membranes;
    call.outputs = outputs;
    call.workspace = (uint8_t *)workspace;
    call.values_bytes = BSNN_VALUE_BYTES;
    call.scratch_bytes = BSNN_SCRATCH_BYTES;
    call.threads = 1;
    bsnn_run(&call, 0);
}}

int bsnn_predict(const bsnn_input *input, int64_t outputs[BSNN_CLASSES])
{{
    int c, best = 0;
    memset(outputs, 0, BSNN_CLASSES * sizeof outputs[0]);
{_PREDICT_BY_STEPS if device.by_steps else _PREDICT}
    for (c = 1; c < BSNN_CLASSES; c++)
        if (outputs[c] > outputs[best])
            best = c;
    return best;
}}
{_REJECTS if artifact.reject_below is not None else ""}"""


_REJECTS_HEADER = """
/* Whether outputs, summed over so many time steps, are none of the classes; bsnn_predict names the nearest class all
   the same. */
#define BSNN_REJECT_BELOW INT64_C({below})
int bsnn_rejects(const int64_t outputs[BSNN_CLASSES], int time_steps);
"""

_REJECTS = """
int bsnn_rejects(const int64_t outputs[BSNN_CLASSES], int time_steps)
{
    int64_t sum = 0, largest = outputs[0];
    int c;
    for (c = 0; c < BSNN_CLASSES; c++) {
        sum += outputs[c];
        if (outputs[c] > largest)
            largest = outputs[c];
    }
    return BSNN_CLASSES * largest - sum < BSNN_REJECT_BELOW * time_steps;
}
"""

_PREDICT = """    bsnn_compute(input, BSNN_TIME_STEPS, 0, outputs);"""

_PREDICT_BY_STEPS = """    /* So many time steps take less memory one after another, with the membranes of stream.c. */
    bsnn_reset();
    for (c = 0; c < BSNN_TIME_STEPS; c++)
        bsnn_step(input + (BSNN_FRAMES > 1 ? c * BSNN_FRAME_SIZE : 0), outputs);"""


def stream(device: Device) -> str:
    """stream.c."""
    sizes = [device.artifact.values[i + 1].size for i in device.artifact.lifs]
    pointers = ", ".join(f"membranes + {sum(sizes[:i])}" for i in range(len(sizes))) or "0"
    return f"""/* A stream, one time step per call; leave this file out if you only call bsnn_predict. */

#include "model.h"

#include <string.h>

static int32_t membranes[BSNN_MEMBRANE_BYTES / 4 + 1];
static int32_t *const membrane_of[] = {{{pointers}}};

void bsnn_reset(void)
{{
    memset(membranes, 0, sizeof membranes);
}}

void bsnn_step(const bsnn_input *frame, int64_t outputs[BSNN_CLASSES])
{{
    bsnn_compute(frame, 1, membrane_of, outputs);
}}

const int32_t *bsnn_membranes(void)
{{
    return membranes;
}}
"""


def golden(inputs: np.ndarray, outputs: np.ndarray, checksums: Sequence[int]) -> str:
    """golden.h, from inputs `[N, frames, H, W, C]`, outputs, and checksums of the membranes."""
    texts = ",\n".join("{" + ", ".join(f"INT64_C({int(x)})" for x in row) + "}" for row in outputs)
    numbered = ",\n".join("{" + numbers(one.ravel()) + "}" for one in inputs)
    sums = ", ".join(f"{number}u" for number in checksums)
    return f"""/* Inputs, and what the bsnn engine makes of them: outputs, and a checksum of the last membranes. */

#define GOLDEN {len(inputs)}

static const bsnn_input golden_inputs[GOLDEN][BSNN_INPUT_SIZE] = {{
{numbered}
}};

static const int64_t golden_outputs[GOLDEN][BSNN_CLASSES] = {{
{texts}
}};

#ifdef STREAM
static const uint32_t golden_membranes[GOLDEN] = {{{sums}}};
#endif
"""


MAIN = """/* Checks the golden vectors: this program, and no other file here, prints. With STREAM defined it runs one
   time step after another, and checks the membranes too. */

#include "model.h"
#include "golden.h"
#ifdef SOUND
#include "check_sound.h"
#endif

#include <stdio.h>
#include <string.h>

#ifdef STREAM
static int run(int number, int64_t outputs[BSNN_CLASSES])
{
    const int32_t *const membranes = bsnn_membranes();
    uint32_t sum = 2166136261u;
    long k;
    int t;
    bsnn_reset();
    memset(outputs, 0, BSNN_CLASSES * sizeof outputs[0]);
    for (t = 0; t < BSNN_TIME_STEPS; t++)
        bsnn_step(golden_inputs[number] + (BSNN_FRAMES > 1 ? t * BSNN_FRAME_SIZE : 0), outputs);
    for (k = 0; k < BSNN_MEMBRANE_BYTES / 4; k++)
        sum = ((sum ^ (uint32_t)membranes[k]) * 16777619u) & 0xFFFFFFFFu;
    return sum != golden_membranes[number];
}
#else
static int run(int number, int64_t outputs[BSNN_CLASSES])
{
    (void)bsnn_predict(golden_inputs[number], outputs);
    return 0;
}
#endif

int main(void)
{
    int64_t outputs[BSNN_CLASSES];
    int i, c, wrong = 0, misheard = 0;
#ifdef SOUND
    static bsnn_input input[BSNN_INPUT_SIZE];
    misheard = check_listening(input);
    printf("listening: %s\\n", misheard ? "WRONG" : "as expected");
#endif
    for (i = 0; i < GOLDEN; i++) {
        int bad = run(i, outputs), found = 0;
#ifdef SOUND
        bad |= check_hearing(i, input) != 0;
#endif
        for (c = 0; c < BSNN_CLASSES; c++) {
            bad |= outputs[c] != golden_outputs[i][c];
            found = outputs[c] > outputs[found] ? c : found;
        }
        printf("vector %d: %s, %s\\n", i, bsnn_classes[found], bad ? "WRONG" : "as expected");
        wrong += bad;
    }
#ifdef STREAM
    printf("stream: %d of %d vectors wrong; %ld bytes of RAM\\n", wrong, GOLDEN, (long)BSNN_STREAM_RAM_BYTES);
#else
    printf("%d of %d vectors wrong; %ld bytes of flash, %ld bytes of RAM\\n", wrong, GOLDEN, (long)BSNN_FLASH_BYTES,
           (long)BSNN_RAM_BYTES);
#endif
    return wrong || misheard;
}
"""

MAKEFILE = """# make check: builds the network and compares it with its golden vectors, at once and as a stream.
# For a device: make check CC=arm-linux-gnueabihf-gcc LDFLAGS=-static RUN=qemu-arm

CC ?= cc
CFLAGS ?= -O2
WARNINGS = -std=c99 -Wall -Wextra -Werror -pedantic
SOURCES = main.c model.c stream.c engine.c $(wildcard sound.c listen.c events.c)
CPPFLAGS = $(if $(wildcard sound.c),-DSOUND)

check: network stream
	$(RUN) ./network
	$(RUN) ./stream

network: $(SOURCES) $(wildcard *.h)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(WARNINGS) $(SOURCES) $(LDFLAGS) -o $@

stream: $(SOURCES) $(wildcard *.h)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(WARNINGS) -DSTREAM $(SOURCES) $(LDFLAGS) -o $@

clean:
	rm -f network stream

.PHONY: check clean
"""
