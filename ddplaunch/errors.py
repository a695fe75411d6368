"""Exit statuses and the one exception that carries findings to the command line; decides nothing else."""

from __future__ import annotations

from enum import IntEnum

from ddplaunch.finding import Finding, error


class ExitStatus(IntEnum):
    """What the process exits with. Frozen: scripts depend on these numbers.

    After torchrun has taken over, the status is that of the first failed rank, or 128 + a signal; TIMED_OUT, which is
    timeout(1)'s, says that `--timeout` or `--on-hang stop` ended the run.
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
