"""What is known about why a run failed, as frozen values; refuses to find it out or to print it.

What is known about a run outside of its logs, and which texts are logs; refuses to find any of it out.

Explanations as JSON values, one shape for ``outcome.json`` and ``explain --json``; refuses to write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ddplaunch.values.frozen import dataclass

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


@dataclass(frozen=True)
class LogSource:
    """One log. ``read`` is a path, bytes or an open binary stream; rank and host are known for files of a record."""

    name: str
    read: Path | bytes | BinaryIO
    rank: int | None = None
    host: str | None = None


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended. ``exit_code`` and ``signal`` ("SIGKILL") exclude each other; ``ended_s`` is an epoch."""

    rank: int
    host: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    ended_s: float | None = None
    ended_by: Literal["itself", "launcher"] | None = None


@dataclass(frozen=True)
class RunFacts:
    """Evidence outside the log; what is not known is None.

    ``state`` is the outcome's, ``signal`` the number that the launcher got, ``plan`` that of ``run.json``, ``argv`` the
    command as typed, ``oom_kills`` the count of the run's cgroup (``memory.events``), ``dmesg`` lines of the kernel
    since the run began.
    """

    ranks: tuple[RankEnd, ...] = ()
    state: str | None = None
    signal: int | None = None
    plan: Mapping[str, Any] | None = None
    argv: tuple[str, ...] | None = None
    oom_kills: int | None = None
    dmesg: tuple[str, ...] = ()
    shm_free_bytes: int | None = None
    shm_size_bytes: int | None = None


SCHEMA = 1


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """Return ``{"schema": 1, "diagnosis": …|None, "cascade": […]}``."""
    found = explanation.diagnosis
    return {
        "schema": SCHEMA,
        "diagnosis": None if found is None else diagnosis_json(found),
        "cascade": [echo_json(echo) for echo in explanation.cascade],
    }


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return one diagnosis as a JSON value."""
    return {
        "code": diagnosis.code,
        "certainty": diagnosis.certainty,
        "rank": diagnosis.rank,
        "host": diagnosis.host,
        "evidence": [_evidence(each) for each in diagnosis.evidence],
        "what": diagnosis.what,
        "why": diagnosis.why,
        "fixes": list(diagnosis.fixes),
        "exception": None if diagnosis.raised is None else raised_json(diagnosis.raised),
    }


def echo_json(echo: Echo) -> dict[str, Any]:
    """Return one kind of consequence as a JSON value."""
    return {
        "what": echo.what,
        "rank": echo.rank,
        "host": echo.host,
        "evidence": _evidence(echo.evidence),
        "times": echo.times,
    }


def raised_json(raised: Raised) -> dict[str, Any]:
    """Return an exception as a JSON value."""
    return {"type": raised.type, "message": raised.message, "frame": raised.frame}


def diagnosis_from_json(value: dict[str, Any]) -> Diagnosis:
    """Return the diagnosis that ``value`` was made of. Raises KeyError and TypeError where it was not."""
    raised = value.get("exception")
    return Diagnosis(
        value["code"],
        value["certainty"],
        value["what"],
        value["why"],
        tuple(value["fixes"]),
        value["rank"],
        value["host"],
        tuple(Evidence(each["file"], each["line"], each["text"]) for each in value["evidence"]),
        None if raised is None else Raised(raised["type"], raised["message"], raised["frame"]),
    )


def echo_from_json(value: dict[str, Any]) -> Echo:
    """Return the consequence that ``value`` was made of. Raises KeyError and TypeError where it was not."""
    place = value["evidence"]
    evidence = Evidence(place["file"], place["line"], place["text"])
    return Echo(value["what"], value["rank"], value["host"], evidence, value["times"])


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {"file": evidence.file, "line": evidence.line, "text": evidence.text}
