"""What a stream can show, and writing to it safely; refuses to know what is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO

_DEFAULT_WIDTH = 80
_LEAST_WIDTH = 20


def width(stream: TextIO | None, environ: Mapping[str, str] | None = None) -> int:
    """Return the width of ``stream`` in cells: ``COLUMNS``, else the terminal's, else 80; never less than 20."""
    columns = (os.environ if environ is None else environ).get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return max(_LEAST_WIDTH, int(columns))
    try:
        found = os.get_terminal_size(stream.fileno()).columns if stream is not None else 0
    except (OSError, ValueError):  # not a terminal, closed, or without a descriptor
        found = 0
    return max(_LEAST_WIDTH, found or _DEFAULT_WIDTH)


def styled(stream: TextIO | None, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether to use colour and bold on ``stream``.

    ``NO_COLOR`` (https://no-color.org) wins over ``FORCE_COLOR`` and ``CLICOLOR_FORCE``
    (https://bixense.com/clicolors), these over ``TERM=dumb``, ``CLICOLOR=0`` and a stream that is no terminal.
    """
    environ = os.environ if environ is None else environ
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


def unicode_ok(stream: TextIO | None) -> bool:
    """Return whether the encoding of ``stream`` has the signs that ddplaunch draws with."""
    try:
        "×…─≤≥→".encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def write(text: str, stream: TextIO | None = None) -> bool:
    """Write ``text`` to ``stream`` (stdout) and flush; return False if nobody reads any more, as behind ``| head -1``.

    What the encoding lacks is written as escapes. Raises OSError for what the user has to know, such as a full disk.
    """
    stream = sys.stdout if stream is None else stream
    if stream is None:  # the interpreter was started with the descriptor closed
        return False
    try:
        stream.write(_encodable(text, stream))
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
        return False
    except ValueError:  # I/O operation on closed file
        return False
    return True


def speak(text: str, stream: TextIO | None = None) -> bool:
    """Write ``text`` to ``stream`` (stderr); no failure to do so may stop a launch. Returns whether it was written."""
    stream = sys.stderr if stream is None else stream
    try:
        return write(text, stream) if stream is not None else False
    except OSError:
        _discard(stream)
        return False


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode(encoding, "backslashreplace").decode(encoding)
    return text


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
