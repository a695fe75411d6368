"""Running one check in a situation: as a case of a table, or directly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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
    """A situation for the check ``code``. ``says`` are texts that its finding must contain; without any, silence."""

    code: str
    name: str
    facts: Facts = field(default_factory=healthy_facts)
    launch: Launch | Unavailable = field(default_factory=healthy_launch)
    script: ScriptReport | Unavailable = field(default_factory=healthy_script)
    says: tuple[str, ...] = ()
    severity: str = "error"

    def __str__(self) -> str:
        return f"{self.code}: {self.name}"


def text(finding: Finding) -> str:
    """Return all words of a finding, line by line."""
    return "\n".join((finding.what, finding.why, finding.fix, *finding.where))


def judge(case: Case) -> None:
    """The check finds something under its own code, of the expected severity, that says what it has to say.

    Or it finds nothing, for a case without words; it may be skipped there for want of a fact.
    """
    outcome = outcome_of(ALL, case.code, case.facts, case.launch, case.script)
    expected = ("found",) if case.says else ("passed", "skipped")
    assert outcome.status in expected, (outcome.reason, [text(finding) for finding in outcome.findings])
    said = "\n".join(text(finding) for finding in outcome.findings)
    for finding in outcome.findings:
        assert (finding.code, finding.severity.value) == (case.code, case.severity)
        assert finding.what and finding.why and finding.fix
        assert "\n" not in finding.what
    for words in case.says:
        assert words in said, f"{words!r} not in:\n{said}"


def outcome_of(
    checks: Iterable[Check],
    code: str,
    facts: Facts | None = None,
    launch: Launch | Unavailable | None = None,
    script: ScriptReport | Unavailable | None = None,
) -> CheckOutcome:
    """Return the outcome of the check ``code``; whatever is left out is healthy."""
    (check,) = [each for each in checks if each.code == code]
    values = available(facts or healthy_facts(), launch or healthy_launch(), script or healthy_script())
    return run_check(check, values)


def found(
    checks: Iterable[Check],
    code: str,
    facts: Facts | None = None,
    launch: Launch | Unavailable | None = None,
    script: ScriptReport | Unavailable | None = None,
) -> Finding | None:
    """Return the check's only finding or None, after asserting what every finding has to be."""
    outcome = outcome_of(checks, code, facts, launch, script)
    assert outcome.status in ("found", "passed"), outcome.reason
    assert len(outcome.findings) <= 1
    for finding in outcome.findings:
        assert finding.code == code
        assert "\n" not in finding.what and finding.why and finding.fix
        return finding
    return None


def silent_when_healthy(checks: Iterable[Check]) -> None:
    """Assert that no check finds anything on the healthy node, with its launch and without one."""
    for launch, script in ((healthy_launch(), healthy_script()), (NO_LAUNCH, NO_SCRIPT)):
        for check in checks:
            outcome = run_check(check, available(healthy_facts(), launch, script))
            assert outcome.status in ("passed", "skipped"), outcome
            assert check.title and check.explanation
