"""The shape of a case for one check, and the one way in which cases are run; refuses to hold any case."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddplaunch.checks.all_checks import by_code
from ddplaunch.checks.check import Outcome, available, run_check
from ddplaunch.launch.launch import Launch
from ddplaunch.machine.facts import Facts
from ddplaunch.script.report import ScriptReport
from ddplaunch.values.finding import Finding
from ddplaunch.values.resolved import Unavailable
from tests.checks.healthy import healthy_facts, healthy_launch, healthy_script

NO_LAUNCH = Unavailable("no launch was named")


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


def run(case: Case) -> Outcome:
    """Run the check of a case on its situation, as the engine does."""
    check = by_code(case.code)
    assert check is not None, f"no check is called {case.code}"
    return run_check(check, available(case.facts, case.launch, case.script))


def text(finding: Finding) -> str:
    """Return all words of a finding, line by line."""
    return "\n".join((finding.what, finding.why, finding.fix, *finding.where))


def assert_fires(case: Case) -> None:
    """The check finds something under its own code, of the expected severity, that says what it has to say."""
    outcome = run(case)
    assert outcome.status == "found", (outcome.status, outcome.reason)
    said = "\n".join(text(finding) for finding in outcome.findings)
    for finding in outcome.findings:
        assert finding.code == case.code
        assert finding.severity.value == case.severity
        assert finding.what and finding.why and finding.fix
        assert "\n" not in finding.what
    for words in case.says:
        assert words in said, f"{words!r} not in:\n{said}"


def assert_silent(case: Case) -> None:
    """The check runs, or is skipped for want of a fact, and finds nothing."""
    outcome = run(case)
    assert outcome.status in ("passed", "skipped"), [text(finding) for finding in outcome.findings] or outcome.reason
