"""A teacher: a trained network whose answers take the place of most of each label, so that a smaller one learns more.

    label = (1 − share) · the class + share · softmax(the teacher's mean logits)

The teacher sees the samples of each batch as they are augmented, or each sample once, before the first update. It is a
run, or a recipe that is trained before the run, on the same samples with the same seed.
"""

import functools
import hashlib
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from bsnn.data.spec import DataSpec
from bsnn.errors import UserError
from bsnn.kernels.precision import precision
from bsnn.nn.neuron import Stateful
from bsnn.online.evaluate import predict
from bsnn.train.config import Config
from bsnn.train.recipes import SMALL

_OF_THE_DATA = ("dataset", "image_size", "train_samples", "validation_samples", "group", "seed")


def recipe_of_teacher(config: Config) -> Config | None:
    """What the teacher of a config is trained with, if the config names a recipe."""
    if config.teacher not in SMALL:
        return None
    found = SMALL[config.teacher].config
    if found.teacher:
        raise UserError(f"teacher: the recipe {config.teacher} has a teacher itself; expected one without.")
    return replace(found, **{name: getattr(config, name) for name in _OF_THE_DATA})


def with_absolute_teacher(config: Config) -> Config:
    """The config with a path of its teacher that holds in any working directory."""
    named = config.teacher and config.teacher not in SMALL
    return replace(config, teacher=os.path.abspath(config.teacher)) if named else config


def place_of_teacher(config: Config, run: Path) -> Path | None:
    """The run of a config's teacher, if it has one: what it names, or where in its own folder a recipe is trained."""
    if not config.teacher:
        return None
    return run / "teacher" if config.teacher in SMALL else Path(config.teacher)


class Teacher:
    """A trained network that is asked about each batch.

    Args:
        net: The network.
        spec: What it takes.
        time_steps: How often it is shown a still sample.
        share: Of its answers in the labels.
        computes_in: The precision that it was trained in, and answers in.
    """

    def __init__(self, net: Stateful, spec: DataSpec, time_steps: int, share: float, computes_in: str = "fp32") -> None:
        self.net, self.spec, self.share, self._computes_in = net.eval(), spec, share, computes_in
        self._frames = None if spec.kind == "event" else time_steps

    def check(self, spec: DataSpec) -> None:
        """Refuses samples unlike those that it was trained on."""
        for name in ("kind", "classes", "shape", "scale", "mean", "std", "decode"):
            taught, received = getattr(self.spec, name), getattr(spec, name)
            if taught != received:
                raise UserError(
                    f"teacher: received samples to train on with {name} {received}; expected {taught}, which it was "
                    "trained on. Train a teacher on this data."
                )

    def answers(self, inputs: Tensor) -> Tensor:
        """Its distributions over the classes, `[B, classes]`."""
        with torch.no_grad(), precision(self._computes_in):
            summed = predict(self.net, inputs, self._frames)
        return (summed / (self._frames or len(inputs))).softmax(1)

    def answers_once(self, batches: Iterable[Tensor], *, mirrored: bool) -> Tensor:
        """Its distributions for all samples, `[N, classes]`.

        Args:
            batches: What enters, as it is in evaluation.
            mirrored: Whether to take the mean of those for each image and its mirror image.
        """
        found = []
        for inputs in batches:
            answers = self.answers(inputs)
            found.append((answers + self.answers(inputs.flip(-1))) / 2 if mirrored else answers)
        return torch.cat(found)

    def targets(self, answers: Tensor, labels: Tensor) -> Tensor:
        """Labels `[B]`, or distributions `[B, classes]`, and its answers, as distributions."""
        classes = F.one_hot(labels, answers.shape[1]) if labels.dim() == 1 else labels
        return torch.lerp(classes.to(answers), answers, self.share)

    @functools.cached_property
    def digest(self) -> str:
        """Tells its weights and statistics from others."""
        found = hashlib.sha256()
        for name, tensor in self.net.state_dict().items():
            found.update(name.encode() + tensor.cpu().numpy().tobytes())
        return found.hexdigest()

    @property
    def num_bytes(self) -> int:
        """Memory of its weights and statistics."""
        return sum(tensor.nbytes for tensor in self.net.state_dict().values())
