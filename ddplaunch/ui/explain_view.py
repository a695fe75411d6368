"""What `ddplaunch explain` prints: the cause of a failure with its evidence, or what a diagnosis code stands for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddplaunch.explain.diagnosis import Diagnosis, Echo, Explanation, UserCall
from ddplaunch.explain.signatures.signature import Signature
from ddplaunch.ui.speech import headline, labelled
from ddplaunch.ui.terminal import Terminal, cells, visible, wrap
from ddplaunch.values.words import count, ranks_text

_EVIDENCE = 3  # lines of evidence that are shown
_FOLLOWED = 4  # kinds of consequences that are named
_FIXES = 3
_CALLS = 12  # lines of the way to the failure
_NOTES = 6  # lines in which an exception goes on
_INDENT = "      "
_WIDEST_PLACE = 40
_EXAMPLE = 200  # characters of a line that shows a code
_SHORT = "the training still runs, or it was cut off or killed, and then its exit status and the scheduler say how"
_CERTAINTY = {"observed": "", "likely": " (likely)", "unknown": ""}


def explanation_text(explanation: Explanation, names: str, terminal: Terminal, record: str = "") -> str:
    """Return the whole answer; ``names`` says in a word or two which logs were read, ``record`` where a run's lie."""
    found = explanation.diagnosis
    if found is None:
        said = f"nothing failed in {names}"
        if explanation.cut:
            said += f" as far as it can be read: {explanation.cut} is cut off or damaged, and its end is not in it"
        if explanation.stops_at:
            last = cut(visible(explanation.stops_at), min(_EXAMPLE, terminal.width - 3))  # with its quotes on one line
            said += f"; it stops before the last step, at `{last}`: {_SHORT}"
        lines = wrap(visible(said), terminal.width)
        if (over := explanation.passed_over) is not None:
            lines += labelled("  it went on after: ", visible(f"{over.file}:{over.line}: {over.text}"), terminal)
        return "\n".join(lines) + "\n"
    lines = [
        *_head(found, terminal),
        *calls_text(found.calls, terminal, _CALLS),
        *notes_text(found, terminal, _NOTES),
        *_evidence(found, record, terminal),
    ]
    if found.rival is not None:
        place = f"{found.rival.evidence.file}:{found.rival.evidence.line}"
        lines += labelled("  less likely: ", visible(f"{found.rival.code}: {found.rival.what} ({place})"), terminal)
    lines += _followed(explanation.cascade, terminal)
    lines += labelled("  why: ", found.why, terminal)
    for position, fix in enumerate(found.fixes[:_FIXES]):
        lines += labelled("  fix: " if position == 0 else "   or: ", fix, terminal)
    return terminal.spell("\n".join(lines)) + "\n"


def _head(found: Diagnosis, terminal: Terminal) -> list[str]:
    lines = headline("error", found.code, found.what + _CERTAINTY[found.certainty], terminal)
    where = ([f"rank {found.rank}"] if found.rank is not None else []) + ([found.host] if found.host else [])
    frame = found.exception.frame if found.exception and found.exception.frame and not found.calls else ""
    places = [" on ".join(where), "" if frame in found.what else frame]
    place = ", ".join(filter(None, places))
    return lines + (labelled("  --> ", visible(place), terminal) if place else [])


def _evidence(found: Diagnosis, record: str, terminal: Terminal) -> list[str]:
    lines: list[str] = []
    for each in found.evidence[:_EVIDENCE]:
        file = f"{record}/{each.file}" if record and each.line else each.file
        place = f"{file}:{each.line}" if each.line else file
        lines += labelled("  evidence: ", visible(f"{place}: {each.text}"), terminal)
    return lines


