"""One filter between what others wrote and the terminal: colours stay, what a terminal would act on does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ddplaunch
from ddplaunch.values.escapes import HarmlessPieces, harmless, harmless_bytes, harmless_line

#: Titles, the clipboard, the cursor, cleared screens, modes, graphics, 8-bit forms, unfinished sequences.
ACTED_ON = (
    "\x1b]0;evil\x07", "\x1b]2;evil\x1b\\", "\x1b]2;evil\x9c", "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]8;;http://evil\x1b\\", "\x1b[5A", "\x1b[H", "\x1b[3;4f", "\x1b[2J", "\x1b[2K", "\x1b[3J", "\x1bc",
    "\x1b[!p", "\x1b7", "\x1b[?1049h", "\x1b[?1000h", "\x1b[?2004l", "\x1b[6n", "\x1b[21t", "\x1b[>4;1m",
    "\x1b[?4m", "\x1bPq#0;2;0;0;0#0~~@@vv\x1b\\", "\x1b_Gf=100;AAAA\x1b\\", "\x1b^x\x1b\\", "\x1b(0", "\x0e",
    "\x07", "\x08\x08", "\x0c", "\x0b", "\x7f", "\x9b2J", "\x9d0;evil\x07", "\x90q\x9c", "\x85", "\x00",
    "\x1b[12;", "\x1b", "\x1b\x1b]0;x\x07",
)  # fmt: skip
BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
KEPT = (
    "plain", "tab\tand line\nand\r", "\x1b[31mred\x1b[0m", "\x1b[1;38;5;208mbold\x1b[m",
    "\x1b[38:2::1:2:3mx\x1b[39m", "Grüße, 世界, 👩‍🔬, ██▏ 10%", "[0m is no sequence",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shown"),
    [*((f"é{each}\nb", "é\nb") for each in ACTED_ON), *((f"{each}\n", f"{each}\n") for each in KEPT)],
    ids=ascii,
)
def test_colours_and_text_stay_and_what_a_terminal_acts_on_is_left_out(text: str, shown: str) -> None:
    assert harmless(text) == shown
    assert harmless_bytes(text.encode()) == shown.encode()
    inside = HarmlessPieces()  # a byte at a time, as a pipe may bring it
    assert b"".join(inside.feed(bytes([byte])) for byte in text.encode()) == shown.encode()


def test_marks_of_direction_are_spelled_out_and_of_bytes_that_are_no_text_8_bit_controls_go() -> None:
    assert harmless("a\u202eb") == "a\\u202eb"
    assert not set(BIDI) & set(harmless(BIDI))
    assert harmless_bytes(b"\xff\xfe caf\xe9") == b"\xff\xfe caf\xe9"
    assert harmless_bytes(b"a\x9b2Jb\x9d") == b"a2Jb"


def test_colours_end_with_their_line() -> None:
    assert harmless_line(b"\x1b[31mred") == b"\x1b[31mred\x1b[0m"
    assert harmless_line(b"\x1b[31mred\x1b[0m") == b"\x1b[31mred\x1b[0m"
    assert harmless_line(b"\x1b[8mhidden\x1b]0;t\x07") == b"\x1b[8mhidden\x1b[0m"
    assert harmless_line(b"plain") == b"plain"


SAFE = re.compile(r"(?:\x1b\[[0-9;:]{0,64}m|[\t\n\r]|[^\x00-\x1f\x7f-\x9f\udc80-\udc9f" + BIDI + r"])*")


@given(
    st.text(alphabet=st.sampled_from("\x1b[]();?>0123mJHPX^_\\\x07\x9b\x9d\x9c\x90\n\r\x08\u202eab\udc9b"), max_size=40)
)
def test_nothing_else_ever_passes(text: str) -> None:
    assert SAFE.fullmatch(harmless(text))
    assert harmless(harmless(text)) == harmless(text)


@given(st.lists(st.binary(max_size=12), max_size=8))
def test_nothing_else_ever_passes_in_pieces(pieces: list[bytes]) -> None:
    inside = HarmlessPieces()
    shown = b"".join(map(inside.feed, pieces))
    assert SAFE.fullmatch(shown.decode("utf-8", "surrogateescape"))


def test_an_unended_string_does_not_swallow_what_follows() -> None:
    inside = HarmlessPieces()
    assert inside.feed(b"a\x1b]0;never ended") == b"a"
    assert inside.feed(b" at all\nb\n") == b"\nb\n"
    long = HarmlessPieces()
    assert len(b"".join(long.feed(b"\x1b]" + b"x" * 1000) for _ in range(1000))) < 1 << 20
    assert long.feed(b"\nb\n").endswith(b"\nb\n")


#: Who writes to the launcher's stdout or stderr, and why what it writes is harmless there.
WRITERS = {
    "ui/terminal.py": "the filter of every command",
    "agent/guard/output.py": "its callers filter; rank 0 alone is byte for byte",
    "cli/hosts/hosts_console.py": "filters; rank 0 alone is byte for byte",
    "agent/plugin/outlets.py": "filters, where the guard is gone",
    "agent/plugin/session.py": "ddplaunch's own line",
    "agent/logs_specs.py": "ddplaunch's own line",
    "agent/rank_site/sitecustomize.py": "ddplaunch's own line, before torchrun has begun",
    "agent/warm/first_import.py": "ddplaunch's own line, into the rank's output",
    "hosts/session/job.py": "over ssh to the launcher, which filters",
    "hosts/ssh.py": "a command that the user may type on a host",
}
WRITES = re.compile(
    r"sys\.std(?:out|err)\.(?:write|buffer)|(?<![\w.\"'])print\(|os\.write\((?:1|2|sink|descriptor, view"
    r"|self\.descriptor|descriptor, f\"ddplaunch)|self\._out\.write|\bstream\.write\("
)


def test_nothing_writes_to_a_terminal_past_the_filter() -> None:
    root = Path(ddplaunch.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        name = str(path.relative_to(root))
        if name.startswith("examples/"):
            continue
        code = "\n".join(line.partition("  # ")[0] for line in path.read_text(encoding="utf-8").splitlines())
        if WRITES.search(code):
            found.add(name)
    assert found == set(WRITERS)
