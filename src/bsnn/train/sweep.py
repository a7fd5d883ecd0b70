"""Sweeps: a run for every point of a grid over fields of a recipe (paper, Tables 3 and 4), and a table of results.

A point that is finished is not trained again, one that was interrupted goes on: call it again with the same folder.
"""

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bsnn.atomic import write_file
from bsnn.errors import UserError
from bsnn.train.config import Config, why_unused
from bsnn.train.distributed import joined_world
from bsnn.train.fields import written
from bsnn.train.loop import train
from bsnn.train.trainer import Diverged

Grid = Mapping[str, Sequence[Any]]


def sweep(config: Config, grid: Grid, out: Path, **options: Any) -> dict[str, Any]:
    """Trains every point of a grid, each in a run directory of its own below `out`.

    The results so far are in sweep.json and sweep.md after each point. A point that diverges has its error there, and
    the others go on.

    Args:
        config: The recipe.
        grid: Values of each field to vary.
        out: The folder of the sweep.
        options: As for `bsnn.train.train`.

    Returns:
        The folder and its points: the varied fields, the run, and its accuracies.
    """
    # All at once, so that a wrong value is known before hours of training.
    points = grid_points(config, grid)
    result: dict[str, Any] = {"sweep": str(out), "fields": list(grid), "points": []}
    with joined_world(options.get("device", "auto")) as world:
        for point, point_config in points:
            run = out / point_name(point)
            try:
                done = train(point_config, run, **{**options, "resume": True})
                keys = ("validation_accuracy", "test_accuracy", "train_seconds")
                row = {**point, "run": str(run), **{key: done[key] for key in keys if key in done}}
            except Diverged as error:
                row = {**point, "run": str(run), "test_accuracy": None, "error": str(error)}
            result["points"].append(row)
            if world.is_first:
                write_file(out / "sweep.json", (json.dumps(result, indent=1) + "\n").encode())
                write_file(out / "sweep.md", (table(result) + "\n").encode())
    return result


def grid_points(config: Config, grid: Grid) -> list[tuple[dict[str, Any], Config]]:
    """The values and the config of every point of a grid.

    Raises:
        UserError: If a value is wrong, or has no effect at a point, which would be trained twice under two names.
    """
    fields = {field.name for field in dataclasses.fields(Config)}
    for name in grid:
        if name not in fields:
            raise UserError(
                f"--sweep: received {name!r}; expected a field of the recipe, as `bsnn train --help` lists."
            )
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    points = [(point, dataclasses.replace(config, **point)) for point in combinations]
    for point, point_config in points:
        for name in point:
            if reason := why_unused(point_config, name):
                raise UserError(
                    f"--sweep {name}: at {point_name(point)} {reason}, so it would change nothing there. Leave such "
                    "points out, in a sweep of their own if need be."
                )
    return points


def point_name(point: Mapping[str, Any]) -> str:
    """The folder of a point.

    Example:
        >>> point_name({"gamma": 5e-7, "plan": (32, "pool", 64)})
        'gamma=5e-07,plan=32-pool-64'
    """
    return ",".join(f"{name}={_word(value)}" for name, value in point.items()).replace("/", "_")


def _word(value: Any) -> str:
    return written(tuple(value)).replace(",", "-") if isinstance(value, list | tuple) else str(value)


def table(result: Mapping[str, Any]) -> str:
    """The results of a sweep as a table for people.

    Example:
        >>> point = {"gamma": 5e-7, "test_accuracy": 0.5, "train_seconds": 60.0}
        >>> print(table({"fields": ["gamma"], "points": [point]}))
        | gamma | test accuracy | minutes |
        | ----- | ------------- | ------- |
        | 5e-07 | 0.5000        | 1.0     |
    """
    keys = ("validation_accuracy", "test_accuracy")
    shown = [key for key in keys if any(point.get(key) is not None for point in result["points"])] or [keys[-1]]
    rows = [[*result["fields"], *(key.replace("_", " ") for key in shown), "minutes"]]
    for point in result["points"]:
        measured = ["diverged", *[""] * len(shown)]
        if "error" not in point:
            accuracies = ["" if point[key] is None else f"{point[key]:.4f}" for key in shown]
            measured = [*accuracies, f"{point['train_seconds'] / 60:.1f}"]
        rows.append([*(written(point[name]) for name in result["fields"]), *measured])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows.insert(1, ["-" * width for width in widths])
    cells = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
