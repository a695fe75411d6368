r"""Makes foreign text safe for a terminal: keeps colours and line feeds, removes whatever else it would act on.

A terminal obeys control sequences in what is printed: they set titles, write the clipboard (OSC 52), move the cursor,
clear, change keys and modes, also in 8-bit forms; direction marks reorder the text. Only SGR (``\x1b[31m``), tab, line
feed and carriage return pass.
ECMA-48; https://invisible-island.net/xterm/ctlseqs/ctlseqs.html; https://trojansource.codes

The guard, whose interpreter must stay light, imports this module.
"""

from __future__ import annotations

import re

_COLOUR = r"\x1b\[[0-9;:]{0,64}m"
#: A string sequence (OSC, DCS, SOS, PM, APC) without an end reaches to the end of its line and no further.
_ACTED_ON = re.compile(
    rf"({_COLOUR})"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
    r"|[\0-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\udc80-\udc9f]"
    r"|([\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])"
)
_PLAIN = re.compile(rb"[\t\n\r -~]*")
#: The end of a piece that may be the beginning of a sequence or of a UTF-8 character.
_BEGUN = re.compile(
    rb"(?:(?:\x1b\[|\xc2\x9b)[0-?]*[ -/]*|(?:\x1b[\]PX^_]|\xc2[\x90\x98\x9d-\x9f])[^\x07\x1b\n\x9c]*[\x1b\xc2]?"
    rb"|\x1b[ -/]*|[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z"
)
_LONGEST_BEGUN = 1 << 14  # bytes; no title is longer


def harmless(text: str) -> str:
    """Return ``text`` without what a terminal would act on; direction marks are spelled out (``\\u202e``)."""
    return text if text.isprintable() else _ACTED_ON.sub(_in_its_place, text)


def _in_its_place(match: re.Match[str]) -> str:
    colour, mark = match.groups()
    return colour or (f"\\u{ord(mark):04x}" if mark else "")


def harmless_bytes(data: bytes) -> bytes:
    """Return ``data`` without what a terminal would act on; bytes that are not UTF-8 pass, except 8-bit controls."""
    if _PLAIN.fullmatch(data):
        return data
    return harmless(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def harmless_line(line: bytes) -> bytes:
    """Return one line with its colours reset at its end, so that they do not reach a prefix or another rank."""
    line = harmless_bytes(line)
    at = line.rfind(b"\x1b[")
    return line if at < 0 or line.startswith((b"\x1b[0m", b"\x1b[m"), at) else line + b"\x1b[0m"


class HarmlessPieces:
    """Makes bytes harmless that arrive in pieces; a piece may end within a sequence."""

    def __init__(self) -> None:
        self._begun = b""

    def feed(self, data: bytes) -> bytes:
        """Return what can be shown now; the beginning of a sequence is held back until its end arrives."""
        data = self._begun + data
        begun = _BEGUN.search(data, max(0, len(data) - _LONGEST_BEGUN))
        cut = len(data) if begun is None else begun.start()
        self._begun = data[cut:]
        return harmless_bytes(data[:cut])
