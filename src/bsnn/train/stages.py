"""The stages of a run: what changes between its epochs, from one field of its config (paper, Section 5.1, ImageNet).

A run ends with the fields of its config. Before that it may have stages that change some of them, such as most epochs
at T = 1 or on smaller images. Weights, momentum and all other state are carried from one stage to the next.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from bsnn.data.spec import DataSpec
from bsnn.errors import UserError

if TYPE_CHECKING:
    from bsnn.train.config import Config

CHANGEABLE = (
    "epochs", "time_steps", "image_size", "batch_size", "learning_rate", "learning_rate_schedule", "gamma",
    "gamma_schedule", "one_minus_beta1", "beta_schedule", "beta2_schedule", "weight_decay", "label_smoothing", "cutout",
    "autoaugment", "mixup",
)  # fmt: skip
"""The fields that a stage can change; all others hold for the whole run."""


class Changes(dict[str, Any]):
    """The fields that a stage changes, and its number of epochs; not to be changed itself."""

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))


class Stage(NamedTuple):
    """A part of a run in which no field changes."""

    number: int
    """From 1."""
    config: "Config"
    """The run's config with what this stage changes; `epochs` are those of the stage."""
    start: int
    """Epochs before it."""
    shrunk_to: int = 0
    """Rows and columns that images are shrunk to; 0 if they keep the size of the run's."""

    @property
    def end(self) -> int:
        """Epochs of the run when the stage is over."""
        return self.start + self.config.epochs

    def spec_of(self, data: DataSpec) -> DataSpec:
        """What the network takes in this stage.

        Args:
            data: What it takes in the last one.
        """
        if not self.shrunk_to:
            return data
        return dataclasses.replace(data, shape=(*data.shape[:-2], self.shrunk_to, self.shrunk_to))


def stages_of(config: "Config") -> list[Stage]:
    """The stages of a run, the last one with the config's own fields.

    Example:
        >>> config = bsnn.train.Config(epochs=20, stages=({"epochs": 18, "time_steps": 1},))
        >>> [(stage.number, stage.start, stage.end, stage.config.time_steps) for stage in stages_of(config)]
        [(1, 0, 18, 1), (2, 18, 20, 4)]
    """
    found: list[Stage] = []
    for changes in (*config.stages, {}):
        start = found[-1].end if found else 0
        fields = {"epochs": config.epochs - start, **changes}
        try:
            stage = dataclasses.replace(config, stages=(), **fields)
        except UserError as error:
            raise UserError(f"stages: stage {len(found) + 1}, {stages_text([changes])!r}: {error}") from error
        shrunk_to = stage.image_size if stage.image_size != config.image_size else 0
        found.append(Stage(len(found) + 1, stage, start, shrunk_to))
    return found


def stage_at(config: "Config", epoch: int) -> Stage:
    """The stage of an epoch, counted from 0; after the last epoch, the last stage."""
    stages = stages_of(config)
    return next((stage for stage in stages if epoch < stage.end), stages[-1])


def check_stages(config: "Config") -> None:
    """Refuses stages that change what they cannot change, or leave no epoch for the end of the run."""
    for number, changes in enumerate(config.stages, start=1):
        unknown = [name for name in changes if name not in CHANGEABLE]
        if unknown:
            raise UserError(
                f"stages: stage {number} changes {', '.join(unknown)}; a stage can change {', '.join(CHANGEABLE)}. "
                "Everything else holds for the whole run."
            )
        if not isinstance(changes.get("epochs"), int):
            raise UserError(
                f"stages: received {stages_text([changes])!r} as stage {number}; expected its number of epochs, as in "
                "epochs=18,time_steps=1."
            )
    taken = sum(changes["epochs"] for changes in config.stages)
    if taken >= config.epochs:
        raise UserError(
            f"stages: they take {taken} of {config.epochs} epochs; expected fewer, because the run ends with at least "
            "one epoch of its own fields. Raise epochs, which counts all of them, or shorten the stages."
        )
    first, *others = stages_of(config)  # the config of each checks its values
    if not first.config.weight_decay and any(stage.config.weight_decay for stage in others):
        raise UserError(
            "stages: weight_decay is 0 in stage 1 and not in a later one; expected a weight_decay above 0 in stage 1, "
            "where it is settled which parameters decay, or none in the whole run."
        )
    for stage in (first, *others)[:-1]:
        if 0 < config.image_size < stage.config.image_size:
            raise UserError(
                f"stages: stage {stage.number} has image_size={stage.config.image_size}; expected at most that of the "
                f"whole run, {config.image_size}, of which its images are made."
            )


def stages_text(stages: Sequence[Mapping[str, Any]]) -> str:
    """Stages as one would write them on the command line.

    Example:
        >>> stages_text([{"epochs": 18, "time_steps": 1}, {"epochs": 1, "autoaugment": True}])
        'epochs=18,time_steps=1; epochs=1,autoaugment=yes'
    """
    words = {True: "yes", False: "no"}

    def text(value: Any) -> str:
        return words[value] if isinstance(value, bool) else str(value)

    return "; ".join(",".join(f"{name}={text(value)}" for name, value in changes.items()) for changes in stages)


def described(config: "Config") -> list[str]:
    """What a person should know about the stages of a run, a line for each; none if there is only one.

    Example:
        >>> described(bsnn.train.Config(epochs=20, stages=({"epochs": 18, "time_steps": 1},)))
        ['stage 1 of 2: epochs 1 to 18, time_steps=1', 'stage 2 of 2: epochs 19 to 20, time_steps=4']
    """
    if not config.stages:
        return []
    stages, changed = stages_of(config), {name for changes in config.stages for name in changes} - {"epochs"}
    names = [name for name in CHANGEABLE if name in changed]
    return [
        f"stage {stage.number} of {len(stages)}: epochs {stage.start + 1} to {stage.end}"
        + "".join(f", {_shown(name, getattr(stage.config, name))}" for name in names)
        for stage in stages
    ]


def _shown(name: str, value: Any) -> str:
    return "images at full size" if name == "image_size" and not value else stages_text([{name: value}])
