"""Root before cascade: code, rank and certainty of each log in ``causes.txt``, and why; ``none - -`` for a good end."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ddplaunch.ui.explain_view import explanation_text
from ddplaunch.ui.terminal import Terminal
from tests.explain.logs import explained
from tests.explain.test_signatures import same  # noqa: F401 - a fixture

ANSWERS = Path(__file__).with_name("answers.txt")

_, *PARTS = re.split(
    r"(?m)^=== (\S+ \S+ \S+): (.*)\n", Path(__file__).with_name("causes.txt").read_text(encoding="utf-8")
)


@pytest.mark.parametrize(("answer", "why", "log"), [*zip(PARTS[::3], PARTS[1::3], PARTS[2::3], strict=True)])
def test_cause_and_rank(answer: str, why: str, log: str) -> None:
    found = explained(log).diagnosis
    known = (
        ("none", "-", "-")
        if found is None
        else (found.code, "-" if found.rank is None else found.rank, found.certainty)
    )
    assert " ".join(map(str, known)) == answer, why


def answered(log: str) -> str:
    """Return a log with what is shown of it below."""
    shown = explanation_text(explained(log), "train.log", Terminal(100))
    return log + "".join(f"=> {line}".rstrip() + "\n" for line in shown.splitlines())


def test_what_is_said_of_a_log(same: Callable[[Path, str], None]) -> None:  # noqa: F811
    """In ``answers.txt`` the whole answer stands below each log; ``pytest --accept-golden`` writes it."""
    _, *parts = re.split(r"(?m)^(=== .*\n)", re.sub(r"(?m)^=>.*\n", "", ANSWERS.read_text(encoding="utf-8")))
    same(ANSWERS, "".join(title + answered(log) for title, log in zip(parts[::2], parts[1::2], strict=True)))
