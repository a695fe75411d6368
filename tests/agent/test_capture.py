"""What the guard records and shows: complete, in order, as it is, and whatever happens to disk and console."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import termios
import time
import tty
from pathlib import Path

import pytest

from ddplaunch.agent.protocol import send
from tests.agent.guarded import PATIENCE_S, Guarded, read_for, until

BOTH = """
import sys
print('to out', {0})
print('to err', {0}, file=sys.stderr)
sys.stdout.buffer.write(b'\\xff\\x00 end')
"""


def test_two_ranks_are_recorded_and_rank_0_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits for a slow disk."""
    monkeypatch.setenv("GUARD_TEST_HANGS", "rank-1.err")
    monkeypatch.setenv("GUARD_TEST_HANGS_S", "0.5")
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as console, err.open("wb") as errors, Guarded(tmp_path, console, errors) as guarded:
        guarded.attempt([BOTH.format(0), BOTH.format(1)])
        guarded.wait()
        status, ended = guarded.end()
        assert status == 0
        for rank in range(2):
            assert guarded.file(f"attempt-0/rank-{rank}.out") == f"to out {rank}\n".encode() + b"\xff\x00 end"
            assert guarded.file(f"attempt-0/rank-{rank}.err") == f"to err {rank}\n".encode()
        seen = [(rank.exit_code, rank.signal, rank.ended_by) for rank in ended.attempts[0].ranks]
        assert seen == [(0, None, "itself")] * 2
        files = [name for rank in ended.attempts[0].ranks for name in (rank.out, rank.err)]
        assert files == [f"node-0/attempt-0/rank-{rank}.{end}" for rank in range(2) for end in ("out", "err")]
        assert ended.unrecorded is None
    assert out.read_bytes() == b"to out 0\n\xff\x00 end"
    assert err.read_bytes() == b"to err 0\nconcluded\n"


@pytest.mark.slow
def test_the_launcher_speaks_on_a_line_of_its_own_and_shows_the_cursor_again(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    tty.setraw(slave)
    with Guarded(tmp_path, slave, slave) as guarded:
        guarded.attempt(["import sys; sys.stdout.write('\\x1b[?25l 3/10 [==>  ]'); sys.exit(4)"], terminal=True)
        guarded.wait()
        status, ended = guarded.end("failed")
        assert status == 4 and ended.attempts[0].first == 0
    shown = read_for(master, lambda data: data.endswith(b"concluded\n"))
    assert shown == b"\x1b[?25l 3/10 [==>  ]\x1b[?25h\nconcluded\n"
    os.close(master)
    os.close(slave)


RESIZED = """
import os, signal, time
seen = []
signal.signal(signal.SIGWINCH, lambda *_: seen.append(tuple(os.get_terminal_size())))
print("waits", flush=True)
while not seen:
    time.sleep(0.01)
print(seen)
"""


def test_a_window_that_changes_before_the_guard_knows_the_rank_is_the_ranks_too(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    tty.setraw(slave)
    with Guarded(tmp_path, slave, slave) as guarded:
        guarded.attempt([RESIZED], terminal=True, announce=False)
        shown = read_for(master, lambda data: b"waits\n" in data)
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 90, 0, 0))
        guarded.signalled(signal.SIGWINCH)
        time.sleep(0.2)  # the guard has heard of it, and knows no rank
        guarded.started()
        guarded.wait()
        guarded.end()
        shown += read_for(master, lambda data: b"concluded\n" in data)
    assert b"[(90, 44)]\n" in shown
    os.close(master)
    os.close(slave)


def test_a_reader_that_is_gone_costs_neither_the_rank_nor_its_record(tmp_path: Path) -> None:
    go = tmp_path / "go"
    program = f"import os\nwhile not os.path.exists({str(go)!r}): print('more' * 1000)\nprint('end')"
    reading, writing = os.pipe()
    with (tmp_path / "err").open("wb") as errors, Guarded(tmp_path, writing, errors) as guarded:
        os.close(writing)
        guarded.attempt([program])
        read_for(reading, lambda data: b"more\n" in data)
        os.close(reading)
        size = len(guarded.file("attempt-0/rank-0.out"))
        until(lambda: len(guarded.file("attempt-0/rank-0.out")) > size + (1 << 20), "it goes on")
        go.touch()
        guarded.wait()
        status, ended = guarded.end()
        assert (guarded.ranks[0].returncode, status, ended.unrecorded) == (0, 0, None)
        assert guarded.file("attempt-0/rank-0.out").endswith(b"more\nend\n")


