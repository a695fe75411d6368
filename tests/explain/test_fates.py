"""What becomes of each failure in a log, and by which rule: each with logs in which it just holds and just does not.

In ``fates.txt`` the rule that decided on a failure, else its fate, stands before the failure's line, and in the title
of a log whether the run is said to have failed; ``pytest --accept-golden tests/explain/test_fates.py`` writes that.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from ddplaunch.explain.diagnosis import LogSource, RunFacts
from ddplaunch.explain.explain_logs import explain_texts
from tests.explain.conftest import Same
from tests.explain.logs import ended, lost, raised, told
from tests.golden import sections

FATES = Path(__file__).with_name("fates.txt")
MARK = re.compile(r"(?m)^=> [a-z -]+: ")
_FATE = re.compile(r"  train.log:(\d+) .*?: (\w+)(?: \((.*)\))?, tier \w+")


def fates(text: str, facts: RunFacts | None = None) -> tuple[bool, dict[int, str]]:
    """Return whether the run failed, and the rule that decided on each failure, else its fate, by their lines."""
    why: list[str] = []
    explain_texts([LogSource("train.log", io.BytesIO(text.encode()))], facts, why)
    decided = {int(row[1]): row[3] or row[2] for row in filter(None, map(_FATE.fullmatch, why))}
    return any(line.startswith("fate: the run failed") for line in why), decided


def marked(title: str, log: str) -> str:
    """Return a log with its title, and with the marks before the lines of its failures."""
    has_failed, decided = fates(log)
    lines = log.splitlines(keepends=True)
    marks = [f"=> {decided[at]}: " if at in decided else "" for at in range(1, len(lines) + 1)]
    verdict = "failed" if has_failed else "not failed"
    return f"=== {verdict}: {title}\n{''.join(map(str.__add__, marks, lines))}"


def test_the_rule_that_decides_on_each_failure(same: Same) -> None:
    logs = ((title.partition(": ")[2], MARK.sub("", text)) for title, text in sections(FATES))
    same(FATES, "".join(marked(title, log) for title, log in logs))


def test_a_rank_that_the_launcher_ended_did_not_fail_unless_the_others_only_lost_it() -> None:
    stopped = "stopped by the launcher"
    for others, first in ((raised(1, "KeyError: 'x'"), stopped), (lost(1), "fatal")):
        facts = RunFacts(ranks=(told(0), ended(1, 1), ended(2, 0)), state="failed")
        assert fates(raised(0, "ValueError: x") + others, facts)[1][4] == first
        assert fates(raised(2, "ValueError: x") + others, facts)[1][4] == stopped
