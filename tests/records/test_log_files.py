"""Logs of a run: merged where lines have a time, whole lines with who speaks, followed while they grow."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddplaunch.cli.commands.while_it_runs.logs import is_over, parse_ranks
from ddplaunch.records.explain_sources import named_files, recorded_run
from ddplaunch.records.log_files import LogFile, blocks, follow_logs, log_files, part_of, stamp_s
from ddplaunch.ui.logs_view import Lines, prefix_of
from ddplaunch.ui.terminal import Terminal
from tests.agent.plugin_runs import on_terminal
from tests.cli.cli_calls import Call, spawn
from tests.records.fake_runs import DEADLINE_S, StartRun, outcome, processes_json, record, wait_for


def log(directory: Path, rank: int, text: str, attempt: int = 0, node: int = 0, stream: str = "out") -> Path:
    """Append to what a rank printed."""
    path = directory / f"node-{node}" / f"attempt-{attempt}" / f"rank-{rank}.{stream}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(text.encode())
    return path


@pytest.fixture
def run(folder: Path) -> Path:
    """Return the directory of a run of this host, without any output."""
    return record(folder / ".ddplaunch", "r")


HOST = os.uname().nodename
LOCAL_S = time.mktime((2026, 11, 21, 14, 30, 12, 0, 0, -1))
HOSTILE = (
    "\x1b[31mred\x1b[0m \x1b]0;TITLE\x07\x1b]52;c;Q0xJUA==\x07\x1b[2J\x1b[H\x1b[?1049h\x9b2J\u202e"
    "RuntimeError: \x1bcboom\n"
    'Traceback (most recent call last):\n  File "t\x1b]0;TITLE\x07.py", line 1\nRuntimeError: \x1b[2Jboom \u202e\n'
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"2026-11-21T14:30:12.5Z step", 1795271412.5),
        (b"2026-11-21 20:00:12,250+05:30 step", 1795271412.25),
        (b"[2026-11-21 09:30:12 -0500] [7] [INFO]", 1795271412.0),
        (b"INFO 2026-11-21 14:30:12Z x", 1795271412.0),
        (b"[INFO|2026-11-21T14:30:12Z x", 1795271412.0),
        (b"2026/11/21 14:30:12Z - mmengine - INFO", 1795271412.0),
        (b"11/21/2026 14:30:12 - INFO - __main__ - x", LOCAL_S),
        (b"[11/21 14:30:12 d2.engine]: x", LOCAL_S),
        (b"[rank3]:[W1121 14:30:12.250 proc.cpp:1] x", LOCAL_S + 0.25),
        (b"2026-11-99 99:99:99Z x", 1802320839.0),  # nonsense is a time as good as any; no error
        (b"2026-99-99 99:99:99Z x", None),
        (b"0000-01-01 00:00:00Z x", None),
        (b"step 3 at 2026-11-21 14:30:12", None),
    ],
)
def test_times_at_the_start_of_lines(line: bytes, expected: float | None) -> None:
    assert stamp_s(line, 2026) == expected


def test_lines_with_times_are_merged_and_those_without_follow_their_own(call: Call, run: Path) -> None:
    log(run, 0, "2026-11-21 10:00:01 a\nTraceback\n  at x\n2026-11-21 10:00:05 b\n")
    log(run, 1, "2026-11-21 10:00:02 c\n2026-11-21 10:00:03 d")
    log(run, 2, "no 10%\r no 20%\r no time\nat all\r\n")  # a bar is what is left of it
    said = call("logs")
    assert said.out.splitlines() == [
        f"[{HOST}:2]  no time",
        f"[{HOST}:2] at all",
        f"[{HOST}:0] 2026-11-21 10:00:01 a",
        f"[{HOST}:0] Traceback",
        f"[{HOST}:0]   at x",
        f"[{HOST}:1] 2026-11-21 10:00:02 c",
        f"[{HOST}:0] 2026-11-21 10:00:05 b",
        f"[{HOST}:1] 2026-11-21 10:00:03 d",  # it has no end yet: a line is shown when it is whole
    ]
    assert said.err == "output of r\n"


def test_without_times_ranks_come_one_after_the_other(call: Call, run: Path) -> None:
    for rank in (1, 0, 10, 2):
        log(run, rank, f"out of {rank}\n")
        log(run, rank, f"err of {rank}\n", stream="err")
    log(run, 0, "again\n", attempt=1)
    said = call("logs", "r")
    assert [line.partition("] ")[2] for line in said.out.splitlines()] == [
        *(f"{stream} of {rank}" for rank in (0, 1, 2, 10) for stream in ("out", "err")),
        "again",
    ]


def test_one_rank_is_shown_byte_for_byte(run: Path) -> None:
    bar = HOSTILE.encode() + b"10%\r20%\r\n\xff\xfe no newline"
    path = log(run, 0, "")
    path.write_bytes(bar)
    log(run, 1, "other\n")
    said = spawn(["logs", "r", "--rank", "0"], run.parents[2])
    assert (said.returncode, said.stdout, said.stderr) == (0, bar, b"")


def test_as_json_each_piece_names_its_file_and_no_byte_is_lost(call: Call, run: Path) -> None:
    bar = b"caf\xc3\xa9 10%\r20%\xff"
    log(run, 0, "").write_bytes(bar)
    log(run, 1, "other\n", node=1)
    pieces = [json.loads(line) for line in call("logs", "--json").out.splitlines()]
    assert [(piece["node"], piece["attempt"], piece["file"]) for piece in pieces] == [
        (0, 0, "rank-0.out"),
        (1, 0, "rank-1.out"),
    ]
    assert pieces[0]["text"].encode("utf-8", "surrogateescape") == bar and pieces[1]["text"] == "other\n"
    (run.parent / "silent").mkdir()
    assert call("logs", "--json", str(run.parent / "silent")).out == ""


def test_the_last_lines_of_each_output(call: Call, run: Path) -> None:
    log(run, 0, "".join(f"step {number}\n" for number in range(20_000)))
    log(run, 1, "a\nb\nc")
    last = call("logs", "--lines", "2").out.splitlines()
    assert last == [f"[{HOST}:0] step 19998", f"[{HOST}:0] step 19999", f"[{HOST}:1] b", f"[{HOST}:1] c"]
    assert call("logs", "--lines", "0").out == ""
    log(run, 0, "err\n", stream="err")
    assert call("logs", "--rank", "0", "--lines", "1").out == "step 19999\nerr\n"
    log(run, 0, "again\n", attempt=1)
    assert call("logs", "--rank", "0", "--lines", "1").out == "again\n"
    log(run, 2, "\nz\n")
    assert call("logs", "--rank", "2", "--lines", "1").out == "z\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "holds no output of any rank"),
        (["--rank", "x"], "`--rank x` names no rank"),
        (["--rank", "3-1"], "`--rank 3-1` names no rank"),
        (["--rank", "7"], "holds no output of rank 7"),
        (["--lines", "-3"], "--lines"),
        (["--lines", "many"], "`--lines many` is not a number"),
        (["nope"], "no record of a run `nope`"),
        (["--run-dir", "elsewhere"], "no record of a run in"),
    ],
)
def test_what_cannot_be_is_refused_with_a_fix(call: Call, run: Path, words: list[str], says: str) -> None:
    if words:
        log(run, 0, "x\n")
    said = call("logs", *words)
    assert (said.status, said.out) == (2, "")
    assert says in said.err and "fix:" in said.err


def test_ranks_as_values() -> None:
    assert parse_ranks("0,3, 5-7") == frozenset({0, 3, 5, 6, 7}) and parse_ranks("all") is None


def followed(
    directory: Path, positions: dict[Path, int], over: Callable[[], bool]
) -> Iterator[tuple[LogFile | None, bytes]]:
    """Follow, and fail where that never ends."""
    end_s = time.monotonic() + DEADLINE_S
    for item in follow_logs(directory, None, positions, over, over_s=0.05):
        assert time.monotonic() < end_s, "it goes on and on"
        yield item


def test_following_growth_new_ranks_and_restarts(tmp_path: Path) -> None:
    directory = record(tmp_path, "r")
    path = log(directory, 0, "before\nnow ")
    later = [(0, "and on\n", 0), (1, "late rank\n", 0), (1, "restarted\n", 1), (0, "last words", 0)]
    seen = {0: b"", 1: b""}
    for file, data in followed(directory, {path: 7}, lambda: not later):
        if file is not None:
            seen[file.rank] += data
        elif later:
            log(directory, *later.pop(0))
    assert seen == {0: b"now and on\nlast words", 1: b"late rank\nrestarted\n"}
    follower = followed(directory, {}, lambda: False)
    assert next(follower)[1]
    shutil.rmtree(directory)
    assert list(follower), "a record that is removed ends it too"


def test_when_a_run_is_over(start_run: StartRun, tmp_path: Path) -> None:
    run = start_run("over")
    directory = record(tmp_path / ".ddplaunch", run.run_id)
    over = is_over(directory)
    assert wait_for(lambda: not over())  # a process has the run's id from its exec on
    run.end()
    assert wait_for(over)
    processes_json(directory, host="node-9")
    assert is_over(directory)() is False  # nobody here knows
    outcome(directory)
    assert is_over(directory)() is True


@pytest.mark.slow
def test_follow_shows_the_last_lines_and_goes_on_to_the_end(start_run: StartRun, folder: Path) -> None:
    run = start_run("tail", cwd=folder)
    directory = record(folder / ".ddplaunch", run.run_id)
    log(directory, 0, "".join(f"old {number}\n" for number in range(30)))
    log(directory, 1, "waiting 1%\r")
    command = [sys.executable, "-m", "ddplaunch", "logs", run.run_id, "--follow"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tail:
        assert tail.stdout is not None and tail.stderr is not None
        lines = [tail.stdout.readline() for _ in range(11)]
        assert lines[:10] == [f"[{HOST}:0] old {number}\n".encode() for number in range(20, 30)]
        assert lines[10] == f"[{HOST}:1] waiting 1%\n".encode()  # a bar that ends no line is shown now and then
        log(directory, 0, "new\n")
        assert tail.stdout.readline() == f"[{HOST}:0] new\n".encode()
        run.end()
        outcome(directory)
        rest, said = tail.communicate(timeout=DEADLINE_S)
        assert (tail.returncode, rest, said) == (0, b"", b"")


def test_a_reader_that_goes_away_is_no_error(run: Path) -> None:
    log(run, 0, "x\n" * 1_000_000)
    said = spawn(["logs", "r"], run.parents[2], shell="| head -1")
    assert (said.returncode, said.stdout, said.stderr) == (0, f"[{HOST}:0] x\n".encode(), b"")


#: Runs one command line after the other.
COMMANDS = """
import sys
from ddplaunch.cli.main import main
for line in sys.argv[1:]:
    try:
        main(line.split())
    except SystemExit:
        print("=====", flush=True)
