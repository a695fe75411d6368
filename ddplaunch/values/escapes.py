r"""What of other people's text a terminal gets: colours and line feeds, and nothing else that it would act on.

A terminal obeys what is printed: titles, the clipboard (OSC 52), the cursor, clearing, keys and modes, and 8-bit forms
of all these; marks for the direction of text reorder what is read. Only SGR (``\x1b[31m``), tab, line feed and
carriage return pass. ECMA-48; https://invisible-island.net/xterm/ctlseqs/ctlseqs.html; https://trojansource.codes

The guard, a light interpreter, imports this module.
"""

from __future__ import annotations

import re

_COLOUR = r"\x1b\[[0-9;:]{0,64}m"
#: A string (OSC, DCS, SOS, PM, APC) that is never ended reaches to the end of its line and no further.
_ACTED_ON = re.compile(
    rf"({_COLOUR})"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\0-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\udc80-\udc9f]"
    r"|([\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])"
)
_PLAIN = re.compile(rb"[\t\n\r -~]*")
#: What may be the beginning of something that the next piece goes on with.
_BEGUN = re.compile(
    rb"(?:(?:\x1b\[|\xc2\x9b)[0-?]*[ -/]*|(?:\x1b[\]PX^_]|\xc2[\x90\x98\x9d-\x9f])[^\x07\x1b\n\x9c]*[\x1b\xc2]?"
    rb"|\x1b[ -/]*|[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z"
)
_LONGEST_BEGUN = 1 << 14  # bytes; a longer string is no title


def harmless(text: str) -> str:
    """Return ``text`` without what a terminal would act on; marks of direction are spelled out (``\\u202e``)."""
    return text if text.isprintable() else _ACTED_ON.sub(_in_its_place, text)


def _in_its_place(match: re.Match[str]) -> str:
    colour, mark = match.groups()
    return colour or (f"\\u{ord(mark):04x}" if mark else "")


def harmless_bytes(data: bytes) -> bytes:
    """Return ``data`` without what a terminal would act on; bytes that are not UTF-8 pass, but for 8-bit controls."""
    if _PLAIN.fullmatch(data):
        return data
    return harmless(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def harmless_line(line: bytes) -> bytes:
    """Return one line, its colours ended with it, so that they reach neither a prefix nor another rank."""
    line = harmless_bytes(line)
    at = line.rfind(b"\x1b[")
    return line if at < 0 or line.startswith((b"\x1b[0m", b"\x1b[m"), at) else line + b"\x1b[0m"


class HarmlessPieces:
    """Bytes that come in pieces, which may end within a sequence."""

    def __init__(self) -> None:
        """Nothing is held back yet."""
        self._begun = b""

    def feed(self, data: bytes) -> bytes:
        """Return what can be shown; the beginning of a sequence waits for its end."""
        data = self._begun + data
        begun = _BEGUN.search(data, max(0, len(data) - _LONGEST_BEGUN))
        cut = len(data) if begun is None else begun.start()
        self._begun = data[cut:]
        return harmless_bytes(data[:cut])
