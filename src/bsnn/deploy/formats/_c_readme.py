"""What tells a person about the files of a C99 export: its README, and the properties of its Arduino library."""

import re

from bsnn import __version__
from bsnn.deploy.camera import why_no_events
from bsnn.deploy.footprint import Device
from bsnn.deploy.schema import Artifact


def properties(artifact: Artifact) -> str:
    """library.properties of the Arduino library."""
    name = re.sub(r"[^A-Za-z0-9 ._-]", "_", artifact.name)[:50]
    channels, height, width = artifact.input.shape
    return f"""name=bsnn {name}
version=1.0.0
author=bsnn {__version__}
maintainer=bsnn
sentence=A binary spiking network: {len(artifact.classes)} classes from {channels} x {height} x {width}.
paragraph=For processors of 32 bits. model.h says what an input is, and how much flash and RAM the network takes.
category=Data Processing
url=https://pypi.org/project/bsnn/
architectures=*
includes=bsnn_model.h
"""


_HEARING = """
To make an input from the samples of a microphone or a recording, add `sound.c`, and call `bsnn_sound_push` and
`bsnn_sound_input` of `sound.h`, which shows how. To hear words in a stream of samples, add `listen.c` too, and see
`listen.h`.
"""


def readme(device: Device) -> str:
    """README.md."""
    artifact = device.artifact
    channels, height, width = artifact.input.shape
    classes, steps = len(artifact.classes), artifact.time_steps
    order = "one time step after another, which takes less memory for so many" if device.by_steps else "row by row"
    front = "`sound.c` and `listen.c`" if device.sound else "`events.c`"
    row = f"| of which {front} | {device.front_ram_bytes:,} |\n" if device.front_ram_bytes else ""
    hearing = _HEARING if device.sound else ""
    no_events = why_no_events(artifact.input)
    lacking = f"\n{no_events[0].upper()}{no_events[1:]}\n" if no_events else ""
    return f"""# {artifact.name} in C99

A binary spiking network: {classes} classes from {channels} × {height} × {width}, T = {steps}. `make check` builds
it and compares it with its golden vectors, which the bsnn engine made: the same integers on every machine.

| | bytes |
| --- | --- |
| flash | {device.flash_bytes:,} |
| of which constants (weights, tables, names) | {device.constant_bytes:,} |
| of which code (Cortex-M4, arm-none-eabi-gcc 12.2, `-Os`) | {device.code_bytes:,} |
| RAM of a prediction, computed {order} | {device.ram_bytes:,} |
| of which input | {device.input_bytes:,} |
| of which values between layers | {device.layout.values_bytes:,} |
| of which scratch | {device.layout.scratch_bytes:,} |
{row}| RAM of a stream, which keeps all membranes | {device.stream_ram_bytes:,} |

To use it, add `engine.c`, `model.c` and the headers beside them to your project, and call `bsnn_predict` of `model.h`,
which also says what an input is. For a stream, add `stream.c`, and call `bsnn_reset` and `bsnn_step`. They need a C99
compiler, `memcpy` and `memset`; they allocate nothing, and take about 1 KB of stack on a Cortex-M4.
{hearing}{lacking}
`main.c`, `golden.h`, the Makefile and `cortex-m` are for checks only. `make -C cortex-m run` builds a program for a
bare Cortex-M4, says how large it is, runs the golden vectors under qemu, and counts instructions; it needs
`arm-none-eabi-gcc` and `qemu-system-arm`.

`arduino` is the same network as an Arduino library: copy it to the folder `libraries` of your sketchbook under any
name, open its example `golden`, and write `#include <bsnn_model.h>` in sketches of your own.
"""
