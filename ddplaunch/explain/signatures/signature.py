"""What one failure looks like in a log, as data, and how far its lines can be trusted to name the root cause."""

from __future__ import annotations

from enum import IntEnum, auto

from ddplaunch.values.frozen import dataclass


class Tier(IntEnum):
    """How far a line can be trusted to name the root cause. The best tier wins; within a tier, the earliest failure."""

    #: The line itself says what went wrong: no other failure has to come first.
    CAUSE = auto()
    #: The line says how something failed, not why: an exception that no signature knows, a library's error code.
    GENERAL = auto()
    #: The line may name the cause, but other failures lead to the same line: a crash, a mismatch.
    UNCERTAIN = auto()
    #: The rank went on after the error, logged it as a warning, or was stopped by the launcher; not for signatures.
    SURVIVED = auto()
    #: Healthy ranks print this too when another rank fails: timeouts, aborts, nodes that do not meet.
    SYMPTOM = auto()
    #: The line only supports a cause of the same code; with nothing better in the log, it makes that code likely.
    HINT = auto()
    #: A rank or launcher reports a failure elsewhere; never a cause.
    ECHO = auto()


@dataclass(frozen=True)
class Signature:
    """One way in which ``code`` shows.

    ``patterns`` are regular expressions (Python's, searched in one line without its prefix and ANSI codes; the first
    that matches counts); ``literals`` are texts, one of which every matching line contains, so that most lines are
    skipped without a regular expression. ``unless`` are expressions that make the line a near-miss. ``log_unless`` are
    expressions that speak against it when any line of the same rank matches. ``tier`` ranks it against other failures;
    if two signatures of a tier match the same line, the one listed first wins. ``what``, ``why`` and ``fixes`` may use
    named groups of the pattern as ``{name}``; a fix whose groups are missing is left out. ``examples`` match,
    ``near_misses`` do not: the tests hold both. ``source`` is where the message is printed or discussed.
    """

    code: str
    tier: Tier
    literals: tuple[str, ...]
    patterns: tuple[str, ...]
    what: str
    why: str
    fixes: tuple[str, ...]
    examples: tuple[str, ...]
    near_misses: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    log_unless: tuple[str, ...] = ()
    source: str = ""

    @property
    def is_root(self) -> bool:
        """Whether a matching line can be the root cause by itself."""
        return self.tier < Tier.HINT
