"""Root before cascade: code, rank and certainty of each log in ``causes.txt``, and why; ``none - -`` for a good end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ddplaunch.ui.explain_view import explanation_text
from ddplaunch.ui.terminal import Terminal
from tests.explain.conftest import Same
from tests.explain.logs import explained
from tests.golden import sections

CAUSES, ANSWERS = (Path(__file__).with_name(f"{name}.txt") for name in ("causes", "answers"))


@pytest.mark.parametrize(("title", "log"), sections(CAUSES))
def test_cause_and_rank(title: str, log: str) -> None:
    found = explained(log).diagnosis
    known = (
        ("none", "-", "-")
        if found is None
        else (found.code, "-" if found.rank is None else found.rank, found.certainty)
    )
    assert title.startswith(" ".join(map(str, known)) + ": ")


def answered(log: str) -> str:
    """Return a log with what is shown of it below."""
    shown = explanation_text(explained(log), "train.log", Terminal(100))
    return log + "".join(f"=> {line}".rstrip() + "\n" for line in shown.splitlines())


def test_what_is_said_of_a_log(same: Same) -> None:
    """In ``answers.txt`` the whole answer stands below each log; ``pytest --accept-golden`` writes it."""
    logs = ((title, re.sub(r"(?m)^=>.*\n", "", text)) for title, text in sections(ANSWERS))
    same(ANSWERS, "".join(f"=== {title}\n{answered(log)}" for title, log in logs))
