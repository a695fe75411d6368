from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest

from ddplaunch.ui.terminal import Terminal, speak, write


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environ", "terminal", "expected"),
    [
        ({}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
    ],
)
def test_styled(environ: Mapping[str, str], terminal: bool, expected: bool) -> None:
    assert Terminal.of(Tty() if terminal else io.StringIO(), environ).styled is expected


@pytest.mark.parametrize(("columns", "expected"), [("40", 40), ("", 80), ("0", 80), ("wide", 80), ("3", 20), ("²", 80)])
def test_width_of_what_is_no_terminal(columns: str, expected: int) -> None:
    assert Terminal.of(io.StringIO(), {"COLUMNS": columns}).width == expected


def test_width_of_a_real_terminal() -> None:
    import fcntl
    import struct
    import termios

    master, slave = os.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 47, 0, 0))
        with open(slave, "w", closefd=False) as stream:
            assert Terminal.of(stream, {"TERM": "xterm"}) == Terminal(47, styled=True)
    finally:
        os.close(master)
        os.close(slave)


def test_streams_that_are_gone() -> None:
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    assert Terminal.of(None, {}) == Terminal(80, styled=False)
    assert Terminal.of(closed, {}) == Terminal(80, styled=False)
    assert write("x", closed) is False
    assert speak("x", opened := io.StringIO()) and opened.getvalue() == "x"


@pytest.mark.parametrize(
    ("encoding", "expected"), [("utf-8", "ü × \\udcff".encode()), ("ascii", b"\\xfc \\xd7 \\udcff")]
)
def test_what_the_encoding_lacks_is_written_as_escapes(encoding: str, expected: bytes) -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding)
    assert write("ü × \udcff", stream)
    assert buffer.getvalue() == expected


@pytest.mark.parametrize("streams", ["", "sys.stdout = sys.stderr = None;"])
def test_a_reader_that_leaves_costs_neither_a_traceback_nor_the_exit_status(streams: str) -> None:
    code = f"import sys; {streams} from ddplaunch.ui.terminal import speak, write\n"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", f"{code}sys.exit(write('x' * 100000) or (sys.stderr is None and speak(chr(120))))"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
