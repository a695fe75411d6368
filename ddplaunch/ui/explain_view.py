"""An explanation as people read it: the cause in four parts, its evidence, what followed; refuses to find it out."""

from __future__ import annotations

from collections.abc import Sequence

from ddplaunch.explain.diagnosis import Diagnosis, Echo, Explanation
from ddplaunch.explain.signature import Signature
from ddplaunch.ui.speech import count
from ddplaunch.ui.style import ascii_only, paint, visible
from ddplaunch.ui.wrapping import wrap

_EVIDENCE = 3  # lines of evidence that are shown
_FOLLOWED = 4  # kinds of consequences that are named
_FIXES = 3
_CERTAINTY = {"observed": "", "likely": " (likely)", "unknown": ""}


def explanation_text(
    explanation: Explanation, names: str, width: int, styled: bool, unicode: bool = True, record: str = ""
) -> str:
    """Return the whole answer; ``names`` says in a word or two which logs were read, ``record`` where a run's lie."""
    found = explanation.diagnosis
    if found is None:
        return "\n".join(wrap(visible(f"nothing failed in {names}"), width)) + "\n"
    lines = [*_head(found, width, styled), *_evidence(found, record, width, styled)]
    lines += _followed(explanation.cascade, width, styled)
    lines += _part("  why: ", found.why, width, styled)
    for position, fix in enumerate(found.fixes[:_FIXES]):
        lines += _part("  fix: " if position == 0 else "   or: ", fix, width, styled)
    return ascii_only("\n".join(lines), unicode) + "\n"


def _head(found: Diagnosis, width: int, styled: bool) -> list[str]:
    label = f"error[{found.code}]:"
    lines = wrap(visible(found.what) + _CERTAINTY[found.certainty], width, f"{label} ", "  ")
    lines[0] = paint(label, "error", styled) + paint(lines[0][len(label) :], "bold", styled)
    where = ([f"rank {found.rank}"] if found.rank is not None else []) + ([found.host] if found.host else [])
    frame = found.raised.frame if found.raised and found.raised.frame else ""
    place = ", ".join([" on ".join(where)] * bool(where) + [frame] * (frame not in found.what))
    return lines + (_part("  --> ", visible(place), width, styled) if place else [])


def _evidence(found: Diagnosis, record: str, width: int, styled: bool) -> list[str]:
    lines: list[str] = []
    for each in found.evidence[:_EVIDENCE]:
        file = f"{record}/{each.file}" if record and each.line else each.file
        place = f"{file}:{each.line}" if each.line else file
        lines += _part("  evidence: ", visible(f"{place}: {each.text}"), width, styled)
    return lines


def _followed(echoes: Sequence[Echo], width: int, styled: bool) -> list[str]:
    """Name what the cause set off, ranks that say the same in one entry."""
    kinds: dict[str, list[Echo]] = {}
    for echo in echoes:
        kinds.setdefault(echo.what, []).append(echo)
    texts = [f"{_ranks(same)}{what}" for what, same in kinds.items()]
    if not texts:
        return []
    more = f"; and {count(len(texts) - _FOLLOWED, 'other kind')} of line" if len(texts) > _FOLLOWED else ""
    return _part("  followed by: ", visible("; ".join(texts[:_FOLLOWED]) + more), width, styled)


def _ranks(echoes: Sequence[Echo]) -> str:
    ranks = sorted({echo.rank for echo in echoes if echo.rank is not None})
    if not ranks:
        return ""
    named = ", ".join(map(str, ranks[:6])) + (f" and {len(ranks) - 6} more" if len(ranks) > 6 else "")
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {named}: "


def _part(label: str, text: str, width: int, styled: bool) -> list[str]:
    lines = wrap(visible(text, keep_newlines=True), width, label, " " * len(label))
    return [paint(label, "dim", styled) + lines[0][len(label) :], *lines[1:]]


def code_text(code: str, signatures: Sequence[Signature], width: int, styled: bool) -> str:
    """Return what a diagnosis code stands for, from the signatures that name it: each mechanism once, then fixes."""
    lines = [f"{paint(code, 'bold', styled)} {paint('(diagnosis of a failed run)', 'dim', styled)}"]
    for why in dict.fromkeys(each.why for each in signatures if each.role == "root" and "{" not in each.why):
        lines += wrap(why, width, "  why: ", "       ")
    fixes = dict.fromkeys(fix for each in signatures for fix in each.fixes if "{" not in fix)
    for fix in list(fixes)[:6]:
        lines += wrap(fix, width, "  fix: ", "       ")
    shown = dict.fromkeys(each.examples[0] for each in signatures if each.role == "root" and each.examples)
    for example in list(shown)[:3]:
        lines += wrap(visible(example.strip()[:200]), width, "  shows as: ", "    ")
    return ascii_only("\n".join(lines), True) + "\n"
