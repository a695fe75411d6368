"""A decision to the diagnosis that people read: what, why, fixes and evidence; refuses to decide."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddplaunch.explain.decide import Decision
from ddplaunch.explain.diagnosis import Certainty, Diagnosis, Evidence
from ddplaunch.explain.facts import RunFacts
from ddplaunch.explain.fixes import concrete_fixes
from ddplaunch.explain.lines import Line
from ddplaunch.explain.scan import Scanned
from ddplaunch.explain.signature import Signature
from ddplaunch.explain.signatures import all_signatures
from ddplaunch.explain.stuck_words import stuck_words
from ddplaunch.explain.unknown import (
    Words,
    beside_words,
    ended_words,
    exception_words,
    outside_words,
    own_echo,
    unknown_words,
)

_FIELD = re.compile(r"\{(\w+)\}")
_GENERAL = re.compile(r"`--batch-size` N/2|`ulimit -n 65535`|PYTHONFAULTHANDLER=1|`--master-port")
_WIDEST = 300


def filled(template: str, groups: Mapping[str, str]) -> str:
    """Return ``template`` with its ``{name}`` replaced; a name that nothing is known of becomes "?"."""
    return _FIELD.sub(lambda match: groups.get(match.group(1), "?"), template)


def worded(decision: Decision, scanned: Scanned, facts: RunFacts | None) -> Diagnosis:
    """Return the diagnosis of what was decided."""
    words = _words(decision, facts)
    raised = decision.candidate.raised if decision.candidate is not None else None
    return Diagnosis(
        decision.code,
        _certainty(decision),
        words.what,
        words.why,
        _fixes(decision, words, facts),
        decision.rank,
        decision.host,
        _evidence(decision),
        raised,
    )


def _fixes(decision: Decision, words: Words, facts: RunFacts | None) -> tuple[str, ...]:
    """Put the fixes for this run before those for every run; the general form of a concrete one is left out."""
    groups = dict(decision.candidate.groups) if decision.candidate is not None else {}
    concrete = concrete_fixes(decision.code, groups, facts)
    said = [fix for fix in words.fixes if not (concrete and _GENERAL.search(fix))]
    return (*concrete, *said)


def _words(decision: Decision, facts: RunFacts | None) -> Words:
    candidate = decision.candidate
    if decision.told:
        return outside_words(decision, facts)
    if decision.beside is not None:
        return beside_words(decision, _fixes_of(decision.code))
    if candidate is None:
        return unknown_words(decision) if decision.ended is None else ended_words(decision, facts)
    words = stuck_words(decision)
    if words is not None:
        return words
    if candidate.signature is None:
        return exception_words(decision)
    signature = candidate.signature
    if signature.code != decision.code:
        signature = next((each for each in all_signatures() if each.code == decision.code), signature)
    return _of_signature(signature, dict(candidate.groups))


def _fixes_of(code: str) -> tuple[str, ...]:
    """Return what is to be done about ``code`` that needs no line to say it."""
    every = (fix for each in all_signatures() if each.code == code for fix in each.fixes if "{" not in fix)
    return tuple(dict.fromkeys(every))[:3]


def _of_signature(signature: Signature, groups: Mapping[str, str]) -> Words:
    fixes = tuple(filled(fix, groups) for fix in signature.fixes if set(_FIELD.findall(fix)) <= groups.keys())
    return Words(filled(signature.what, groups), filled(signature.why, groups), fixes)


def _certainty(decision: Decision) -> Certainty:
    if decision.code == "unknown":
        return "unknown"
    if decision.told:
        return "observed"
    if decision.candidate is None and decision.beside is None:
        return "likely" if decision.code in ("killed", "aborted", "terminated") else "observed"
    return "likely" if decision.candidate is not None and decision.candidate.likely else "observed"


def _evidence(decision: Decision) -> tuple[Evidence, ...]:
    lines: list[Line] = []
    if decision.candidate is not None:
        lines.append(decision.candidate.line)
    told = own_echo(decision)
    if told is not None:
        lines.append(told.line)
    if decision.ended is not None:
        lines.append(decision.ended.exit.line)
    if decision.beside is not None:
        lines.append(decision.beside)
    if decision.mismatched is not None:
        lines += [each.line for each in decision.mismatched]
    if decision.witness is not None:
        lines.append(decision.witness.line)
    if not lines and decision.echoes:
        lines.append(decision.echoes[0].line)
    return tuple(dict.fromkeys(evidence(line) for line in lines))


def evidence(line: Line) -> Evidence:
    """Return ``line`` as evidence, cut at some 300 characters."""
    text = line.text.strip()
    return Evidence(line.file, line.number, text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…")
