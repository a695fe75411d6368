"""Runs one check the way a launch does and hands back what it found; refuses a check that crashed."""

from __future__ import annotations

from collections.abc import Iterable

from ddplaunch.checks.check import Check, Outcome, available, run_check
from ddplaunch.launch.launch import Launch
from ddplaunch.machine.facts import Facts
from ddplaunch.script.report import ScriptReport
from ddplaunch.values.finding import Finding
from ddplaunch.values.resolved import Unavailable
from tests.checks.healthy import healthy_facts, healthy_launch, healthy_script

NO_LAUNCH = Unavailable("no launch")
NO_SCRIPT = Unavailable("no script was named")


def outcome_of(
    checks: Iterable[Check],
    code: str,
    facts: Facts | None = None,
    launch: Launch | Unavailable | None = None,
    script: ScriptReport | Unavailable | None = None,
) -> Outcome:
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