@pytest.mark.slow
def test_a_blocked_console_holds_up_the_shown_rank_alone(tmp_path: Path) -> None:
    loud = "while True: print('z' * 99)"
    busy = "import time\nwhile True: print('step'); time.sleep(0.001)"
    reading, writing = os.pipe()
    with Guarded(tmp_path, writing, 2) as guarded:
        os.close(writing)
        guarded.attempt([loud, busy])

        def held_up() -> bool:
            before = len(guarded.file("attempt-0/rank-0.out"))
            time.sleep(0.3)
            return before > 0 and len(guarded.file("attempt-0/rank-0.out")) == before

        until(held_up, "rank 0 waits for its reader")
        size = len(guarded.file("attempt-0/rank-1.out"))
        until(lambda: len(guarded.file("attempt-0/rank-1.out")) > size + 50, "rank 1 goes on")
        read_for(reading, lambda data: len(data) > 3 << 20)  # it goes on as soon as somebody reads
        os.kill(guarded.ranks[1].pid, signal.SIGKILL)
        until(lambda: guarded.ranks[1].poll() is not None, "rank 1 killed")
        guarded.channel.close()  # torchrun is gone as far as the guard can see
        until(lambda: guarded.ranks[0].poll() is not None, "rank 0 ended by the guard")
        assert guarded.ranks[0].returncode == -signal.SIGTERM
        until(guarded.ended_file.exists, "concluded with nobody reading")
        os.close(reading)
        guarded.guard.wait(PATIENCE_S)
        seen = guarded.seen()
        assert seen.launcher_died and seen.attempts[0].first == 1
        assert [rank.ended_by for rank in seen.attempts[0].ranks] == ["launcher", "itself"]


@pytest.mark.slow
def test_a_child_that_holds_the_pipe_does_not_hold_up_the_end(tmp_path: Path) -> None:
    program = "import subprocess; p = subprocess.Popen(['sleep', '60']); print('child', p.pid, end='')"
    out = tmp_path / "out"
    with out.open("wb") as console, Guarded(tmp_path, console, 2, show="all", world_size=2) as guarded:
        guarded.attempt([program])
        guarded.wait()
        guarded.end()  # its own patience is the deadline
        child = int(guarded.file("attempt-0/rank-0.out").split()[1])
        os.kill(child, signal.SIGKILL)  # and it was left running: nobody but the script knows what it is for
    assert out.read_bytes().endswith(b":0] child %d\n" % child), "the unfinished line is shown"


def test_a_guard_that_fails_says_so_to_whom_it_may_concern(tmp_path: Path) -> None:
    with Guarded(tmp_path, 2, 2) as guarded:
        send(guarded.channel, {"op": "attempt", "attempt": 0})  # of which ranks?
        assert guarded.guard.wait(PATIENCE_S) == 70
        assert b"the guard failed\nTraceback" in guarded.file("launcher.err")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hangs", "said"), [(True, "the disk took nothing for 5 s"), (False, "rank-0.out: is no plain file")]
)
def test_a_disk_that_hangs_holds_nothing_up_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool, said: str
) -> None:
    """A file that opens never, as on a dead server; a pipe in its place, which nobody reads, is not waited for."""
    program = "for _ in range(100_000): print('h' * 99)"
    out = tmp_path / "out"
    monkeypatch.setenv("GUARD_TEST_HANGS", "rank-0.out" if hangs else "")
    with out.open("wb") as console, Guarded(tmp_path, console, 2) as guarded:
        file = guarded.directory / "node-0/attempt-0/rank-0.out"
        file.parent.mkdir(parents=True)
        os.mkfifo(file)
        guarded.attempt([program, program])
        guarded.wait()
        status, ended = guarded.end()
        assert status == 0 and ended.unrecorded == said
    assert out.stat().st_size == 100_000 * 100


@pytest.mark.slow
def test_64_ranks_cost_little_memory(tmp_path: Path) -> None:
    program = "import sys, time\nfor _ in range(2000): print('w' * 99)\nsys.stdin.readline()"
    out = tmp_path / "out"
    with out.open("wb") as console, Guarded(tmp_path, console, 2) as guarded:
        guarded.attempt([f"{program}\ntime.sleep(300)"] * 64)
        last = guarded.directory / "node-0/attempt-0/rank-63.out"
        files = [last.with_name(f"rank-{rank}.out") for rank in range(64)]
        until(lambda: all(file.exists() and file.stat().st_size == 200_000 for file in files), "all recorded", 120)
        status = Path(f"/proc/{guarded.guard.pid}/status").read_text()
        assert int(status.partition("VmHWM:")[2].split()[0]) < 25_000, "kB"
        for process in guarded.ranks.values():
            process.kill()
