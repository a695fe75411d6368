"""Running one check in a situation: as a row of a table, or directly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from ddplaunch.checks.all_checks import ALL
from ddplaunch.checks.check import Check, CheckOutcome, available, run_check
from ddplaunch.machine.facts import Facts
from ddplaunch.planning.launch import Launch
from ddplaunch.script.script_report import ScriptReport
from ddplaunch.values.finding import Finding
from ddplaunch.values.resolved import Unavailable
from tests.checks.healthy import healthy_facts, healthy_launch, healthy_script

NO_LAUNCH = Unavailable("no launch was named")
NO_SCRIPT = Unavailable("no script was named")


@dataclass(frozen=True)
class Case:
    """A situation for the check ``code``, and what its finding says: parts divided by `` … ``. Empty is silence."""

    code: str
    says: str
    severity: str
    facts: Facts
    launch: Launch | Unavailable
    script: ScriptReport | Unavailable

    def __str__(self) -> str:
        return f"{self.code}: {self.says}"


def fires(
    code: str,
    says: str,
    severity: str = "error",
    *,
    launch: Launch | int | Unavailable = 8,
    script: ScriptReport | Unavailable | None = None,
    **facts: Any,
) -> Case:
    """Return a case of the healthy machine but for ``facts``, with a launch or a number of ranks."""
    known = healthy_launch(launch) if isinstance(launch, int) else launch
    if script is None:
        script = NO_SCRIPT if isinstance(launch, Unavailable) else healthy_script()
    return Case(code, says, severity, healthy_facts(**facts), known, script)


def silent(code: str, why: str = "", **situation: Any) -> Case:
    """Return a case in which nothing is found, or the check is skipped; ``why`` is for the reader."""
    assert isinstance(why, str)
    return fires(code, "", **situation)


def judge(case: Case) -> None:
    """The check finds something under its own code, of the expected severity, that says what it has to say.

    Or it finds nothing, for a case without words; it may be skipped there for want of a fact.
    """
    outcome = outcome_of(ALL, case.code, case.facts, case.launch, case.script)
    said = "\n".join(text for one in outcome.findings for text in (one.what, one.why, one.fix, *one.where))
    assert outcome.status in (("found",) if case.says else ("passed", "skipped")), f"{case}: {outcome.reason}, {said}"
    for finding in outcome.findings:
        assert (finding.code, finding.severity.value) == (case.code, case.severity), f"{case}: {finding}"
        assert finding.what and finding.why and finding.fix and "\n" not in finding.what, f"{case}: {finding}"
    assert all(part in said for part in case.says.split(" … ")), f"{case}: {said}"


def judged(*cases: Case) -> Callable[[], None]:
    """Return the test of a table: each of its checks fires with its words, and stays silent without them."""

    def test() -> None:
        for case in cases:  # as parameters of a test they would take longer to hand out than to judge
            judge(case)

    return test


def in_doctor(*cases: Case) -> list[Case]:
    """Return the same situations of the machine as `doctor` meets them, without a launch."""
    return [replace(case, launch=NO_LAUNCH, script=NO_SCRIPT) for case in cases]


def outcome_of(
    checks: Iterable[Check],
    code: str,
    facts: Facts | None = None,
    launch: Launch | Unavailable | None = None,
    script: ScriptReport | Unavailable | None = None,
) -> CheckOutcome:
    """Return the outcome of the check ``code``; whatever is left out is healthy."""
    (check,) = [each for each in checks if each.code == code]
    return run_check(check, available(facts or healthy_facts(), launch or healthy_launch(), script or healthy_script()))


def found(*check: Any, **situation: Any) -> Finding | None:
    """Return the only finding of ``outcome_of`` or None."""
    outcome = outcome_of(*check, **situation)
    assert outcome.status in ("found", "passed") and len(outcome.findings) <= 1, outcome
    return next(iter(outcome.findings), None)