"""


def test_nothing_that_others_wrote_reaches_the_terminal_but_colours(run: Path) -> None:
    data = json.loads((run / "run.json").read_text())
    data["plan"]["target"]["name"] = data["argv"][-1] = f"train{HOSTILE}.py"
    (run / "run.json").write_text(json.dumps(data))
    log(run, 0, HOSTILE)
    log(run, 1, HOSTILE + "\x1b[8munended colour\n")
    cwd = run.parents[2]
    (cwd / "t.log").write_text(HOSTILE)
    outcome(run, "failed", first_failed_rank=0, notes=[HOSTILE])
    lines = ("logs", "logs --rank 0", "explain r", "explain t.log", "ps --all")
    command = ["env", "-u", "NO_COLOR", "-u", "TERM", sys.executable, "-c", COMMANDS, *lines]
    found = on_terminal(command, cwd)[1].decode().split("=====")
    for line, shown in zip(lines, found, strict=False):
        assert "boom" in shown or line == "ps --all"
        left = re.sub(r"\x1b\[[0-9;]*m", "", shown)
        assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", left), ascii(shown)
    assert f"\x1b[2m[{HOST}:0]\x1b[0m " in found[0] and len(found) == len(lines) + 1
    assert "\x1b[31mred\x1b[0m" in found[0] and "unended colour\x1b[0m" in found[0] and "TITLE" not in found[0]


def test_a_bar_off_a_terminal_is_a_line_now_and_then_and_a_line_without_end_is_cut() -> None:
    file = LogFile(Path("x"), 0, 0, 0, "err")
    lines = Lines(None, untouched=False)
    assert lines.take(file, b"\r") == b"" and lines.bars() == b""
    assert lines.take(file, b" 1%|\r 2%|\r 3") == b"" and lines.take(file, b"%|") == b""
    lines = Lines(None, untouched=False)
    lines.take(file, b"\r 0%|")  # shown as soon as it is whole, not some seconds later
    assert lines.bars() == b""
    lines.take(file, b"\r 1%|\r 2%|\r 3%")
    assert lines.bars() == b" 2%|\n" and lines.bars() == b""  # not again for some seconds
    assert lines.end() == b" 3%\n"
    lines = Lines(prefix_of({}, Terminal()))
    assert lines.take(file, b"y" * (2 << 20)).startswith(b"[node-0:0] yyy"), "it is not kept for ever"
    assert lines.take(file, b"z") == b"" and lines.end() == b"[node-0:0] z\n"


def test_parts_of_files_that_are_gone(tmp_path: Path) -> None:
    directory = record(tmp_path, "r")
    log(directory, 0, "x\n")
    (file,) = log_files(directory)
    part = part_of(file, None)
    file.path.unlink()
    assert list(blocks([part])) == [] and part_of(file, 5).end == 0
    assert log_files(directory / "nothing") == []


def test_logs_of_a_folder_have_the_ranks_of_their_names(folder: Path) -> None:
    for name in ("rank-3.err", "5/stdout.log", "host/stderr.log", "a.txt", "notes.md"):
        (folder / "logs" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "logs" / name).write_text("x\n")
    (folder / "logs" / "folder.log").mkdir()
    found = {Path(source.name).name: source.rank for source in named_files(["logs"]).sources}
    assert found == {"rank-3.err": 3, "stdout.log": 5, "stderr.log": None, "a.txt": None}


def test_the_facts_of_a_run_are_those_of_its_record_and_of_how_it_ended(run: Path) -> None:
    facts = recorded_run(run).facts
    assert facts is not None and facts.argv == ("ddplaunch", "run", "4") and facts.state is None
    outcome(run, "failed")
    facts = recorded_run(run).facts
    assert facts is not None and (facts.argv, facts.state) == (("ddplaunch", "run", "4"), "failed")
