"""Closed and narrow streams, full disks, interrupts: the status stays right and no traceback is shown."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
from pathlib import Path

import pytest

from ddplaunch import __version__
from ddplaunch.cli import main, streams
from ddplaunch.cli.streams import StartReport, read_told
from tests.cli.cli_calls import Call, Said, spawn


@pytest.mark.parametrize(
    ("words", "shell", "status"),
    [(["run", "0", "--", "train.py"], "2>/dev/full", 2), (["plan", "2"], ">/dev/full", 2), (["--help"], ">&-", 0)],
)
def test_streams_that_nobody_reads(folder: Path, words: list[str], shell: str, status: int) -> None:
    result = spawn(words, folder, shell=shell)
    assert result.returncode == status, result.stderr
    assert b"Traceback" not in result.stderr and b"Exception ignored" not in result.stderr
    if "/dev/full" in shell and status == 2 and words[0] != "run":
        assert b"error[stdout-not-writable]: stdout cannot be written: No space left on device" in result.stderr
    assert not (folder / ".ddplaunch").exists()


@pytest.mark.slow
def test_a_launch_with_closed_streams(folder: Path) -> None:
    """No descriptor of torchrun or a rank may take the number of a closed one."""
    (folder / "seen.py").write_text(
        "import os, pathlib\nnames = [os.readlink(f'/proc/self/fd/{number}') for number in "
        "range(3)]\npathlib.Path('seen.txt').write_text(' '.join(names))\n"
    )
    result = spawn(["run", "1", "--", "seen.py"], folder, shell=">&- 2>&- <&-")
    assert result.returncode == 0, result.stderr
    names = (folder / "seen.txt").read_text().split(" ")
    assert len(names) == 3 and all(re.match(r"/dev/null|pipe:", name) for name in names), names


@pytest.mark.parametrize(
    ("raised", "status", "shown"),
    [
        (KeyboardInterrupt(), 130, ""),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error[stdout-not-writable]"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 2, "error[stdout-not-writable]"),
        (OSError(errno.EIO, "Input/output error"), 2, "error[stdout-not-writable]"),
        (OSError(errno.EFBIG, "File too large"), 2, "error[stdout-not-writable]"),
        (OSError(errno.EPERM, "Operation not permitted"), 3, "PermissionError at test_streams.py:"),
        (ValueError("x"), 3, "ValueError at test_streams.py:"),
        (OSError(errno.ENOSPC, "No space left on device", "run.json"), 3, "OSError at test_streams.py:"),
    ],
)
def test_what_ends_a_command(
    call: Call, monkeypatch: pytest.MonkeyPatch, raised: BaseException, status: int, shown: str
) -> None:
    before = signal.getsignal(signal.SIGINT)
    handlers = []

    def fail(words: list[str]) -> None:
        handlers.append(signal.getsignal(signal.SIGINT))
        raise raised

    monkeypatch.setattr(main, "dispatch", fail)
    try:
        for handler in (signal.SIG_DFL, signal.SIG_IGN):  # by nohup
            signal.signal(signal.SIGINT, handler)
            said = call("submit" if handler == signal.SIG_IGN else "ps", "2", bug=status == 3)
            assert said.status == status and said.out == "" and shown in " ".join(said.err.split())
            assert ("this is a bug in ddplaunch" in said.err) is ("Traceback" in said.err) is (status == 3)
            assert ("nothing was submitted" in said.err) is (handler == signal.SIG_IGN and status == 2)
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert handlers == [signal.default_int_handler, signal.SIG_IGN]


def test_a_signal_ends_a_trial_unless_it_was_ignored() -> None:
    numbers = (signal.SIGTERM, signal.SIGHUP)
    try:
        for ended, ignored in (numbers, numbers[::-1]):
            signal.signal(ended, signal.SIG_DFL)
            signal.signal(ignored, signal.SIG_IGN)
            with streams.ending_by_signals(print):
                assert [signal.getsignal(number) for number in (ended, ignored)] == [print, signal.SIG_IGN]
            assert [signal.getsignal(number) for number in (ended, ignored)] == [signal.SIG_DFL, signal.SIG_IGN]
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def test_alone_it_shows_what_it_can_do(call: Call) -> None:
    said = call()
    assert said.status == 2 and call("--", "train.py") == said
    assert call("--version") == call("version") == Said(0, f"ddplaunch {__version__}\n", "")
    assert all(f" {command} " in said.out for command in ("run", "plan", "doctor", "explain"))
    assert "ddplaunch doctor " in said.out
    for words in (["--help"], ["-h"], ["run", "train.py", "-h"], ["run", "2", "--help", "--", "train.py"]):
        shown = call(*words)
        assert shown.status == 0 and "Usage: ddplaunch" in shown.out and shown.err == ""


@pytest.mark.parametrize(("parents", "done"), [((7, 7), ["at its end"]), ((7, 1), ["at its end", "now"]), ((1,), [])])
def test_a_launch_ends_with_the_program_that_started_it(
    monkeypatch: pytest.MonkeyPatch, parents: tuple[int, ...], done: list[str]
) -> None:
    parent, ended = iter(parents), list[str]()
    monkeypatch.setattr(os, "getppid", lambda: next(parent))
    monkeypatch.setattr(streams, "get_signal_at_parents_end", lambda number: ended.append("at its end"))
    monkeypatch.setattr(os, "kill", lambda pid, number: ended.append("now"))
    monkeypatch.setenv(streams.VARIABLE, "7:/told")
    streams.end_with_starter()
    assert ended == done


def test_the_kernel_sends_a_signal_at_the_end_of_the_parent() -> None:
    number = ctypes.c_int()
    for wanted in (signal.SIGTERM, 0):
        streams.get_signal_at_parents_end(wanted)
        ctypes.CDLL(None).prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG
        assert number.value == wanted


def test_what_was_told_outlives_the_name_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "told.jsonl"
    path.write_text('{"launched": {"run_id": "one", "directory": "/runs/one"}}\n[]\n{"launched": 1}\n{"finding')
    with path.open("rb") as kept:
        path.unlink()
        assert read_told(kept.fileno()) == StartReport((), "one", Path("/runs/one"))
        assert read_told(kept.fileno()).run_id == "one"
    assert streams.asked(path) == {streams.VARIABLE: f"{os.getpid()}:{path}"}
    monkeypatch.setenv(streams.VARIABLE, f"{os.getppid()}:{path}")
    for record, directory in ((Path("/runs/two"), Path("/runs/two")), ("a full disk", None)):
        streams.tell_launch_to_starter("two", record)
        assert read_told(path) == StartReport((), "two", directory)
