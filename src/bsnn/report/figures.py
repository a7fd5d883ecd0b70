"""Figures as SVG text: lines over a number, and matrices of colored cells.

They hold no script and no link, take their colors from CSS variables that a page sets for light and dark, and
scale with the width that they are given. `standalone` makes one a file of its own.
"""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
Bars = Sequence[tuple[float, float, float]]

# Okabe and Ito's colors, which color-blind readers tell apart; the darkest and the lightest give way to the
# background. After eight lines they come again, dashed, as are lines that would hide the same one below.
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
# The share of a logarithmic axis that may stay empty at either end, for it to end at a round value.
_ROOM = 0.15


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
    show: Callable[[float], str] = "{:g}".format,
    log_x: bool = False,
    log_y: bool = False,
    from_zero: bool = False,
    bars: Mapping[str, Bars] | None = None,
    thin: Collection[str] = (),
) -> str:
    """Lines over a number, with a legend below when there are several.

    A line without points takes its color with it, so that each has the same one in every chart of a page.

    Args:
        title: What the y axis is.
        lines: Points by the name of their line. On a logarithmic axis only those above 0 are drawn.
        x_label: What the x axis is.
        show: How to write a value of y.
        log_x: Whether the x axis is logarithmic.
        log_y: Whether the y axis is logarithmic.
        from_zero: Whether the y axis begins at 0, as lengths that are compared must.
        bars: By the name of their line, where on x its spread reaches from which y to which.
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
    everything = [point for points in drawn.values() for point in points] or [(1.0, 1.0)]
    x_axis = _Axis([x for x, _ in everything], log_x, _LEFT, _WIDTH - _RIGHT, tight=True)
    bars = bars or {}
    reach = [end for of_line in bars.values() for _, *ends in of_line for end in ends]
    reach += [0.0] if from_zero else []
    y_axis = _Axis([y for _, y in everything] + reach, log_y, _TOP + _PLOT_HEIGHT, _TOP)
    bottom = _TOP + _PLOT_HEIGHT
    parts = [_text(_LEFT, 18, title, weight="600")]
    for tick in y_axis.ticks:
        y = y_axis.place(tick)
        parts.append(f'<line class="rule" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(_LEFT - 6, y + 4, _short(show(tick)), anchor="end", muted=True))
    for tick in x_axis.ticks:
        parts.append(_text(x_axis.place(tick), bottom + 16, _short(f"{tick:g}"), anchor="middle", muted=True))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, bottom + 34, x_label, anchor="middle", muted=True))
    below, pens = [], {}
    for number, (name, points) in enumerate(drawn.items()):
        if not points:
            continue
        places = [(round(x_axis.place(x), 1), round(y_axis.place(y), 1)) for x, y in points]
        dash = ' stroke-dasharray="5 3"' if number >= _NUM_COLORS or places in below else ""
        below.append(places)
        pens[name] = f'stroke="var(--c{number % _NUM_COLORS})"{dash}'
        if name in thin:
            pens[name] = f'stroke="var(--muted)" stroke-dasharray="{1 + 4 * (number % 2)} 3" style="stroke-width: 1"'
        parts += [
            f'<path {pens[name]} d="M{x_axis.place(x):.1f},{y_axis.place(low):.1f}V{y_axis.place(high):.1f}"/>'
            for x, low, high in bars.get(name, ())
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline class="line" {pens[name]} points="{path}"/>')
        if name not in thin:
            parts.append(_dots(number, name, places, points, show))
    height = bottom + 42
    if len(lines) > 1:
        legend, rows = _legend(pens, height + 12)
        parts.append(legend)
        height += 18 * rows + 6
    return _svg(title, _WIDTH, height, parts)


class _Axis:
    """Where values of an axis lie, and which of them are written; it begins and ends at a round value if it can.

    Where all values are whole, as epochs are, so are those that are written.
    """

    def __init__(self, values: Sequence[float], log: bool, start: float, end: float, *, tight: bool = False) -> None:
        self.log, self.start, self.end = log, start, end
        least_step = 1.0 if tight and all(float(value).is_integer() for value in values) else 0.0
        low, high = min(values), max(values)
        if low == high:
            low, high = (low / 2, high * 2) if log else (low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5))
        self.ticks = (
            _log_ticks(low, high) if log and high >= 10 * low else _even_ticks(low, high, 6 if tight else 5, least_step)
        )
        if tight:
            self.ticks = [tick for tick in self.ticks if low <= tick <= high]
        else:
            room = _ROOM * (math.log10(high) - math.log10(low)) if log else math.inf
            self.ticks = [tick for tick in self.ticks if self._beyond(tick, low, high) <= room]
            low, high = min(low, self.ticks[0]), max(high, self.ticks[-1])
        self.low, self.high = self._scaled(low), self._scaled(high)

    def _beyond(self, tick: float, low: float, high: float) -> float:
        """How far a tick lies outside of the values."""
        if self.log and tick <= 0:
            return math.inf
        return max(self._scaled(low) - self._scaled(tick), self._scaled(tick) - self._scaled(high))

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def place(self, value: float) -> float:
        return self.start + (self._scaled(value) - self.low) / (self.high - self.low) * (self.end - self.start)


def _even_ticks(low: float, high: float, count: int, least_step: float) -> list[float]:
    """Round values at the same distance, from the last that is not above `low` to the first not below `high`."""
    step = max(_round_step((high - low) / count), least_step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{n * step:.12g}") for n in range(first, last + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """As `_even_ticks`, on a logarithmic axis: 1, 2, 5, 10, ..., or powers of ten if these are enough."""
    decades = math.log10(high) - math.log10(low)
    step = max(1, round(decades / 6))
    factors = (1, 2, 5) if decades < 3 else (1,)
    exponents = range(math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9) + 1, step)
    ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
    inside = [n for n, tick in enumerate(ticks) if low <= tick <= high]
    return ticks[max(inside[0] - 1, 0) : inside[-1] + 2]


def _round_step(step: float) -> float:
    """The next of 1, 2, 5, 10, ... that is not smaller."""
    magnitude = 10.0 ** math.floor(math.log10(step))
    return next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= step * (1 - 1e-9))


def _short(number: str) -> str:
    """A number without what its exponent does not need: 2.5e+31 does not fit beside an axis, 2.5e31 does."""
    return re.sub(r"e\+?(-?)0*(?=\d)", r"e\1", number)


def _dots(number: int, name: str, places: Points, points: Points, show: Callable[[float], str]) -> str:
    color = f"var(--c{number % _NUM_COLORS})"
    return "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{2.5 if len(places) <= 40 else 1.2}" fill="{color}">'
        f"<title>{escape(name)}, {at:g}: {escape(show(value))}</title></circle>"
        for (x, y), (at, value) in zip(places, points, strict=True)
    )


def _legend(pens: Mapping[str, str], top: float) -> tuple[str, int]:
    parts, x, row = [], float(_LEFT), 0
    for name, pen in pens.items():
        width = 34 + 9.2 * len(name)
        if x + width > _WIDTH and x > _LEFT:
            x, row = float(_LEFT), row + 1
        y = top + 18 * row
        parts.append(f'<line class="line" {pen} x1="{x}" x2="{x + 16}" y1="{y - 4}" y2="{y - 4}"/>')
        parts.append(_text(x + 20, y, name))
        x += width
    return "".join(parts), row + 1


def matrix_chart(
    title: str,
    rows: Sequence[Sequence[float]],
    *,
    row_names: Sequence[str],
    column_names: Sequence[str],
    axes: tuple[str, str],
    show: Callable[[float], str] = "{:g}".format,
    by_root: bool = False,
) -> str:
    """A matrix of colored cells, written into when there is room.

    Args:
        title: What the cells are.
        rows: Values, colored from 0 to the largest.
        row_names: A name for each row.
        column_names: A name for each column.
        axes: What rows and columns are.
        show: How to write a value.
        by_root: Whether the root of a value gives its color, so that few are seen beside many.

    Example:
        >>> svg = matrix_chart("counts", [[3, 1], [0, 4]], row_names="ab", column_names="ab", axes=("label", "guess"))
        >>> svg.count("<rect")
        4
    """
    count = max(len(column_names), 1)
    longest = max((len(name) for name in row_names), default=1)
    left = 34 + min(7 * longest, 110)
    cell = max(min((_WIDTH - left - _RIGHT) / count, 44), 4)
    height_of_names = min(7 * max((len(name) for name in column_names), default=1), 110)
    slanted = any(7 * len(name) > cell for name in column_names)
    top = _TOP + 22 + (height_of_names if slanted else 6)
    largest = max((abs(value) for row in rows for value in row), default=0) or 1
    parts = [
        _text(8, 18, title, weight="600"),
        _text(8, _TOP + 2, f"rows: {axes[0]}; columns: {axes[1]}", muted=True),
    ]
    named = cell >= 9
    for column, name in enumerate(column_names):
        x = left + (column + 0.5) * cell
        turn = f' transform="rotate(-60 {x + 3:.1f} {top - 6:.1f})"' if slanted else ""
        if named:
            parts.append(_text(x + 3 * slanted, top - 6, name[:16], anchor="start" if slanted else "middle", more=turn))
    for index, (name, row) in enumerate(zip(row_names, rows, strict=True)):
        y = top + index * cell
        if named:
            parts.append(_text(left - 6, y + cell / 2 + 4, name[:16], anchor="end"))
        for column, value in enumerate(row):
            share = abs(value) / largest
            opacity = 0.06 + 0.84 * (math.sqrt(share) if by_root else share)
            where = f'x="{left + column * cell:.1f}" y="{y:.1f}" width="{cell - 1:.1f}" height="{cell - 1:.1f}"'
            label = f"{name}, {column_names[column]}: {show(value)}"
            parts.append(
                f'<rect {where} style="fill: rgba(var(--cell), {opacity:.3f})"><title>{escape(label)}</title></rect>'
            )
            text = show(value)
            if cell >= 7 * len(text) and value:
                color = ' style="fill: var(--paper)"' if opacity > 0.7 else ""
                x = left + (column + 0.5) * cell
                parts.append(_text(x, y + cell / 2 + 4, text, anchor="middle", more=color))
    return _svg(title, _WIDTH, top + len(rows) * cell + 8, parts)


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", muted: bool = False, weight: str = "", more: str = ""
) -> str:
    kind = ' class="muted"' if muted else ""
    bold = f' font-weight="{weight}"' if weight else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}{bold}{more}>{escape(text)}</text>'


def _svg(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    label = f'role="img" aria-label="{escape(title, quote=True)}"'
    return f'<svg class="figure" viewBox="0 0 {width:g} {height:g}" {label}>{"".join(parts)}</svg>'
