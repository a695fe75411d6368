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

    - ``tier``: how it ranks against other failures. If two signatures of a tier match one line, the first listed wins.
    - ``patterns``: regular expressions of Python, searched in one line without its prefix and ANSI codes; the first
      that matches counts. Each needs some plain words: lines without them are skipped. ``unless``: expressions that
      make the line a near-miss. ``log_unless``: expressions that contradict the line if any line of the same rank
      matches. ``log_with``: expressions of which each has to match some line of the log; their groups are words too.
      ``log_by_several``: as ``log_with``, but two ranks print it, or one line stands twice where no rank is named.
    - ``what``, ``why``, ``fixes``: words that may use named groups of the pattern as ``{name}``; ``{line}`` is what the
      whole pattern matched, unless it names a part so. A fix whose groups are missing is left out. Echoes have no
      ``why`` and no ``fixes``.
    - ``examples`` match and ``near_misses`` do not: the tests hold both.
    - ``source``: where the message is printed or discussed.
    """

    code: str
    tier: Tier
    patterns: tuple[str, ...]
    what: str
    examples: tuple[str, ...]
    why: str = ""
    fixes: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    log_unless: tuple[str, ...] = ()
    log_with: tuple[str, ...] = ()
    log_by_several: tuple[str, ...] = ()
    source: str = ""

    @property
    def is_root(self) -> bool:
        """Whether a matching line can be the root cause by itself."""
        return self.tier < Tier.HINT
