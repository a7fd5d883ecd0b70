"""The frame of the page as HTML: its style, tables and a grid of figures."""

from collections.abc import Sequence
from html import escape

from bsnn.report.figures import STYLE

_PAGE_STYLE = """
html { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 1180px; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.25rem; margin-top: 2.5rem; border-top: 1px solid var(--rule); padding-top: 1rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 1.25rem; }
figure { margin: 0; break-inside: avoid; }
.wide { overflow-x: auto; margin-bottom: 1.5rem; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; white-space: nowrap; vertical-align: top; padding: 0.3rem 0.8rem 0.3rem 0;
  border-bottom: 1px solid var(--rule); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 0.85rem; padding: 0.7rem;
  border: 1px solid var(--rule); border-radius: 4px; }
.summary th { white-space: normal; vertical-align: bottom; }
.summary td:first-child { font-weight: 600; white-space: normal; overflow-wrap: anywhere; min-width: 8rem; }
@media screen and (max-width: 600px) {
  .summary table, .summary tbody { display: block; } .summary thead { display: none; }
  .summary tr { display: grid; grid-template-columns: 1fr 1fr; gap: 0.3rem 1rem; padding: 0.6rem 0;
    border-bottom: 1px solid var(--rule); }
  .summary td, .summary td.number { border: 0; padding: 0; text-align: left; white-space: normal; }
  .summary td:first-child { grid-column: 1 / -1; }
  .summary td:not(:first-child)::before { content: attr(data-head); display: block; color: var(--muted);
    font-size: 0.8rem; line-height: 1.2; } }
code { white-space: nowrap; } .note { color: var(--muted); font-size: 0.9rem; }
.warning { border-left: 3px solid var(--c1); padding-left: 0.6rem; }
@media print { html { font-size: 12px; } body { max-width: none; padding: 0; }
  h2 { break-before: page; border: 0; margin: 0; } details, pre, tr { break-inside: avoid; }
  summary { break-after: avoid; list-style: none; font-size: 1.1rem; margin-top: 1rem; }
  .figures { grid-template-columns: 1fr 1fr; } .settings { columns: 2; }
  .wide { overflow: visible; } details::details-content { content-visibility: visible; } }
"""


def document(title: str, body: Sequence[str]) -> str:
    """A whole HTML file that needs nothing else."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{STYLE}{_PAGE_STYLE}</style></head>\n"
        f"<body>{''.join(body)}</body></html>\n"
    )


def figure_grid(figures: Sequence[str]) -> str:
    """Figures side by side if there is room; empty ones are left out."""
    return f'<div class="figures">{"".join(f"<figure>{figure}</figure>" for figure in figures if figure)}</div>'


def table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = (), kind: str = "text"
) -> str:
    """A table of text; columns of numbers are aligned to the right.

    Example:
        >>> "&lt;" in table(["a", "b"], [["<", "1"]], numbers=["b"])
        True
    """
    number = ' class="number"'

    def cells(tag: str, row: Sequence[str]) -> str:
        # On a small screen the head is hidden and each cell shows its own.
        return "".join(
            f'<{tag}{number if head in numbers else ""} data-head="{escape(head)}">{escape(cell)}</{tag}>'
            for head, cell in zip(heads, row, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = f"<thead><tr>{cells('th', heads)}</tr></thead>"
    return f'<div class="wide {kind}"><table>{head}<tbody>{body}</tbody></table></div>'
