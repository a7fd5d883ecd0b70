"""What every target of `bsnn reproduce` takes and gives."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bsnn.train.config import Config
from bsnn.train.sweep import sweep

Scale = Literal["smoke", "small", "paper"]


@dataclass(frozen=True)
class Settings:
    """How to run a target."""

    scale: Scale
    """smoke tries the code, small finishes on two CPU cores within an hour, paper is the paper's own."""
    data: str | None
    """Folder of the data, where the target is not on the bundled digits."""
    runs: Path
    """Where run directories go."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of every trained point."""
        return (0,) if self.scale == "smoke" else (0, 1, 2)


@dataclass
class Outcome:
    """What a target found: tables and figures for people, and the numbers behind them."""

    title: str
    ran: str
    """What was run, and what the paper ran."""
    tables: list[dict[str, Any]] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is seen, and why it differs from the paper."""
    data: Any = None

    def add_table(self, caption: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Adds a table; cells are text or numbers, None for what there is not."""
        self.tables.append({"caption": caption, "columns": list(columns), "rows": [list(row) for row in rows]})

    def add_lines(self, title: str, lines: Mapping[str, Sequence[Sequence[float]]], x_label: str, **more: Any) -> None:
        """Adds a figure of lines, as `bsnn.report.figures.line_chart` draws it; more are its further arguments."""
        chosen = {name: [list(point) for point in points] for name, points in lines.items()}
        self.figures.append({"kind": "lines", "title": title, "lines": chosen, "x_label": x_label, **more})

    def add_matrix(
        self, title: str, rows: Sequence[Sequence[float]], names: Sequence[str], axes: tuple[str, str]
    ) -> None:
        """Adds a figure of a square matrix, as `bsnn.report.figures.matrix_chart` draws it."""
        self.figures.append({"kind": "matrix", "title": title, "rows": rows, "names": list(names), "axes": list(axes)})


def trained(
    settings: Settings, name: str, config: Config, grid: Mapping[str, Sequence[Any]], data: str | None = None
) -> list[dict[str, Any]]:
    """Trains a config at every point of a grid and every seed, all points of the first seed first.

    Returns:
        The points in the order of the grid, each with its fields and, over the seeds, its accuracies, minutes, runs
        (below `settings.runs`) and the commits that trained them.
    """
    whole = {"seed": settings.seeds, **grid}
    done = sweep(config, whole, settings.runs / f"{settings.scale}-{name}", data=data)["points"]
    points: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in done:
        fields = {name: row[name] for name in grid}
        point = points.setdefault(
            tuple(fields.values()), {**fields, "accuracies": [], "minutes": [], "runs": [], "git_commits": []}
        )
        point["accuracies"].append(row["test_accuracy"])
        point["minutes"].append(row["train_seconds"] / 60 if "train_seconds" in row else None)
        point["runs"].append(str(Path(row["run"]).relative_to(settings.runs)))
        point["git_commits"].append(json.loads((Path(row["run"]) / "config.json").read_text())["git_commit"])
    return list(points.values())


def mean_and_spread(accuracies: Sequence[float | None]) -> str:
    """Accuracies in percent: mean and standard deviation.

    Example:
        >>> mean_and_spread([0.5, 0.52, 0.54])
        '52.00 ± 2.00'
        >>> mean_and_spread([0.5, None])
        '50.00 (1 of 2 diverged)'
    """
    numbers = [100 * accuracy for accuracy in accuracies if accuracy is not None]
    if not numbers:
        return "diverged"
    lost = len(accuracies) - len(numbers)
    spread = f" ± {statistics.stdev(numbers):.2f}" if len(numbers) > 1 else ""
    return f"{statistics.mean(numbers):.2f}{spread}" + (f" ({lost} of {len(accuracies)} diverged)" if lost else "")


def mean(accuracies: Sequence[float | None]) -> float | None:
    """The mean of the runs that did not diverge."""
    numbers = [accuracy for accuracy in accuracies if accuracy is not None]
    return statistics.mean(numbers) if numbers else None
