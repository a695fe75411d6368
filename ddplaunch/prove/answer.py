"""The answer of ``ddplaunch prove``: a line for each claim, the findings, and JSON."""

from __future__ import annotations

from typing import Any

from ddplaunch.prove.claims import ProofAnswer
from ddplaunch.ui.speech import counted, findings_text
from ddplaunch.ui.terminal import Emphasis, Terminal
from ddplaunch.values.codec import plain
from ddplaunch.values.words import count, duration_text

_EMPHASES: dict[str, Emphasis] = {"right": "good", "open": "warning"}


def proof_text(answer: ProofAnswer, terminal: Terminal) -> str:
    """Return the claims that are right, those that are open, the findings and a summary."""
    text = ""
    for verdict, emphasis in _EMPHASES.items():
        for claim in answer.claims:
            if claim.verdict == verdict:
                text += terminal.page(
                    terminal.lines(f"{claim.subject}: {claim.text}", f"{verdict:<6}", emphasis=emphasis)
                )
    if findings := answer.findings:
        text += "\n" * bool(text) + findings_text(findings, terminal)
    verdicts = [claim.verdict for claim in answer.claims]
    summary = f"{verdicts.count('right')} right, {verdicts.count('open')} open, {counted(findings) or 'nothing wrong'}"
    measured = f"{count(answer.steps, 'step')} of {count(answer.world, 'rank')} in {duration_text(answer.took_s)}"
    return text + "\n" + terminal.page(terminal.lines(f"{summary} ({measured})"))


def proof_json(answer: ProofAnswer) -> dict[str, Any]:
    """Return all claims and findings as values for JSON."""
    return {"schema": 1, **plain(answer), "wrong": answer.is_wrong}
