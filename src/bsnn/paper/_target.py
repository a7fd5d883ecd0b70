"""What every target of `bsnn reproduce` takes and returns: `measure(settings) -> Findings`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Scale = Literal["smoke", "small", "paper"]


@dataclass(frozen=True)
class Settings:
    """How a target is measured."""

    scale: Scale
    """`smoke` only tries the code, `small` finishes on two CPU cores within an hour, `paper` is the paper's own."""
    data: str | None
    """Folder of the data, for targets that do not use the bundled digits."""
    runs: Path
    """Where run directories go."""
    time_steps: tuple[int, ...] = ()
    """Of Figure 5; those of Table 2 if empty."""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of every trained point."""
        return (0,) if self.scale == "smoke" else (0, 1, 2)


@dataclass
class Findings:
    """What a target found: tables and figures for people, and the numbers behind them."""

    title: str
    ran: str
    """What was measured, and what the paper measured."""
    tables: list[dict[str, Any]] = field(default_factory=list)
    figures: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What can be seen, and why it differs from the paper."""
    data: Any = None

    def add_table(self, caption: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Adds a table; cells are text or numbers, or None if there is nothing to show."""
        self.tables.append({"caption": caption, "columns": list(columns), "rows": [list(row) for row in rows]})

    def add_lines(
        self, title: str, lines: Mapping[str, Sequence[Sequence[float]]], x_label: str, **options: Any
    ) -> None:
        """Adds a figure of lines; the options are those of `bsnn.report.figures.line_chart`."""
        points = {name: [list(point) for point in line] for name, line in lines.items()}
        self.figures.append({"kind": "lines", "title": title, "lines": points, "x_label": x_label, **options})

    def add_matrix(
        self, title: str, rows: Sequence[Sequence[float]], names: Sequence[str], axes: tuple[str, str]
    ) -> None:
        """Adds a figure of a square matrix, as `bsnn.report.figures.matrix_chart` draws it."""
        self.figures.append({"kind": "matrix", "title": title, "rows": rows, "names": list(names), "axes": list(axes)})
