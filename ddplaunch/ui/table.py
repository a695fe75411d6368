"""Rows as an aligned table, or as blocks where the terminal is narrow.

``rich.table`` breaks commands in backticks and cuts words that are wider than their column, which then cannot be
pasted. Importing it makes a `ddplaunch ps` of 80 ms half as long again, and 64 ranks of 15 columns take it 93 ms,
``table`` 0.5 ms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from ddplaunch.ui.terminal import Terminal, cells, visible, wrap

if TYPE_CHECKING:
    from rich.console import Console

_GAP = 2
_LEAST_LAST = 24  # a last column narrower than this is hard to read


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    terminal: Terminal,
    right: Collection[int] = (),
    indent: int = 2,
) -> list[str]:
    """Return the lines of a table, none without rows; the last column wraps. ``right`` are right-aligned columns.

    Where fewer than 24 cells would be left for a last column that needs more, each row becomes a block instead.
    """
    shown = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(cells, column)) for column in zip(header, *shown, strict=True)]
    offset = indent + sum(widths[:-1]) + _GAP * (len(header) - 1)
    if offset + min(widths[-1], _LEAST_LAST) > terminal.width:
        return _blocks(header, shown, terminal, indent)
    head, *lines = (line for row in (header, *shown) for line in _row(row, widths, terminal.width, right, indent))
    return [terminal.paint(head, "dim"), *lines] if any(header) and rows else lines


def column_table(
    columns: Mapping[str, Sequence[str]], terminal: Terminal, right: Collection[str] = (), indent: int = 2
) -> list[str]:
    """Return the table of these columns, by their titles, without those whose cells are all empty."""
    shown = {title: texts for title, texts in columns.items() if any(texts)}
    aligned = [i for i, title in enumerate(shown) if title in right]
    return table(list(shown), list(zip(*shown.values(), strict=True)), terminal, aligned, indent)


def _row(row: Sequence[str], widths: Sequence[int], width: int, right: Collection[int], indent: int) -> list[str]:
    lead = " " * indent
    for i, cell in enumerate(row[:-1]):
        pad = " " * (widths[i] - cells(cell))
        lead += (pad + cell if i in right else cell + pad) + " " * _GAP
    last = len(row) - 1
    pad = " " * (widths[last] - cells(row[last])) if last in right else ""
    return [line.rstrip() for line in wrap(row[last], width, lead + pad, " " * cells(lead))]


def _blocks(header: Sequence[str], rows: Sequence[Sequence[str]], terminal: Terminal, indent: int) -> list[str]:
    lines: list[str] = []
    lead, inner = " " * indent, " " * (indent + 2)
    for row in rows:
        name, *rest = wrap(row[0], terminal.width, lead, inner)
        lines += [terminal.paint(name, "bold"), *rest]
        for title, cell in zip(header[1:], row[1:], strict=True):
            if cell:
                lines += wrap(cell, terminal.width, f"{inner}{title}: " if title else inner, f"{inner}  ")
    return lines


def section(title: str, lines: Sequence[str], terminal: Terminal) -> list[str]:
    """Return ``lines`` under a title with an empty line after them; nothing at all if there are none."""
    return [terminal.paint(title, "bold"), *lines, ""] if lines else []


def console_on(out: TextIO, terminal: Terminal, live: bool) -> Console:
    """Return rich's console for ``out``, in the colours of the terminal; ``live`` also moves its cursor."""
    from rich.console import Console

    return Console(
        file=out,
        width=None if live else terminal.width,
        force_terminal=live or terminal.styled,
        color_system="standard" if terminal.styled else None,
        highlight=False,
        legacy_windows=False,
    )
