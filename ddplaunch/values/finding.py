"""Findings, which tell users what to act on, the exceptions that carry them, and exit statuses."""

from __future__ import annotations

from enum import Enum, IntEnum

from ddplaunch.values.frozen import dataclass


class Severity(str, Enum):
    """``ERROR`` refuses the launch; with a ``WARNING`` it runs, but worse."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Finding:
    """One problem to tell the user.

    ``what`` is one line with the measured values, understandable alone. ``where`` lists hosts, ranks, flags or
    file:line. ``why`` is the mechanism. ``fix`` is complete and safe to paste. Text in backticks can be typed.
    """

    code: str
    severity: Severity
    what: str
    why: str
    fix: str
    where: tuple[str, ...] = ()


def error(code: str, what: str, *, why: str, fix: str, where: str | tuple[str, ...] = ()) -> Finding:
    """Return a finding that refuses the launch."""
    return Finding(code, Severity.ERROR, what, why, fix, (where,) if isinstance(where, str) else where)


def warning(code: str, what: str, *, why: str, fix: str, where: str | tuple[str, ...] = ()) -> Finding:
    """Return a finding that lets the launch run."""
    return Finding(code, Severity.WARNING, what, why, fix, (where,) if isinstance(where, str) else where)


class ExitStatus(IntEnum):
    """The exit statuses of ddplaunch. Scripts depend on these numbers: they must not change.

    Once torchrun has taken over, the status is that of the first failed rank, or 128 + a signal. TIMED_OUT (as in
    timeout(1)) means that `--timeout` or `--on-hang stop` ended the run.
    """

    DONE = 0
    FINDINGS = 1
    USAGE = 2
    BUG = 3
    REFUSED = 4
    TIMED_OUT = 124
    INTERRUPTED = 130


class DdplaunchError(Exception):
    """Stops the command with findings; subclasses fix the exit status."""

    status: ExitStatus = ExitStatus.BUG

    def __init__(self, *findings: Finding) -> None:
        super().__init__("; ".join(finding.what for finding in findings))
        self.findings = findings


class UsageError(DdplaunchError):
    """The command line, a configuration file or a value in it is wrong: exit status 2."""

    status = ExitStatus.USAGE


class RefusedError(DdplaunchError):
    """The launch would fail, so nothing was started: exit status 4."""

    status = ExitStatus.REFUSED


def usage(what: str, *, why: str, fix: str, where: str | tuple[str, ...] = (), code: str = "usage") -> UsageError:
    """Return a usage error with a single finding, ready to raise."""
    return UsageError(error(code, what, why=why, fix=fix, where=where))
