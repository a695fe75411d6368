"""Figures that docs promise of launches on several hosts are those of the program."""

from __future__ import annotations

import re
from ast import literal_eval
from typing import Any

import pytest

from ddplaunch.cli.hosts.run_on_hosts import _GRACE_S
from ddplaunch.comm.checks import _LATE_FACTOR
from ddplaunch.hosts.session.fan_out import TRIES, window_of
from tests.source import PACKAGE


def of_comm_test(name: str) -> Any:
    """Return a figure of the script that ranks run, from its text: imported, it would bring torch to each worker."""
    text = (PACKAGE / "examples" / "comm_test.py").read_text(encoding="utf-8")
    match = re.search(rf"^{name} = ([^#\n]+)", text, re.MULTILINE)
    assert match
    return literal_eval(match[1].strip())


NUMBERS = {3.0: "three", 8.0: "eight", 10.0: "ten"}


@pytest.mark.parametrize(
    ("page", "words", "figures"),
    [
        ("nodes", "`--grace` ({:g} s) more", (_GRACE_S,)),
        ("nodes", "Each group has {:g} s, with NCCL {:g}", (*of_comm_test("TIMEOUT_S").values(),)),
        ("nodes", "until each had {} partners", (of_comm_test("PARTNERS"),)),
        ("nodes", "late at {} times", (_LATE_FACTOR,)),
        ("scale", "{:g} logins begin at once, and {:g} for each CPU", (window_of(1), window_of(100) / 100)),
        ("scale", "tried up to {} times", (TRIES,)),
    ],
)
def test_pages_have_the_programs_figures(page: str, words: str, figures: tuple[float, ...]) -> None:
    text = " ".join((PACKAGE.parent / "docs" / f"{page}.md").read_text().split())
    spelled = [NUMBERS[figure] if "{}" in words else figure for figure in figures]
    assert words.format(*spelled) in text
