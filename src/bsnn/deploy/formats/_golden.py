"""Golden vectors: inputs, and what the engine makes of them, for programs that check themselves."""

from typing import NamedTuple

import numpy as np

from bsnn.deploy.engine import Engine
from bsnn.deploy.footprint import takes_bytes
from bsnn.deploy.schema import Artifact
from bsnn.errors import UserError

_NUMBER = 4


class Golden(NamedTuple):
    """Some inputs, and what the engine makes of them."""

    inputs: np.ndarray
    """`[N, frames, H, W, C]`: bytes if the network takes them, else its 16-bit integers."""
    outputs: np.ndarray
    """Summed over time, `[N, classes]`."""
    checksums: list[int]
    """Of all membranes after the last time step."""


def golden_vectors(artifact: Artifact, samples: np.ndarray | None) -> Golden:
    """Runs some samples.

    Args:
        artifact: The network.
        samples: Raw inputs, as `Engine` takes them, `[B, C, H, W]`, or `[T, B, C, H, W]` for events; if the network
            takes bytes, so must they be, else they may be its own integers, int16. By default random ones.
    """
    engine, expected = Engine(artifact), artifact.time_steps if artifact.input.kind == "event" else 1
    samples = _random(artifact, expected) if samples is None else samples
    own = samples.dtype == np.int16 and not takes_bytes(artifact.input)
    frames = inputs = engine.integers(samples, normalized=own)
    if len(frames) != expected:
        raise UserError(f"golden vectors: received {len(frames)} frames; expected {expected} for each input.")
    if takes_bytes(artifact.input):
        if samples.dtype != np.uint8:
            raise UserError(f"golden vectors: received {samples.dtype}; expected bytes, which this network takes.")
        inputs = np.moveaxis(samples.reshape(-1, *samples.shape[-4:]), 2, -1)
    outputs, checksums = [], []
    for number in range(frames.shape[1]):
        membranes = artifact.membranes(1)
        outputs.append(engine.run(frames[:, number : number + 1], engine.time_steps, membranes)[0])
        checksums.append(_checksum(membranes))
    return Golden(np.swapaxes(inputs, 0, 1), np.array(outputs), checksums)


def _random(artifact: Artifact, frames: int) -> np.ndarray:
    shape, random = (frames, _NUMBER, *artifact.input.shape), np.random.default_rng(0)
    if takes_bytes(artifact.input):
        return random.integers(0, min(255, int(artifact.input.largest)) + 1, shape, np.uint8)
    return random.integers(-8192, 8192, shape, np.int16)


def _checksum(membranes: list[np.ndarray]) -> int:
    """FNV-1a over 32-bit words, as main.c and the page compute it."""
    total = 2166136261
    for word in np.concatenate([m.ravel() for m in membranes]).view(np.uint32).tolist() if membranes else []:
        total = ((total ^ word) * 16777619) & 0xFFFFFFFF
    return total
