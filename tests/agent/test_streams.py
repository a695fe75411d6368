"""Lines of several ranks on one console: whole, with a prefix, bars as what a terminal shows in the end."""

from __future__ import annotations

import os
import pty
import resource
import time
import tty
from pathlib import Path

import pytest

from ddplaunch.agent.guard.output import Sink
from ddplaunch.agent.guard.rank_streams import LONGEST_LINE_BYTES, Prefixed
from tests.agent.guarded import Guarded, read_for


def shown(*pieces: bytes) -> bytes:
    lines = Prefixed(b"[a:1] ")
    return b"".join(lines.feed(piece) for piece in pieces) + lines.flush()


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((b"one\ntwo\n",), b"[a:1] one\n[a:1] two\n"),
        ((b"o", b"ne\nt", b"wo"), b"[a:1] one\n[a:1] two\n"),
        ((b"\n\n",), b"[a:1] \n[a:1] \n"),
        ((), b""),
        ((b"dos\r", b"\n"), b"[a:1] dos\n"),
        ((b"10%\r", b"20%\r"), b"[a:1] 20%\n"),
        ((b"a long line\rshort\n",), b"[a:1] short\n"),
        ((b"\r\r",), b""),
        ((b"10%\r20%", b"\r30%", b" of 9\n"), b"[a:1] 30% of 9\n"),
        ((b"\x1b[31mred\x1b[0m\rlast\n",), b"[a:1] last\n"),
        ((b"\x1b[31mred\x1b[0m\n",), b"[a:1] \x1b[31mred\x1b[0m\n"),
        ((b"\xff 1\r\xff 2\n",), b"[a:1] \xff 2\n"),
    ],
)
def test_lines(pieces: tuple[bytes, ...], expected: bytes) -> None:
    assert shown(*pieces) == expected


HOSTILE = b"\x1b[31mred\x1b]0;title\x07\x1b[2J\x1b[5A \xc2\x9b2J \xe2\x80\xae \xff\n"


def test_a_terminal_gets_of_a_prefixed_rank_only_text_and_colours() -> None:
    lines = Prefixed(b"[a:1] ", on_terminal=True)
    shown = b"".join(lines.feed(HOSTILE[i : i + 1]) for i in range(len(HOSTILE)))
    assert shown == b"[a:1] \x1b[31mred  \\u202e \xff\x1b[0m\n"
    assert Prefixed(b"[a:1] ").feed(HOSTILE) == b"[a:1] " + HOSTILE


def printing(data: bytes) -> str:
    return f"import os; os.write(1, {data!r})"


def test_on_a_terminal_rank_0_alone_is_byte_for_byte_and_two_ranks_are_harmless(tmp_path: Path) -> None:
    for show, expected in (("0", HOSTILE), ("all", b"\x1b[31mred  \\u202e \xff\x1b[0m\n")):
        master, slave = pty.openpty()
        tty.setraw(slave)
        folder = tmp_path / show
        folder.mkdir()
        with Guarded(folder, slave, slave, show=show, world_size=2) as run:
            run.attempt([printing(HOSTILE), printing(HOSTILE)], terminal=True)
            run.wait()
            run.end()
            shown = read_for(master, lambda data: b"concluded\n" in data)
            assert run.file("attempt-0/rank-1.out") == HOSTILE
        assert shown.count(expected) == (1 if show == "0" else 2)
        assert (b"\x1b]0;" in shown) is (show == "0")
        os.close(master)
        os.close(slave)


def test_a_line_of_10_mb_stays_one_line() -> None:
    piece = b"x" * (1 << 16)
    assert shown(*[piece] * 160, b"\n") == b"[a:1] " + piece * 160 + b"\n"


def test_a_line_without_end_is_shown_in_pieces() -> None:
    text = shown(*[b"x" * (1 << 20)] * 20)
    assert text.count(b"x") == 20 << 20
    assert 1 < text.count(b"[a:1] ") <= (20 << 20) // LONGEST_LINE_BYTES + 1


def test_a_bar_that_runs_for_hours_takes_no_room() -> None:
    lines = Prefixed(b"[a:1] ")
    for number in range(20_000):
        assert lines.feed(b"\rstep %5d of 20000 [====>     ] 3.1 it/s" % number) == b""
    assert sum(map(len, lines._open)) < 1 << 15
    assert lines.feed(b"\n") == b"[a:1] step 19999 of 20000 [====>     ] 3.1 it/s\n"


def test_a_console_that_another_program_made_non_blocking_loses_nothing() -> None:
    """Its descriptor may lie beyond those that select(2) takes, under a shell with many open files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2048), limits[1]))
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    sink = Sink(os.dup2(writing, 2000), os.eventfd(0))
    sink.put(b"x" * 300_000)
    pieces = [os.read(reading, 1 << 16)]
    while sum(map(len, pieces)) < 300_000:
        pieces.append(os.read(reading, 1 << 16))
    assert sink.writer.wait(time.monotonic() + 10) and not sink.gone
    for descriptor in (reading, writing, 2000):
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
