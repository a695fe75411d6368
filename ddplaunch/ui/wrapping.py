"""Text into lines of a width, commands kept whole; refuses to shorten anything."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddplaunch.ui.style import cells

# A run of non-space characters in which `text in backticks` counts as one, spaces and all.
_WORD = re.compile(r"(?:`[^`]*`|\S)+")


def words(text: str) -> Iterator[str]:
    """Yield the parts of ``text`` between which a line may end: a command in backticks is one part."""
    for match in _WORD.finditer(text):
        yield match.group()


def wrap(text: str, width: int, first: str = "", hanging: str = "") -> list[str]:
    """Return lines of at most ``width`` cells, the first led by ``first``, the others by ``hanging``.

    A part that is wider than a whole line stays whole on a line of its own; the terminal wraps it, and what is copied
    from there has no newline in it. Newlines outside of backticks are kept.
    """
    lines: list[str] = []
    line, empty = first, True
    for paragraph in _paragraphs(text):
        if lines or not empty:
            lines.append(line.rstrip())
            line, empty = hanging, True
        for word in words(paragraph):
            if not empty and cells(line) + 1 + cells(word) > width:
                lines.append(line)
                line, empty = hanging, True
            line = line + word if empty else f"{line} {word}"
            empty = False
    lines.append(line.rstrip() if empty else line)
    return lines


def _paragraphs(text: str) -> list[str]:
    """Split at newlines that are not within backticks."""
    return re.findall(r"(?:`[^`]*`|[^\n])+", text) or [""]
