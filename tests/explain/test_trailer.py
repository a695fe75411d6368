"""What launchers report of ranks' ends, in their several forms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddplaunch.explain.read.trailer import RankExit, Trailer, exit_code, status_text
from tests.explain.conftest import Same
from tests.explain.logs import failed, lines_of, summary

EXITS = Path(__file__).with_name("exits.txt")


def exits(text: str) -> list[RankExit]:
    trailer = Trailer()
    for line in lines_of(text):
        trailer.feed(line)
    return list(trailer.finish())


def test_what_the_agent_ended_is_marked() -> None:
    sent = "W0131 12:00:00.0 9 torch/distributed/elastic/api.py:1] Sending process 78 closing signal SIGTERM\n"
    forced = "W0131 12:00:00.0 9 torch/x.py:1] Unable to shutdown process 79 via 15, forcefully exiting via 9\n"
    found = exits(sent + forced + failed(1, 0, 77) + summary((1, -15, 78), (2, -9, 79), (0, 1, 77)))
    assert {each.rank: each.by_agent for each in found} == {0: False, 1: True, 2: True}
    (killed,) = exits(failed(-9, 2, 80))
    assert not killed.by_agent


def test_ends_in_the_words_of_launchers_shells_and_services(same: Same) -> None:
    """In ``exits.txt`` the status stands before each line that tells of an end, with the rank and the host."""
    marked = []
    for line in re.sub(r"(?m)^=> \S+ \S+ \S+: ", "", EXITS.read_text(encoding="utf-8")).splitlines(keepends=True):
        marks = [f"=> {end.code} {end.rank} {end.host}: " for end in exits(line)]
        marked.append("".join([*marks, line]))
    same(EXITS, "".join(marked))


def test_tracebacks_in_the_summary_belong_to_their_rank() -> None:
    trailer = Trailer()
    text = summary((3, 1, 50)).replace(
        "  traceback : To enable",
        '  traceback : Traceback (most recent call last):\n    File "a.py", line 1, in f\n  ValueError: x\n  To enable',
    )
    told = [trailer.feed(line) for line in lines_of(text)]
    (line,) = [each for each in told if each.text == "ValueError: x"]
    assert line.speaker.rank == 3 and line.speaker.host == "node-7"
    assert trailer.failed_summary is told[2]


def test_a_summary_without_a_host_is_of_the_one_that_its_lines_name() -> None:
    text = "the job has FAILED\n" + summary((3, 1, 50)).replace("node-7", "") + "loss 3\nother.py FAILED\n"
    trailer = Trailer()
    told = [trailer.feed(line) for line in lines_of(text.replace("\n", "\n[pod/worker-1/pytorch] "))]
    assert [(each.rank, each.host) for each in trailer.finish()] == [(3, "worker-1")]
    for between, rows in (("words\n", 0), (" words\n", 1)):
        cut_off = summary((3, 1, 50)).replace("  exitcode", f"{between}  exitcode")
        assert len(exits(cut_off)) == rows, "an entry ends with a line that is not indented"
    assert told[-3].speaker.rank is None, "an entry ends with its rule"
    assert trailer.failed_summary is not None and trailer.failed_summary.text == "train.py FAILED"


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (-9, "killed", "SIGKILL (exit code -9)"),
        (137, "killed", "SIGKILL (exit code 137)"),
        (247, "killed", "SIGKILL (exit code 247)"),
        (3, "unknown", "exit code 3"),
        *[(status, "unknown", f"exit code {status}") for status in (-65, 0, 128, 160, 166, 180, 240, 254, 255)],
        *[(status, "unknown", f"{name} (exit code {status})") for status, name in ((131, "SIGQUIT"), (138, "SIGUSR1"))],
        (159, "unknown", "SIGSYS (exit code 159)"),
        (253, "unknown", "SIGQUIT (exit code 253)"),
        (-10, "terminated", "SIGUSR1 (exit code -10)"),
        (-24, "time-limit", "SIGXCPU (exit code -24)"),
    ],
)
def test_what_a_status_alone_says(status: int, code: str, text: str) -> None:
    assert (exit_code(status), status_text(status)) == (code, text)
    assert status_text(status, seen=True) == (text if status < 0 else f"exit code {status}")