def calls_text(calls: Sequence[UserCall], terminal: Terminal, most: int) -> list[str]:
    """Return the user's calls that led to a failure, each with its source, in at most ``most`` lines.

    Calls in libraries are one line; of more calls than fit, the last ones are shown. None for one without a source: the
    first line of a finding names the place.
    """
    if len(calls) < 2 and not any(each.source for each in calls):
        return []
    rows = [row for each in calls for row in _call_rows(each)]
    if len(rows) > most:
        rows = [("…", ""), *rows[len(rows) - max(1, most - 1) :]]
    room = min(max((cells(place) for place, source in rows if source), default=0), _WIDEST_PLACE)
    padded = [(place + " " * (room - cells(place)), source) for place, source in rows]
    return [cut(f"{_INDENT}{place}  {source}".rstrip(), terminal.width) for place, source in padded]


def _call_rows(call: UserCall) -> list[tuple[str, str]]:
    rows = [(visible(call.place), visible(call.source))]
    if call.folded:
        rows.append((f"  … {count(call.folded, 'call')} in {visible(call.library)}", ""))
    return rows


def notes_text(found: Diagnosis, terminal: Terminal, most: int) -> list[str]:
    """Return how the exception goes on: its notes and the rest of its message, in at most ``most`` lines."""
    notes = found.exception.notes if found.exception is not None else ()
    return [cut(f"{_INDENT}{visible(text)}", terminal.width) for text in notes[: max(0, most)]]


def cut(text: str, width: int) -> str:
    """Return ``text`` as one line of at most ``width`` cells, with a sign where it was cut."""
    if cells(text) <= width:
        return text
    kept = text[:width]
    while cells(kept) > width - 1:
        kept = kept[:-1]
    return kept + "…"


def followed_text(echoes: Sequence[Echo], terminal: Terminal) -> list[str]:
    """Name what the cause set off in one line, none if it set off nothing."""
    lines = _followed(echoes, Terminal(10_000, unicode=terminal.unicode))
    return [cut(lines[0], terminal.width)] if lines else []


def _followed(echoes: Sequence[Echo], terminal: Terminal) -> list[str]:
    """Name what the cause set off, ranks that say the same in one entry."""
    kinds: dict[str, list[Echo]] = {}
    for echo in echoes:
        kinds.setdefault(echo.what, []).append(echo)
    texts = [f"{_ranks(same)}{what}" for what, same in kinds.items()]
    if not texts:
        return []
    more = f"; and {count(len(texts) - _FOLLOWED, 'other kind')} of line" if len(texts) > _FOLLOWED else ""
    return labelled("  followed by: ", visible("; ".join(texts[:_FOLLOWED]) + more), terminal)


def _ranks(echoes: Sequence[Echo]) -> str:
    ranks = sorted({echo.rank for echo in echoes if echo.rank is not None})
    return f"{ranks_text(ranks)}: " if ranks else ""


def code_text(code: str, signatures: Sequence[Signature], terminal: Terminal) -> str:
    """Return what a diagnosis code stands for, from the signatures that name it: each mechanism with its own fixes."""
    lines = [f"{terminal.paint(code, 'bold')} {terminal.paint('(diagnosis of a failed run)', 'dim')}"]
    mechanisms: dict[tuple[str, ...], dict[str, str]] = {}  # by their fixes, why to an example
    for each in signatures:
        fixes = tuple(_generally(fix) for fix in each.fixes[:_FIXES])
        if each.is_root:
            mechanisms.setdefault(fixes, {}).setdefault(_generally(each.why), each.example)
    for position, (fixes, reasons) in enumerate(mechanisms.items()):
        lines += [""] if position else []
        for why, example in reasons.items():
            lines += wrap(visible(example.strip()[:_EXAMPLE]), terminal.width, "  shows as: ", "    ")
            lines += wrap(why, terminal.width, "  why: ", "       ")
        for number, fix in enumerate(fixes):
            lines += wrap(fix, terminal.width, "   or: " if number else "  fix: ", "       ")
    return "\n".join(lines) + "\n"


def _generally(text: str) -> str:
    """Return a sentence with what a log would fill in as a word in capitals: ``ls -l PATH``."""
    return re.sub(r"\{(\w+)\}", lambda match: match[1].upper(), text)
