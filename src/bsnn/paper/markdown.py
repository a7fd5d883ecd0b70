"""Tables of results as Markdown."""

from collections.abc import Sequence
from typing import Any


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown.

    Example:
        >>> print(markdown_table(["γ", "ours"], [[0.5, None]]))
        | γ | ours |
        | --- | --- |
        | 0.5 | – |
    """
    cells = [["–" if cell is None else str(cell).replace("|", "\\|") for cell in row] for row in (columns, *rows)]
    cells.insert(1, ["---"] * len(columns))
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
