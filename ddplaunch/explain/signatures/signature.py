"""What one failure looks like in a log, as data; refuses to search."""

from __future__ import annotations

from typing import Literal

from ddplaunch.values.frozen import dataclass

#: "root": a cause by itself. "cascade": an echo of some other failure, never a cause. "confirmation": strengthens a
#: root of the same code that something else found, and names the code with certainty "likely" if nothing else does.
Role = Literal["root", "cascade", "confirmation"]


@dataclass(frozen=True)
class Signature:
    """One way in which ``code`` shows.

    ``patterns`` are regular expressions (Python's, searched in one line without its prefix and ANSI codes; the first
    that matches counts); ``literals`` are texts, one of which every matching line contains, so that most lines are
    skipped without a regular expression. ``unless`` are expressions that make the line a near-miss. ``log_unless`` are
    expressions that speak against it when any line of the same rank matches. ``priority`` decides between roots of one
    rank: specific (70) beats general (50) beats bare exit codes (20). ``what``, ``why`` and ``fixes`` may use named
    groups of the pattern as ``{name}``; a fix whose groups are missing is left out. ``examples`` match, ``near_misses``
    do not: the tests hold both. ``source`` is where the message is printed or discussed.
    """

    code: str
    role: Role
    literals: tuple[str, ...]
    patterns: tuple[str, ...]
    what: str
    why: str
    fixes: tuple[str, ...]
    examples: tuple[str, ...]
    near_misses: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    log_unless: tuple[str, ...] = ()
    priority: int = 50
    source: str = ""
