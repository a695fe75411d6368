"""What `ddplaunch explain` prints: the cause of a failure with its evidence, or what a diagnosis code stands for."""

from __future__ import annotations

from collections.abc import Sequence

from ddplaunch.explain.diagnosis import Diagnosis, Echo, Explanation
from ddplaunch.explain.signatures.signature import Signature
from ddplaunch.ui.speech import labelled
from ddplaunch.ui.terminal import Terminal, visible, wrap
from ddplaunch.values.words import count, ranks_text

_EVIDENCE = 3  # lines of evidence that are shown
_FOLLOWED = 4  # kinds of consequences that are named
_FIXES = 3
_CERTAINTY = {"observed": "", "likely": " (likely)", "unknown": ""}


def explanation_text(explanation: Explanation, names: str, terminal: Terminal, record: str = "") -> str:
    """Return the whole answer; ``names`` says in a word or two which logs were read, ``record`` where a run's lie."""
    found = explanation.diagnosis
    if found is None:
        return "\n".join(wrap(visible(f"nothing failed in {names}"), terminal.width)) + "\n"
    lines = [*_head(found, terminal), *_evidence(found, record, terminal)]
    lines += _followed(explanation.cascade, terminal)
    lines += labelled("  why: ", found.why, terminal)
    for position, fix in enumerate(found.fixes[:_FIXES]):
        lines += labelled("  fix: " if position == 0 else "   or: ", fix, terminal)
    return terminal.spell("\n".join(lines)) + "\n"


def _head(found: Diagnosis, terminal: Terminal) -> list[str]:
    label = f"error[{found.code}]:"
    lines = wrap(visible(found.what) + _CERTAINTY[found.certainty], terminal.width, f"{label} ", "  ")
    lines[0] = terminal.paint(label, "error") + terminal.paint(lines[0][len(label) :], "bold")
    where = ([f"rank {found.rank}"] if found.rank is not None else []) + ([found.host] if found.host else [])
    frame = found.raised.frame if found.raised and found.raised.frame else ""
    place = ", ".join([" on ".join(where)] * bool(where) + [frame] * (frame not in found.what))
    return lines + (labelled("  --> ", visible(place), terminal) if place else [])


def _evidence(found: Diagnosis, record: str, terminal: Terminal) -> list[str]:
    lines: list[str] = []
    for each in found.evidence[:_EVIDENCE]:
        file = f"{record}/{each.file}" if record and each.line else each.file
        place = f"{file}:{each.line}" if each.line else file
        lines += labelled("  evidence: ", visible(f"{place}: {each.text}"), terminal)
    return lines


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
    if not ranks:
        return ""
    return f"{ranks_text(ranks)}: "


def code_text(code: str, signatures: Sequence[Signature], terminal: Terminal) -> str:
    """Return what a diagnosis code stands for, from the signatures that name it: each mechanism once, then fixes."""
    lines = [f"{terminal.paint(code, 'bold')} {terminal.paint('(diagnosis of a failed run)', 'dim')}"]
    for why in dict.fromkeys(each.why for each in signatures if each.is_root and "{" not in each.why):
        lines += wrap(why, terminal.width, "  why: ", "       ")
    fixes = dict.fromkeys(fix for each in signatures for fix in each.fixes if "{" not in fix)
    for fix in list(fixes)[:6]:
        lines += wrap(fix, terminal.width, "  fix: ", "       ")
    shown = dict.fromkeys(each.examples[0] for each in signatures if each.is_root and each.examples)
    for example in list(shown)[:3]:
        lines += wrap(visible(example.strip()[:200]), terminal.width, "  shows as: ", "    ")
    return "\n".join(lines) + "\n"
