"""What a stream can show (``Terminal``), writing to it, and text made harmless and wrapped for it.

rich is not used here: importing ``rich.console`` takes 40 ms, and the path of ``run`` to torchrun needs no more than
bold, dim and three colours.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Literal, TextIO

from ddplaunch.values.escapes import HarmlessPieces, harmless
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.variable_names import CALLED_AS

_DEFAULT_WIDTH = 80
_LEAST_WIDTH = 20

Emphasis = Literal["bold", "dim", "error", "warning", "good"]

_CODES: dict[Emphasis, str] = {"bold": "1", "dim": "2", "error": "1;31", "warning": "1;33", "good": "1;32"}

# Only what this package writes itself; a user's own text is left to the encoding of the stream.
_ASCII = str.maketrans({"°": "", "×": "x", "…": "...", "─": "-", "≤": "<=", "≥": ">=", "→": "->"})


@dataclass(frozen=True)
class Terminal:
    """What a stream shows: ``width`` in cells, colour and bold if ``styled``, the signs of ddplaunch if ``unicode``.

    ``called_as`` says what its reader typed in the place of ``ddplaunch run``, empty for ddplaunch itself.
    """

    width: int = _DEFAULT_WIDTH
    styled: bool = False
    unicode: bool = True
    called_as: str = ""

    @classmethod
    def of(cls, stream: TextIO | None, environ: Mapping[str, str] | None = None) -> Terminal:
        """Return what ``stream`` can show, as far as it and the environment tell."""
        environ = os.environ if environ is None else environ
        return cls(_width(stream, environ), _styled(stream, environ), _unicode(stream), environ.get(CALLED_AS, ""))

    def paint(self, text: str, emphasis: Emphasis) -> str:
        """Return ``text`` with the terminal's codes around it (ECMA-48 SGR), or as it is if not ``styled``."""
        return f"\x1b[{_CODES[emphasis]}m{text}\x1b[0m" if self.styled and text else text

    def spell(self, text: str) -> str:
        """Return ``text`` with ddplaunch's own signs in ASCII, unless the terminal knows ``unicode``."""
        return text if self.unicode else text.translate(_ASCII)


def _width(stream: TextIO | None, environ: Mapping[str, str]) -> int:
    """Return ``COLUMNS``, else the terminal's width, else 80; never less than 20."""
    columns = environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return max(_LEAST_WIDTH, int(columns))
    try:
        found = os.get_terminal_size(stream.fileno()).columns if stream is not None else 0
    except (OSError, ValueError):  # not a terminal, closed, or without a descriptor
        found = 0
    return max(_LEAST_WIDTH, found or _DEFAULT_WIDTH)


def _styled(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    """Return whether to use colour and bold.

    ``NO_COLOR`` (https://no-color.org) wins over ``FORCE_COLOR`` and ``CLICOLOR_FORCE``
    (https://bixense.com/clicolors), these over ``TERM=dumb``, ``CLICOLOR=0`` and a stream that is no terminal.
    """
    if environ.get("NO_COLOR"):
        return False
    if any(environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    if environ.get("TERM") == "dumb" or environ.get("CLICOLOR") == "0":
        return False
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _unicode(stream: TextIO | None) -> bool:
    """Return whether the encoding of ``stream`` has the signs that ddplaunch draws with."""
    try:
        "×…─≤≥→".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def write(text: str, stream: TextIO | None = None, control: str = "") -> bool:
    """Write ``text`` to ``stream`` (stdout) and flush; return False if nobody reads any more, as behind ``| head -1``.

    What the encoding lacks is written as escapes. A terminal gets no control sequences but colours, whatever others put
    into ``text``, and ``control``, ddplaunch's own, in front. Raises OSError for what the user has to know, such as a
    full disk.
    """
    stream = sys.stdout if stream is None else stream
    if stream is None:  # the interpreter was started with the descriptor closed
        return False
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        shown = control + harmless(text) if stream.isatty() else control + text
        stream.write(shown.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
        return False
    except OSError:
        _discard(stream)  # Python 3.14 would write it again as it ends, and end with 120
        raise
    except ValueError:  # I/O operation on closed file
        return False
    return True


_pieces = HarmlessPieces()


def write_bytes(data: bytes, control: bytes = b"") -> bool:
    """Write ``data`` to stdout and flush; return False if nobody reads any more.

    A terminal gets no control sequences but colours, also where one is written in two pieces, and ``control``,
    ddplaunch's own, in front.
    """
    if sys.stdout is None:
        return False
    try:
        sys.stdout.buffer.write(control + _pieces.feed(data) if sys.stdout.isatty() else data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
        return False
    return True


def speak(text: str, stream: TextIO | None = None, control: str = "") -> bool:
    """As ``write``, to ``stream`` (stderr); no failure may stop a launch. Returns whether it was written."""
    stream = sys.stderr if stream is None else stream
    try:
        return write(text, stream, control) if stream is not None else False
    except OSError:
        _discard(stream)
        return False


def _discard(stream: TextIO | None) -> None:
    """Point the descriptor at /dev/null, so that the interpreter's last flush does not fail as well.

    https://docs.python.org/3/library/signal.html#note-on-sigpipe
    """
    try:
        if stream is not None:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
    except (OSError, ValueError):
        pass


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


# The parts between which a line may end; `text in backticks` is one part, spaces and all.
_WORD = re.compile(r"(?:`[^`]*`|\S)+")
_PARAGRAPH = re.compile(r"(?:`[^`]*`|[^\n])+")  # what stands between newlines outside of backticks


def wrap(text: str, width: int, first: str = "", hanging: str = "") -> list[str]:
    """Return lines of at most ``width`` cells, the first led by ``first``, the others by ``hanging``.

    A part that is wider than a whole line stays whole on a line of its own; the terminal wraps it, and what is copied
    from there has no newline in it. Newlines outside of backticks are kept.
    """
    lines: list[str] = []
    for paragraph in _PARAGRAPH.findall(text) or [""]:
        line, empty = hanging if lines else first, True
        for word in _WORD.findall(paragraph):
            if not empty and cells(line) + 1 + cells(word) > width:
                lines.append(line)
                line, empty = hanging, True
            line = line + word if empty else f"{line} {word}"
            empty = False
        lines.append(line.rstrip() if empty else line)
    return lines
