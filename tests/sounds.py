"""Random networks that take sounds, and sounds for them; and an exported folder as a library."""

import ctypes
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_networks import Builder

from bsnn.deploy.codec import read, write
from bsnn.deploy.schema import Artifact, InputSpec

CLASSES = ("left", "right", "stop")


def spotter(path: Path, frames: int = 32, bands: int = 32, **decode: int) -> Artifact:
    """A small random network for spectrograms of this size, as its model file gives it back."""
    net = Builder(0, (1, bands, frames))
    net.input = InputSpec("sound", (1, bands, frames), 14, 1.0, (0.5,), (0.5,), (1,), (0,), 0, decode)
    spikes = net.lif(net.synapse(0, 8, weights="int16", shift=17, multiplier=2**9))
    spikes = net.lif(net.synapse(net.average_pool(spikes, 4, 4), 12, shift=3))
    made = net.head(spikes)
    write(path, replace(made, name="words", classes=CLASSES, output_scale=2e-6))
    return read(path)


def random_sounds(number: int, length: int, seed: int = 0) -> np.ndarray:
    """Noise and tones that come and go, from faint to full scale."""
    random, time = np.random.default_rng(seed), np.arange(length) / 16_000
    loudness = 2 ** random.uniform(0, 15, (number, 1))
    tones = np.sin(2 * np.pi * random.uniform(60, 7000, (number, 1)) * time)
    slow = np.sin(np.pi * random.uniform(0.5, 4, (number, 1)) * time) ** 8
    noise = 0.1 * random.standard_normal((number, length))
    return np.clip(loudness * (tones * slow + noise), -32768, 32767).astype(np.int16)


class InC:
    """An exported folder as a library, whose functions are called by name, with arrays for pointers.

    Args:
        folder: Of the export.
        defines: Macros, such as `BSNN_LISTEN_STEP`.
    """

    def __init__(self, folder: Path, **defines: int) -> None:
        if shutil.which("gcc") is None:
            pytest.skip("gcc is not installed")
        sources = sorted(file.name for file in folder.glob("*.c") if file.name != "main.c")
        flags = "-O1 -std=c99 -Wall -Wextra -Werror -pedantic -fsanitize=undefined -fno-sanitize-recover -shared -fPIC"
        macros = [f"-D{name}={value}" for name, value in defines.items()]
        command = ["gcc", *flags.split(), *macros, *sources, "-static-libubsan", "-o", "all.so"]
        subprocess.run(command, cwd=folder, check=True)
        self._library = ctypes.CDLL(str(folder / "all.so"))

    def __call__(self, function: str, *arguments: np.ndarray | int) -> int:
        values = (ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else a for a in arguments)
        return getattr(self._library, function)(*values)

    def push(self, samples: np.ndarray) -> int:
        """Pushes samples, and says how many frames they completed."""
        return self("bsnn_sound_push", np.ascontiguousarray(samples), len(samples))
