"""Explanations as JSON values, one shape for ``outcome.json`` and ``explain --json``; refuses to write them."""

from __future__ import annotations

from typing import Any

from ddplaunch.explain.diagnosis import Diagnosis, Echo, Evidence, Explanation, Raised

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
