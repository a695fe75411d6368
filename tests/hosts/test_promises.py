"""Figures that docs promise of launches on several hosts are those of the program."""

from __future__ import annotations

import pytest

from ddplaunch.cli.hosts.run_on_hosts import _GRACE_S
from ddplaunch.comm.checks import _LATE_FACTOR
from ddplaunch.hosts.session.fan_out import TRIES, window_of
from tests.source import PACKAGE

SPELLED = {8: "eight", 10.0: "ten"}


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("nodes", f"`--grace` ({_GRACE_S:g} s) more"),
        ("nodes", f"late at {SPELLED[_LATE_FACTOR]} times"),
        ("scale", f"{window_of(1)} logins begin at once, and {window_of(100) / 100:g} for each CPU"),
        ("scale", f"tried up to {SPELLED[TRIES]} times"),
    ],
)
def test_pages_have_the_programs_figures(page: str, words: str) -> None:
    assert words in " ".join((PACKAGE.parent / "docs" / f"{page}.md").read_text().split())
