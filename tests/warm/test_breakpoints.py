"""`breakpoint()` in a rank: asks where there is a terminal, and says what to do where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddplaunch.agent.rank_site import breakpoints
from tests.agent.plugin_runs import DEADLINE_S, RUN_ID, on_terminal
from tests.hosts.launching import clean_environment, ddplaunch

SCRIPT = """\
import os
x = 41
for _ in range(2):
    breakpoint()
x += 1
print("x is", x, "on rank", os.environ["RANK"])
"""


@pytest.mark.parametrize(
    ("environ", "stdin_terminal", "alone", "hook"),
    [
        ({}, True, True, None),
        ({}, True, False, "passed_over"),
        ({}, False, True, "without_terminal"),
        ({}, False, False, "without_terminal"),
        ({"PYTHONBREAKPOINT": "0"}, False, True, None),
    ],
)
def test_only_a_rank_that_cannot_ask_does_otherwise(
    environ: dict[str, str], stdin_terminal: bool, alone: bool, hook: str | None
) -> None:
    found = breakpoints(environ, stdin_terminal=stdin_terminal, alone=alone)
    assert [value.rpartition(".")[2] for value in found.values()] == ([] if hook is None else [hook])
    assert all(name == "PYTHONBREAKPOINT" for name in found)


def rank(folder: Path, text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    words = [sys.executable, "-u", "train.py", "--name", "two words"]
    env = clean_environment(RANK="3", **variables)
    return subprocess.run(words, cwd=folder, env=env, input=text, capture_output=True, text=True, timeout=DEADLINE_S)


def test_the_end_of_the_input_ends_a_rank_as_ever_and_is_explained(tmp_path: Path) -> None:
    (name, hook), *_ = breakpoints({}, stdin_terminal=False, alone=True).items()
    told, plain = rank(tmp_path, "", **{name: hook}), rank(tmp_path, "")
    first, _, rest = told.stderr.partition("\n")
    assert told.returncode == plain.returncode == 1
    if sys.version_info < (3, 14):  # which asks whether to quit, takes the end for a yes, and exits without a traceback
        assert (told.stdout, rest) == (plain.stdout, plain.stderr)
    assert "bdb.BdbQuit" in rest and "breakpoints.py" not in rest
    assert first == (
        "ddplaunch: breakpoint() at train.py:4 finds no terminal to ask on: type `ddplaunch run 1 -- train.py --name "
        "'two words'` in one, or `pip install remote-pdb` and set PYTHONBREAKPOINT=remote_pdb.set_trace"
    )


def test_answers_from_a_pipe_are_taken(tmp_path: Path) -> None:
    (name, hook), *_ = breakpoints({}, stdin_terminal=False, alone=True).items()
    done = rank(tmp_path, "p x * 2\nc\nc\n", **{name: hook})
    assert done.returncode == 0 and "(Pdb) 82\n" in done.stdout and "x is 42 on rank 3" in done.stdout
    assert done.stderr.count("ddplaunch: ") == 1


def test_a_rank_without_the_terminal_goes_on(tmp_path: Path) -> None:
    (name, hook), *_ = breakpoints({}, stdin_terminal=True, alone=False).items()
    done = rank(tmp_path, "", **{name: hook})
    assert (done.returncode, done.stdout) == (0, "x is 42 on rank 3\n")
    assert done.stderr == (
        "ddplaunch: rank 3 goes on past breakpoint() at train.py:4: another rank has the terminal, "
        "and `--show 3` gives it to this one\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("way", ["cold", "warm"])
def test_the_shown_rank_asks_on_the_terminal(way: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ddplaunch(
        "run", "2", "--device", "cpu", "--no-checks", "--start", way, "--run-id", RUN_ID, "--", "train.py"
    )
    asked = 0

    def go_on(shown: bytes, terminal: int) -> None:
        nonlocal asked
        if shown.count(b"(Pdb)") > asked:
            asked += 1
            os.write(terminal, b"c\n")

    status, shown = on_terminal(words, tmp_path, go_on)
    assert status == 0
    assert asked == 2 and b"x is 42 on rank 0" in shown, shown
    attempt = tmp_path / f".ddplaunch/runs/{RUN_ID}/node-0/attempt-0"
    assert (attempt / "rank-1.out").read_text() == "x is 42 on rank 1\n"
    assert "rank 1 goes on past breakpoint() at train.py:4" in (attempt / "rank-1.err").read_text()
