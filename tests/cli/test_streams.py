"""Closed and narrow streams, full disks, interrupts: the status stays right and no traceback is shown."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ddplaunch.cli
from ddplaunch.cli.streams import StartReport, read_told
from tests.cli.cli_calls import Call, call, folder, spawn

__all__ = ["call", "folder"]
DRY = ["run", "2", "--dry-run", "--", "train.py"]


@pytest.mark.parametrize(
    ("words", "shell", "status"),
    [
        (DRY, "| head -1; exit ${PIPESTATUS[0]}", 0),
        (DRY, "| true; exit ${PIPESTATUS[0]}", 0),
        (DRY, ">&- 2>&- <&-", 0),
        (["run", "0", "--", "train.py"], "2>&-", 2),
        (["run", "0", "--", "train.py"], "2>/dev/full", 2),
        (["run", "2", "--data", "nowhere", "--", "train.py"], "2>/dev/full", 4),
        (["plan", "2"], ">/dev/full", 2),
        (["--help"], ">&-", 0),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_streams_that_nobody_reads(folder: Path, words: list[str], shell: str, status: int) -> None:
    result = spawn(words, folder, shell=shell)
    assert result.returncode == status, result.stderr
    assert b"Traceback" not in result.stderr and b"Exception ignored" not in result.stderr
    if "/dev/full" in shell and status == 2 and words[0] != "run":
        assert b"error[stdout-not-writable]: stdout cannot be written: No space left on device" in result.stderr
    assert not (folder / ".ddplaunch").exists()


@pytest.mark.slow
@pytest.mark.parametrize("shell", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_launch_with_closed_streams(folder: Path, shell: str) -> None:
    """No descriptor of torchrun or a rank may take the number of a closed one."""
    (folder / "seen.py").write_text(
        "import os, pathlib\nnames = [os.readlink(f'/proc/self/fd/{number}') for number in "
        "range(3)]\npathlib.Path('seen.txt').write_text(' '.join(names))\n"
    )
    result = spawn(["run", "1", "--", "seen.py"], folder, shell=shell)
    assert result.returncode == 0, result.stderr
    names = (folder / "seen.txt").read_text().split(" ")
    assert len(names) == 3 and all(re.match(r"/dev/null|pipe:", name) for name in names), names


def _opened_for_reading(fifo: Path) -> int:
    """Wait until somebody reads the FIFO; return a descriptor that keeps them waiting for its content."""
    deadline = time.monotonic() + 120
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # ENXIO: no reader yet
            assert time.monotonic() < deadline, "it never came to reading the file"
            time.sleep(0.01)


def test_interrupted_while_it_prepares(folder: Path) -> None:
    """A file that never answers (a FIFO that nobody writes to) is left at Ctrl-C."""
    os.mkfifo(folder / "e")
    command = [sys.executable, "-m", "ddplaunch", "run", "1", "--hostfile", "e", "--", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    writer = _opened_for_reading(folder / "e")
    err = b""
    for _ in range(12):  # one that arrives between two system calls is only noticed with the next
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, err = process.communicate(timeout=10)
            break
    os.close(writer)
    assert process.returncode == 130, err
    assert b"Traceback" not in err
    assert sorted(path.name for path in folder.iterdir()) == ["e", "train.py"]


def test_no_color(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in call("run", "0", "--", "train.py").err
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in call("run", "0", "--", "train.py").err
    assert "\x1b" not in call("plan", "2", "--batch-size", "8").out


@pytest.mark.parametrize(
    "words", [["run", "0", "--", "train.py"], ["run", "2", "train.py"], ["plan", "2", "--batch-size", "8"]]
)
def test_forty_columns(call: Call, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    said = call(*words)
    assert all(len(line) <= 40 for line in said.err.splitlines()), said.err


def test_an_encoding_without_signs(folder: Path) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for words in (["plan", "2", "--batch-size", "8"], DRY):
        result = spawn(words, folder, ascii_only)
        assert result.returncode == 0, result.stderr
        result.stdout.decode("ascii")


def test_alone_it_shows_what_it_can_do(call: Call) -> None:
    said = call()
    assert said.status == 2 and call("--", "train.py") == said
    assert all(f" {command} " in said.out for command in ("run", "plan", "doctor", "explain"))
    assert "ddplaunch doctor " in said.out
    for words in (["--help"], ["-h"], ["run", "-h"], ["run", "2", "--help", "--", "train.py"]):
        shown = call(*words)
        assert shown.status == 0 and "Usage: ddplaunch" in shown.out and shown.err == ""
    version = call("--version")
    assert version.status == 0 and re.fullmatch(r"ddplaunch \d+\.\d+\.\d+\n", version.out)


def test_sentences_are_wrapped_for_the_terminal() -> None:
    """``say`` does that; ``tell`` writes what was laid out already."""
    room = Path(ddplaunch.cli.__file__).parent
    for path in room.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "tell":
                (told,) = node.args
                parts = told.values if isinstance(told, ast.JoinedStr) else [told]
                text = "".join(str(part.value) for part in parts if isinstance(part, ast.Constant))
                assert text[:1] in ("", "\r", "\n"), f"{path.name}:{node.lineno}: a sentence is for `say`"


@pytest.mark.parametrize("words", ["top", "stop", "stacks", "clean --dry-run"])
def test_answers_about_nothing_fit_a_narrow_terminal(call: Call, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    said = call(*words.split())
    assert said.status == 0
    for line in (said.out + said.err).splitlines():
        # A command to type and a path (`clean` names every user's ranks without a record) are not broken.
        assert len(line) <= 40 or line.count("`") == 2 or " " not in line.strip(), line


def test_what_was_told_outlives_the_name_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "told.jsonl"
    path.write_text('{"launched": {"run_id": "one", "directory": "/runs/one"}}\n[]\n{"launched": 1}\n{"finding')
    with path.open("rb") as kept:
        path.unlink()
        assert read_told(kept.fileno()) == StartReport((), "one", Path("/runs/one"))
        assert read_told(kept.fileno()).run_id == "one"
