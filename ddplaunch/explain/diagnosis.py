"""What is known about why a run failed, as frozen values; refuses to find it out or to print it."""

from __future__ import annotations

from typing import Literal

from ddplaunch.frozen import dataclass

#: "observed": a line says it. "likely": the lines fit this best. "unknown": nothing decides.
Certainty = Literal["observed", "likely", "unknown"]


@dataclass(frozen=True)
class Evidence:
    """One line of a log: ``file`` as it was named, ``line`` from 1 (0: not a line of a log), ``text`` without ANSI."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class Echo:
    """What followed from the root cause: one kind of line, the first place where it stands, and who said it."""

    what: str
    rank: int | None
    host: str | None
    evidence: Evidence
    times: int = 1


@dataclass(frozen=True)
class Raised:
    """An exception of Python as the traceback shows it; ``frame`` is the last one of the user's own code."""

    type: str
    message: str
    frame: str | None = None  # "train.py:31 in main"


@dataclass(frozen=True)
class Diagnosis:
    """A root cause. ``rank`` is global, None where all ranks are alike, no rank is meant, or nothing decides.

    ``what`` is one line, understandable alone; ``why`` the mechanism; ``fixes`` can each be typed or done, best first.
    """

    code: str
    certainty: Certainty
    what: str
    why: str
    fixes: tuple[str, ...]
    rank: int | None = None
    host: str | None = None
    evidence: tuple[Evidence, ...] = ()
    raised: Raised | None = None


@dataclass(frozen=True)
class Explanation:
    """The root cause of one log or run, None where nothing failed, and what it set off."""

    diagnosis: Diagnosis | None
    cascade: tuple[Echo, ...] = ()
