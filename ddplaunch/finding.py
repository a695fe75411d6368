"""The one shape of everything that a user is told to act on; refuses to print itself."""

from __future__ import annotations

from enum import Enum

from ddplaunch.frozen import dataclass


class Severity(str, Enum):
    """``ERROR`` refuses a launch; ``WARNING`` lets it run, worse."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    ``what`` is measured, one line, understandable alone. ``where`` lists hosts, ranks, flags or file:line.
    ``why`` is the mechanism. ``fix`` is complete and safe to paste. Text in backticks can be typed.
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
