"""What a stream can show (``Terminal``), writing to it, and text made harmless and wrapped for it.

rich is not used here: importing ``rich.console`` takes 40 ms, and until torchrun starts ``run`` needs only bold, dim
and three colours.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Literal, TextIO

from ddplaunch.values.escapes import HarmlessPieces, harmless
from ddplaunch.values.frozen import dataclass

_DEFAULT_WIDTH = 80
_LEAST_WIDTH = 20

Emphasis = Literal["bold", "dim", "error", "warning", "good"]

_CODES: dict[Emphasis, str] = {"bold": "1", "dim": "2", "error": "1;31", "warning": "1;33", "good": "1;32"}


@dataclass(frozen=True)
class Terminal:
    """What a stream can show: ``width`` in cells; colour and bold if ``styled``."""

    width: int = _DEFAULT_WIDTH
    styled: bool = False

    @classmethod
    def of(cls, stream: TextIO | None, environ: Mapping[str, str] | None = None) -> Terminal:
        """Return what ``stream`` can show, judged by the stream and the environment."""
        environ = os.environ if environ is None else environ
        return cls(_width(stream, environ), _styled(stream, environ))

    def paint(self, text: str, emphasis: Emphasis) -> str:
        """Return ``text`` with the terminal's codes around it (ECMA-48 SGR), or unchanged if not ``styled``."""
        return f"\x1b[{_CODES[emphasis]}m{text}\x1b[0m" if self.styled and text.strip() else text

    def lines(
        self, text: str, label: str = "", hanging: str = "", newlines: bool = False, emphasis: Emphasis = "dim"
    ) -> list[str]:
        """Return ``text`` in lines, the first after ``label``, the others after ``hanging`` or as wide an indent.

        Without a label, the other lines are indented by two cells. ``newlines`` keeps newlines instead of spelling
        them out.
        """
        hanging = hanging or " " * (cells(label) or 2)
        lines = wrap(visible(text, newlines), self.width, label, hanging)
        return [self.paint(label, emphasis) + lines[0][len(label) :], *lines[1:]]

    def page(self, lines: Iterable[str]) -> str:
        """Return lines as one text."""
        return "".join(f"{line}\n" for line in lines)

    def note(self, text: str, label: str = "") -> str:
        """Return a sentence as a text of its own; further lines are indented by two cells."""
        return self.page(self.lines(text, label, "  "))


def _width(stream: TextIO | None, environ: Mapping[str, str]) -> int:
    """Return ``COLUMNS``, else the terminal's width, else 80; never less than 20."""
    columns = environ.get("COLUMNS", "")
    try:
        width = int(columns) if columns.isdecimal() else os.get_terminal_size(stream.fileno() if stream else -1).columns
    except (OSError, ValueError):  # not a terminal, closed, or without a descriptor
        width = 0
    return max(_LEAST_WIDTH, width or _DEFAULT_WIDTH)


def _styled(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    """Return whether to use colour and bold.

    ``NO_COLOR`` (https://no-color.org) wins over ``FORCE_COLOR``, which wins over ``TERM=dumb`` and a stream that is
    not a terminal.
    """
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    if environ.get("TERM") == "dumb":
        return False
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


_pieces = HarmlessPieces()


def write(content: str | bytes, stream: TextIO | None = None) -> bool:
    """Write to ``stream`` (stdout) and flush; return False if its reader is gone, as after ``| head -1``.

    Characters that the stream's encoding lacks are written as escapes. A terminal gets no control sequences except
    colours, even where one arrives in two pieces of bytes. Raises OSError for errors that the user has to know, such as
    a full disk.
    """
    stream = sys.stdout if stream is None else stream
    if stream is None:  # the interpreter was started with the descriptor closed
        return False
    try:
        if isinstance(content, bytes):
            stream.buffer.write(_pieces.feed(content) if stream.isatty() else content)
        else:
            encoding = getattr(stream, "encoding", None) or "utf-8"
            text = harmless(content) if stream.isatty() else content
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
        return False
    except OSError:
        _discard(stream)  # else Python 3.14 would write it again at exit, and exit with 120
        raise
    except ValueError:  # I/O operation on closed file
        return False
    return True


def speak(text: str, stream: TextIO | None = None) -> bool:
    """As ``write``, to ``stream`` (stderr), but a failure does not stop the launch. Returns whether it was written."""
    stream = sys.stderr if stream is None else stream
    try:
        return stream is not None and write(text, stream)
    except OSError:
        return False


def _discard(stream: TextIO) -> None:
    """Point the descriptor at /dev/null, so that the interpreter's last flush does not fail as well.

    https://docs.python.org/3/library/signal.html#note-on-sigpipe
    """
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def visible(text: str, keep_newlines: bool = False) -> str:
    """Return ``text`` with control characters and undecodable bytes spelled out (``\\n``, ``\\x1b``, ``\\xff``).

    A path can contain any byte but NUL; printed raw it could move the cursor or fail to encode.
    """
    if text.isprintable():
        return text
    return "".join(_spell(char, keep_newlines) for char in text)


def _spell(char: str, keep_newlines: bool) -> str:
    if char.isprintable() or (char == "\n" and keep_newlines):
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8, as returned by os.fsdecode() (PEP 383)
        return f"\\x{code - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def cells(text: str) -> int:
    """Return how many terminal cells ``text`` takes: two for wide East Asian characters, none for combining ones."""
    if text.isascii():
        return len(text)
    import unicodedata  # rarely needed

    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)


# Lines may end between two words; `text in backticks` is one word, including its spaces.
_WORD = re.compile(r"(?:`[^`]*`|\S)+")
_PARAGRAPH = re.compile(r"(?:`[^`]*`|[^\n])+")  # text between newlines that are not in backticks


def wrap(text: str, width: int, first: str = "", hanging: str = "") -> list[str]:
    """Return lines of at most ``width`` cells, the first after ``first``, the others after ``hanging``.

    A word that fits into no line after these is indented by two cells. One wider than a whole line gets a line of its
    own; the terminal wraps it, so that text copied from there contains no newline. Newlines outside backticks are kept.
    """
    lines: list[str] = []
    for paragraph in _PARAGRAPH.findall(text) or [""]:
        line, empty = hanging if lines else first, True
        for word in _WORD.findall(paragraph):
            if not empty and cells(line) + 1 + cells(word) > width:
                lines.append(line)
                line, empty = hanging, True
            if empty and cells(line + word) > width >= cells(f"  {word}"):
                lines += [line] * (not line.isspace())
                line = "  "
            line = line + word if empty else f"{line} {word}"
            empty = False
        lines.append(line.rstrip() if empty else line)
    return lines


def cut(text: str, width: int) -> str:
    """Return ``text`` as one line of at most ``width`` cells, ending in ``…`` if it was cut."""
    text = visible(text)
    if cells(text) <= width:
        return text
    while text and cells(text) >= width:
        text = text[:-1]
    return f"{text}…"
