"""Rows as an aligned table, as blocks where the terminal is narrow, or as labels with their values.

``rich.table`` breaks commands in backticks and cuts words wider than their column, which then cannot be pasted.
Importing it adds half to the 80 ms of `ddplaunch ps`, and a table of 64 ranks in 15 columns takes it 93 ms, ``table``
0.5 ms.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ddplaunch.ui.terminal import Emphasis, Terminal, cells, visible, wrap

_INDENT, _GAP = 2, 2
_LEAST_LAST = 24  # a last column narrower than this is hard to read


def table(
    rows: Sequence[Mapping[str, str]],
    terminal: Terminal,
    right: Collection[str] = (),
    *,
    spared: Iterable[str] = (),
    emphasis: Mapping[int, Emphasis] = {},
) -> list[str]:
    """Return the lines of a table of ``rows``, whose texts are by column title; empty columns are left out.

    The last column wraps, those in ``right`` are right-aligned. A narrow terminal leaves out the ``spared`` columns,
    the first one first; if that does not suffice, each row becomes a block. ``emphasis`` is by row.
    """
    titles = [title for title in (rows[0] if rows else ()) if any(row[title] for row in rows)]
    shown = {title: [title, *(visible(row[title]) for row in rows)] for title in titles}
    for title in spared:
        if _fits(shown.values(), terminal):
            break
        shown.pop(title, None)
    head, *lines_of_rows = zip(*shown.values(), strict=True) if shown else [()]
    if not _fits(shown.values(), terminal):
        return [
            line
            for number, row in enumerate(lines_of_rows)
            for line in _block(head, row, terminal, emphasis.get(number, "bold"))
        ]
    widths = [max(map(cells, column)) for column in shown.values()]
    aligned = [title in right for title in shown]
    emphases: dict[int, Emphasis] = {-1: "dim", **emphasis}
    return [
        terminal.paint(line, emphases[number]) if number in emphases else line
        for number, row in enumerate((head, *lines_of_rows) if shown else (), -1)
        for line in _row(row, widths, aligned, terminal.width)
    ]


def _fits(columns: Iterable[Sequence[str]], terminal: Terminal) -> bool:
    """Whether ``columns`` with their titles fit and leave the last one 24 cells, or its own width if that is less."""
    widths = [max(map(cells, column)) for column in columns]
    last = min(widths[-1], _LEAST_LAST) if widths else 0
    return _INDENT + sum(width + _GAP for width in widths[:-1]) + last <= terminal.width


def _row(row: Sequence[str], widths: Sequence[int], right: Sequence[bool], width: int) -> list[str]:
    padded = [" " * (size - cells(cell)) for cell, size in zip(row, widths, strict=True)]
    texts = [pad + cell if is_right else cell + pad for cell, pad, is_right in zip(row, padded, right, strict=True)]
    lead = " " * _INDENT + "".join(text + " " * _GAP for text in texts[:-1]) + (padded[-1] if right[-1] else "")
    return [line.rstrip() for line in wrap(row[-1], width, lead, " " * cells(lead))]


def _block(titles: Sequence[str], row: Sequence[str], terminal: Terminal, emphasis: Emphasis) -> list[str]:
    name, *rest = wrap(row[0], terminal.width, "  ", "    ")
    lines = [terminal.paint(name, emphasis), *rest]
    for title, cell in zip(titles[1:], row[1:], strict=True):
        lines += wrap(cell, terminal.width, f"    {title}: " if title else "    ", "      ") if cell else []
    return lines


def panel(rows: Iterable[tuple[str, str]], terminal: Terminal) -> list[str]:
    """Return a line for each label with its value, without empty ones; long values wrap beside the labels."""
    filled_rows = [(label, text) for label, text in rows if text]
    width = max((cells(label) for label, _ in filled_rows), default=0)
    return [line for label, text in filled_rows for line in terminal.lines(text, f"  {label:<{width}}  ")]


def section(title: str, lines: Sequence[str], terminal: Terminal) -> list[str]:
    """Return ``lines`` under a title, followed by an empty line; nothing if there are no lines."""
    return [terminal.paint(title, "bold"), *lines, ""] if lines else []
