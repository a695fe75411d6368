"""`breakpoint()` in a rank: the one that is shown asks on the terminal, and the others go on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddplaunch.agent.rank_site import breakpoints
from tests.agent.plugin_runs import RUN_ID, on_terminal
from tests.hosts.launching import ddplaunch

SCRIPT = """\
import os
x = 41
for _ in range(2):
    breakpoint()
x += 1
print("x is", x, "on rank", os.environ["RANK"])
"""


@pytest.mark.parametrize(
    ("environ", "stdin_terminal", "alone", "passes_over"),
    [
        ({}, True, True, False),
        ({}, True, False, True),
        ({}, False, False, False),  # pdb finds the end of its input, and the diagnosis says what to do
        ({"PYTHONBREAKPOINT": "mine.ask"}, True, False, False),
    ],
)
def test_only_a_rank_that_has_no_terminal_where_there_is_one_goes_on(
    environ: dict[str, str], stdin_terminal: bool, alone: bool, passes_over: bool
) -> None:
    found = breakpoints(environ, stdin_terminal=stdin_terminal, alone=alone)
    assert found == ({"PYTHONBREAKPOINT": "0"} if passes_over else {})


@pytest.mark.slow
def test_the_shown_rank_asks_on_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ddplaunch("run", "2", "--device", "cpu", "--no-checks", "--run-id", RUN_ID, "--", "train.py")
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
