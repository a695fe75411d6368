"""Emphasis, and text made harmless for a terminal; refuses to know what the text is about.

rich is not used: importing ``rich.console`` takes about 40 ms, and all that is needed is bold, dim and three colours.
"""

from __future__ import annotations

from typing import Literal

Emphasis = Literal["bold", "dim", "error", "warning", "good"]

_CODES: dict[Emphasis, str] = {"bold": "1", "dim": "2", "error": "1;31", "warning": "1;33", "good": "1;32"}

# Only what this package writes itself; a user's own text is left to the encoding of the stream.
_ASCII = str.maketrans({"×": "x", "…": "...", "─": "-", "≤": "<=", "≥": ">=", "→": "->"})


def paint(text: str, emphasis: Emphasis, styled: bool) -> str:
    """Return ``text`` with the terminal's codes around it (ECMA-48 SGR), or as it is if not ``styled``."""
    return f"\x1b[{_CODES[emphasis]}m{text}\x1b[0m" if styled and text else text


def ascii_only(text: str, unicode: bool) -> str:
    """Return ``text`` with this package's own signs spelled in ASCII, unless the terminal knows ``unicode``."""
    return text if unicode else text.translate(_ASCII)


def visible(text: str, keep_newlines: bool = False) -> str:
    """Return ``text`` with control characters and undecodable bytes spelled out (``\\n``, ``\\x1b``, ``\\xff``).

    A path can hold any byte but NUL; printed raw it could move the cursor or fail to encode.
    """
    if text.isprintable():
        return text
    return "".join(_spell(char, keep_newlines) for char in text)


def _spell(char: str, keep_newlines: bool) -> str:
    if char.isprintable() or (char == "\n" and keep_newlines):
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8, as os.fsdecode() hands it over (PEP 383)
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def cells(text: str) -> int:
    """Return how many terminal cells ``text`` takes: two for wide East Asian characters, none for combining ones."""
    if text.isascii():
        return len(text)
    import unicodedata  # rarely needed

    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)
