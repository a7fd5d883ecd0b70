"""Inference from the model file alone, with NumPy and nothing else: in C if it was built, else in NumPy.

Both give the same bits; docs/model-file.md defines them.
"""

import os
from typing import Literal, NamedTuple

import numpy as np

from bsnn.deploy.codec import read
from bsnn.deploy.engine.inputs import to_integers
from bsnn.deploy.engine.native import Native, libraries
from bsnn.deploy.engine.plain import Plain
from bsnn.deploy.schema import Artifact, BadModel
from bsnn.errors import UserError
from bsnn.zoo.cards import find

__all__ = ["BadModel", "Engine", "State", "load"]

Kernel = Literal["auto", "numpy", "baseline", "avx2", "avx512"]


class State(NamedTuple):
    """What a network carries from one time step to the next: one membrane `[B, H, W, C]` per layer of neurons."""

    membranes: tuple[np.ndarray, ...]


class Engine:
    """A deployed network that runs without torch.

    Inputs are raw numbers, as the data set holds them that the network was trained on: `[C, H, W]` or `[B, C, H, W]`;
    events have time first, `[T, B, C, H, W]`, with the network's T; for more or fewer frames there is `step`. Moving
    pictures may have time first too, with any number of frames, each of which is shown for one time step. A network of
    one channel may be given `[H, W]` or `[B, H, W]`. Numbers beyond the range of the data set are refused. With
    `normalized=True` inputs are floats that are normalized as in training, or the network's own integers (int16). A
    network that was exported with its shape alone takes floats as they are.

    Args:
        artifact: The network.
        kernel: `"auto"` uses the fastest library that was built and that this processor can run; `"numpy"` the
            NumPy path.
        threads: How many; None for one per processor.

    Example:
        >>> engine = load("digits")
        >>> images = bsnn.data.digits("test")
        >>> engine.predict(images.samples[:4]).tolist(), images.labels[:4].tolist()
        ([3, 7, 3, 9], [3, 7, 3, 9])
    """

    def __init__(self, artifact: Artifact, kernel: Kernel = "auto", threads: int | None = None) -> None:
        self.artifact = artifact
        self.classes = artifact.classes
        self.time_steps = artifact.time_steps
        if kernel == "numpy" or (kernel == "auto" and not libraries()):
            self._backend: Native | Plain = Plain(artifact)
        else:
            number = min(256, os.cpu_count() or 1) if threads is None else threads
            self._backend = Native(artifact, number, None if kernel == "auto" else kernel)
        self.run = self._backend.run
        self.kernel: Kernel = "numpy" if isinstance(self._backend, Plain) else self._backend.library

    def predict(self, inputs: np.ndarray, *, normalized: bool = False) -> np.ndarray:
        """The class of each input, `[B]`, a number into `classes`.

        Args:
            inputs: See the class.
            normalized: See the class.
        """
        return self.outputs(inputs, normalized=normalized).argmax(axis=1)

    def rejects(self, outputs: np.ndarray, time_steps: int | None = None) -> np.ndarray:
        """Which inputs are none of the classes, `[B]`, by the threshold of the model file; never one without it.

        Args:
            outputs: What `outputs` has returned, `[B, classes]`, or sums of what `step` has returned.
            time_steps: How many they are sums over, if not T.
        """
        if np.ndim(outputs) != 2 or np.shape(outputs)[1] != len(self.classes):
            raise UserError(
                f"rejects: received shape {np.shape(outputs)}; expected [B, {len(self.classes)}], what outputs returns."
            )
        if not np.isfinite(outputs).all():
            raise UserError("rejects: received NaN or infinite outputs; expected what outputs returns.")
        return self.artifact.rejects(outputs, time_steps or self.time_steps)

    def outputs(
        self, inputs: np.ndarray, record: dict[str, np.ndarray] | None = None, *, normalized: bool = False
    ) -> np.ndarray:
        """Outputs summed over time, `[B, classes]`, int64; times `output_scale` they are logits.

        Args:
            inputs: See the class.
            record: Filled with the spikes of every layer of neurons by name, uint8, `[T, B, C, H, W]`.
            normalized: See the class.
        """
        frames = self.integers(inputs, normalized=normalized)
        self._check_time(np.shape(inputs), len(frames))
        time_steps = self.time_steps if len(frames) == 1 else len(frames)
        if record is None:
            return self.run(frames, time_steps, None)
        membranes = self.artifact.membranes(frames.shape[1])
        spikes = [np.empty((time_steps, *m.shape), np.uint8) for m in membranes]
        total = self.run(frames, time_steps, membranes, spikes)
        names = [self.artifact.layers[i].name for i in self.artifact.lifs]
        record.update({name: np.moveaxis(s, -1, 2) for name, s in zip(names, spikes, strict=True)})
        return total

    def _check_time(self, shape: tuple[int, ...], frames: int) -> None:
        """Refuses recordings of events with another number of frames than those of training."""
        spec, steps = self.artifact.input, self.time_steps
        if spec.kind == "event" and frames != steps:
            sample = ", ".join(map(str, spec.shape))
            raise UserError(
                f"input: received shape {shape}; expected [{steps}, B, {sample}], time first. Read recordings with "
                f"time_steps={steps}; a single one is x[:, None]. Give any other number of frames one by one to step."
            )

    def step(self, x: np.ndarray, state: State | None = None, *, normalized: bool = False) -> tuple[np.ndarray, State]:
        """One time step of a stream: outputs `[B, classes]`, and the new state.

        Args:
            x: The input of this step, `[B, C, H, W]`.
            state: What the step before returned; None at the beginning. It is left as it was.
            normalized: See the class.
        """
        frames = self.integers(x, normalized=normalized)
        if len(frames) != 1:
            raise UserError(f"step: received shape {x.shape}; expected one time step, [B, C, H, W].")
        membranes = begin = self.artifact.membranes(frames.shape[1])
        if not isinstance(state, State | None):
            raise UserError(f"step: received {state!r} for a state; expected what the step before returned, or None.")
        if state is not None:
            membranes = [m.copy() for m in state.membranes]
        if [(m.shape, m.dtype) for m in membranes] != [(m.shape, m.dtype) for m in begin]:
            raise UserError(
                f"step: received a state for other inputs than {frames.shape[1]} of shape {self.artifact.input.shape}; "
                "begin anew with state=None."
            )
        return self.run(frames, 1, membranes), State(tuple(membranes))

    def integers(self, inputs: np.ndarray, *, normalized: bool = False) -> np.ndarray:
        """The network's own integers `[S, B, H, W, C]` of inputs; S is 1 for still ones.

        Args:
            inputs: See the class.
            normalized: See the class.
        """
        return to_integers(self.artifact.input, inputs, normalized=normalized)


def load(path: str | os.PathLike[str], kernel: Kernel = "auto", threads: int | None = None) -> Engine:
    """Loads a model file, or a model that ships with the package; torch is not needed.

    Args:
        path: A model file (`.bsnn`), a run directory that holds one, or the name of a shipped model, such as `digits`
            (`bsnn.zoo.names()`). A `Path` is always a path.
        kernel: See `Engine`.
        threads: See `Engine`.

    Raises:
        BadModel: If the file is damaged or no model file.
        UserError: If the name of a shipped model is also that of a file or a run here.
    """
    place = find(path)
    return Engine(read(place / "model.bsnn" if place.is_dir() else place), kernel, threads)
