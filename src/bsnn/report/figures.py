"""Figures as SVG text: lines over a number, and matrices of colored cells.

They hold no script and no link, take their colors from CSS variables that a page sets for light and dark, and
scale with the width that they are given. `standalone` makes a file of its own from one.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape

from bsnn.report._axis import Axis

Points = Sequence[tuple[float, float]]
Bars = Sequence[tuple[float, float, float]]
Show = Callable[[float], str]
"""How to write a value."""

# Okabe and Ito's colors, which color-blind readers can tell apart; the darkest and the lightest give way to the
# background. After eight lines they come again, dashed, as are lines that would hide another.
STYLE = """
:root { --ink: #1b1f24; --muted: #5b6470; --rule: #d8dde3; --paper: #ffffff; --cell: 0, 114, 178;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #e69f00; --c5: #56b4e9; --c6: #7a5195;
  --c7: #6b7280; }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --muted: #a0a8b3; --rule: #3a414b;
  --paper: #16191d; --cell: 86, 180, 233; --c0: #56b4e9; --c1: #ff8f3f; --c2: #2ac79b; --c3: #e59ac3; --c4: #f2b632;
  --c5: #9fd3f5; --c6: #b495d3; --c7: #a0a8b3; } }
@media print { :root { --ink: #000; --muted: #444; --rule: #ccc; --paper: #fff; --cell: 0, 114, 178; } }
svg.figure { width: 100%; height: auto; display: block; font: 12px system-ui, sans-serif; }
svg.figure text { fill: var(--ink); } svg.figure text.muted { fill: var(--muted); }
@media print, (max-width: 600px) { svg.figure { font-size: 15px; } }
svg.figure .rule { stroke: var(--rule); } svg.figure .line { fill: none; stroke-width: 2; }
"""

_NUM_COLORS = 8
_WIDTH, _PLOT_HEIGHT, _LEFT, _RIGHT, _TOP = 560, 230, 62, 14, 34
_BOTTOM = _TOP + _PLOT_HEIGHT
# Points that are closer than this, in pixels, hide each other.
_HIDING = 1.5
# The mean width of a character in a legend, in the larger font of print and small screens.
_CHARACTER = 7.4


def standalone(svg: str) -> str:
    """A figure as a file of its own, light or dark as its reader prefers."""
    opening, rest = svg.split(">", 1)
    background = '<rect width="100%" height="100%" fill="var(--paper)"/>'
    return f'{opening} xmlns="http://www.w3.org/2000/svg"><style>{STYLE}</style>{background}{rest}\n'


def line_chart(
    title: str,
    lines: Mapping[str, Points],
    *,
    x_label: str,
    show: Show = "{:g}".format,
    log_x: bool = False,
    log_y: bool = False,
    from_zero: bool = False,
    bars: Mapping[str, Bars] | None = None,
    thin: Collection[str] = (),
) -> str:
    """Lines over a number, with a legend below if there are several.

    A line without points keeps its color, so that every line has the same one in all charts of a page.

    Args:
        title: What the y axis is.
        lines: Points by the name of their line. On a logarithmic axis only those above 0 are drawn.
        x_label: What the x axis is.
        show: How to write a value of y.
        log_x: Whether the x axis is logarithmic.
        log_y: Whether the y axis is logarithmic.
        from_zero: Whether the y axis begins at 0, as it must if lengths are compared.
        bars: The spread by the name of its line: where on x it reaches from which y to which.
        thin: Names of lines that others are compared with: thin, gray and without dots.

    Example:
        >>> svg = line_chart("accuracy", {"a": [(1, 0.5), (2, 0.75)]}, x_label="epoch")
        >>> svg.startswith("<svg") and "polyline" in svg
        True
    """
    drawn = {
        name: [(x, y) for x, y in points if math.isfinite(y) and (y > 0 or not log_y) and (x > 0 or not log_x)]
        for name, points in lines.items()
    }
    bars = bars or {}
    xs, ys = zip(*([point for points in drawn.values() for point in points] or [(1.0, 1.0)]), strict=True)
    reach = [end for spread in bars.values() for _, *ends in spread for end in ends] + [0.0] * from_zero
    x_axis = Axis(xs, log_x, _LEFT, _WIDTH - _RIGHT, tight=True)
    y_axis = Axis([*ys, *reach], log_y, _BOTTOM, _TOP)
    places = {
        name: [(round(x_axis.place(x), 1), round(y_axis.place(y), 1)) for x, y in points]
        for name, points in drawn.items()
    }
    pens = _pens(places, thin)
    parts = [_text(_LEFT, 18, title, weight="600"), *_grid(x_axis, y_axis, x_label, show)]
    for name, pen in pens.items():
        parts += [
            f'<path {pen} d="M{x_axis.place(x):.1f},{y_axis.place(low):.1f}V{y_axis.place(high):.1f}"/>'
            for x, low, high in bars.get(name, ())
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places[name])
        parts.append(f'<polyline class="line" {pen} points="{path}"/>')
        if name not in thin:
            color = list(lines).index(name) % _NUM_COLORS
            parts.append(_dots(color, name, places[name], drawn[name], show))
    height = _BOTTOM + 42
    if len(lines) > 1:
        legend, num_rows = _legend(pens, height + 12)
        parts += legend
        height += 18 * num_rows + 6
    return _svg(title, _WIDTH, height, parts)


def _pens(places: Mapping[str, Points], thin: Collection[str]) -> dict[str, str]:
    """How each line that has points is drawn, as attributes of its element."""
    pens: dict[str, str] = {}
    for number, (name, line) in enumerate(places.items()):
        if not line:
            continue
        if name in thin:
            pens[name] = f'stroke="var(--muted)" stroke-dasharray="{1 + 4 * (number % 2)} 3" style="stroke-width: 1"'
            continue
        dashed = number >= _NUM_COLORS or any(_hides(line, places[below]) for below in pens)
        dash = ' stroke-dasharray="6 6"' if dashed else ""
        pens[name] = f'stroke="var(--c{number % _NUM_COLORS})"{dash}'
    return pens


def _hides(line: Points, other: Points) -> bool:
    """Whether a line would cover more than half of another one."""
    covered = [math.dist(a, b) <= _HIDING for a, b in zip(line, other, strict=False)]
    return len(other) > 1 and 2 * sum(covered) > len(other)


def _grid(x_axis: Axis, y_axis: Axis, x_label: str, show: Show) -> list[str]:
    parts = []
    for tick in y_axis.ticks:
        y = y_axis.place(tick)
        parts.append(f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 6, y + 4, _short(show(tick)), anchor="end", muted=True))
    for tick in x_axis.ticks:
        parts.append(_text(x_axis.place(tick), _BOTTOM + 16, _short(f"{tick:g}"), anchor="middle", muted=True))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _BOTTOM + 34, x_label, anchor="middle", muted=True))
    return parts


def _short(number: str) -> str:
    """A number without what its exponent does not need: 2.5e+31 does not fit beside an axis, 2.5e31 does."""
    return re.sub(r"e\+?(-?)0*(?=\d)", r"e\1", number)


def _dots(color: int, name: str, places: Points, points: Points, show: Show) -> str:
    radius = 2.5 if len(places) <= 40 else 1.2
    return "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="var(--c{color})">'
        f"<title>{escape(name)}, {at:g}: {escape(show(value))}</title></circle>"
        for (x, y), (at, value) in zip(places, points, strict=True)
    )


def _legend(pens: Mapping[str, str], top: float) -> tuple[list[str], int]:
    """Names in columns as wide as the longest, and the number of rows."""
    width = 34 + _CHARACTER * max(map(len, pens), default=0)
    num_columns = max(int((_WIDTH - _LEFT) / width), 1)
    parts = []
    for number, (name, pen) in enumerate(pens.items()):
        x, y = _LEFT + width * (number % num_columns), top + 18 * (number // num_columns)
        parts.append(f'<line class="line" {pen} x1="{x:.1f}" x2="{x + 18:.1f}" y1="{y - 4:.1f}" y2="{y - 4:.1f}"/>')
        parts.append(_text(x + 22, y, name))
    return parts, math.ceil(len(pens) / num_columns)


def matrix_chart(
    title: str,
    rows: Sequence[Sequence[float]],
    *,
    row_names: Sequence[str],
    column_names: Sequence[str],
    axes: tuple[str, str],
    show: Show = "{:g}".format,
    by_root: bool = False,
) -> str:
    """A matrix of colored cells, with their values if there is room.

    Args:
        title: What the cells are.
        rows: Values, colored from 0 to the largest.
        row_names: A name for each row.
        column_names: A name for each column.
        axes: What rows and columns are.
        show: How to write a value.
        by_root: Whether the root of a value gives its color, so that few can be seen beside many.

    Example:
        >>> svg = matrix_chart("counts", [[3, 1], [0, 4]], row_names="ab", column_names="ab", axes=("label", "guess"))
        >>> svg.count("<rect")
        4
    """
    left = 34 + _length(row_names)
    cell = max(min((_WIDTH - left - _RIGHT) / max(len(column_names), 1), 44), 4)
    slanted = any(7 * len(name) > cell for name in column_names)
    top = _TOP + 22 + (_length(column_names) if slanted else 6)
    parts = [
        _text(8, 18, title, weight="600"),
        _text(8, _TOP + 2, f"rows: {axes[0]}; columns: {axes[1]}", muted=True),
    ]
    if cell >= 9:  # else names would overlap
        for column, name in enumerate(column_names):
            x, y = left + (column + 0.5) * cell + 3 * slanted, top - 6
            turn = f' transform="rotate(-60 {x:.1f} {y:.1f})"' if slanted else ""
            parts.append(_text(x, y, name[:16], anchor="start" if slanted else "middle", more=turn))
        for row, name in enumerate(row_names):
            parts.append(_text(left - 6, top + (row + 0.5) * cell + 4, name[:16], anchor="end"))
    largest = max((abs(value) for row in rows for value in row), default=0) or 1
    for row, (name, values) in enumerate(zip(row_names, rows, strict=True)):
        for column, value in enumerate(values):
            share = abs(value) / largest
            opacity = 0.06 + 0.84 * (math.sqrt(share) if by_root else share)
            label = f"{name}, {column_names[column]}: {show(value)}"
            text = show(value) if value else ""
            parts.append(_cell(left + column * cell, top + row * cell, cell, opacity, label, text))
    return _svg(title, _WIDTH, top + len(rows) * cell + 8, parts)


def _length(names: Sequence[str]) -> int:
    """Room for names, in pixels."""
    return min(7 * max(map(len, names), default=1), 110)


def _cell(x: float, y: float, size: float, opacity: float, label: str, text: str) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" width="{size - 1:.1f}" height="{size - 1:.1f}"'
    rect = f'<rect {where} style="fill: rgba(var(--cell), {opacity:.3f})"><title>{escape(label)}</title></rect>'
    if not text or size < 7 * len(text):
        return rect
    color = ' style="fill: var(--paper)"' if opacity > 0.7 else ""
    return rect + _text(x + size / 2, y + size / 2 + 4, text, anchor="middle", more=color)


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", muted: bool = False, weight: str = "", more: str = ""
) -> str:
    kind = ' class="muted"' if muted else ""
    bold = f' font-weight="{weight}"' if weight else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}{bold}{more}>{escape(text)}</text>'


def _svg(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    label = f'role="img" aria-label="{escape(title, quote=True)}"'
    return f'<svg class="figure" viewBox="0 0 {width:g} {height:g}" {label}>{"".join(parts)}</svg>'
