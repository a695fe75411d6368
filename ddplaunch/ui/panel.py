"""What is shown in the moment before torchrun takes over: a few lines; refuses to repeat what nobody has to read."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ddplaunch.finding import Finding
from ddplaunch.launch.plan import Launch, Passed
from ddplaunch.probes.facts import Facts
from ddplaunch.ui.launch_words import batch_text, device_text, lr_text, nodes_text, schedule_text, target_text
from ddplaunch.ui.speech import count, findings_text
from ddplaunch.ui.style import ascii_only, paint, visible
from ddplaunch.ui.wrapping import wrap

_LABEL = 8


def launch_panel(
    launch: Launch,
    findings: Sequence[Finding],
    width: int,
    styled: bool,
    *,
    unicode: bool = True,
    facts: Facts | None = None,
    record: str | None = None,
) -> str:
    """Return the panel: what runs where, the numbers, what is passed, findings.

    ``record`` is where the run's record lies, or the sentence that says why there is none.
    """
    rows = [
        ("run", f"{target_text(launch.target)} on {nodes_text(launch)}, {device_text(launch, facts)}"),
        ("batch", batch_text(launch)),
        ("lr", lr_text(launch.numbers)),
        ("steps", schedule_text(launch.numbers)),
        ("pass", "; ".join(passed_text(passed) for passed in launch.passed)),
        ("env", _environment_text(launch)),
        ("note", "; ".join(launch.notes)),
        ("record", record or ""),
    ]
    lines = [paint("ddplaunch", "bold", styled) + " " + paint(visible(launch.run_id), "dim", styled)]
    for label, text in rows:
        if text:
            lead = f"  {label:<{_LABEL}}"
            first, *rest = wrap(visible(text), width, lead, " " * len(lead))
            lines += [paint(lead, "dim", styled) + first[len(lead) :], *rest]
    text = ascii_only("\n".join(lines) + "\n", unicode)
    return text + ("\n" + findings_text(findings, width, styled, unicode) if findings else "")


def passed_text(passed: Passed) -> str:
    """Return ``--lr 0.0004 (train.py:31)``, or ``{lr} = 0.0004`` for a placeholder."""
    if not passed.arguments:
        return f"{{{passed.number}}} = {passed.value}"
    return shlex.join(passed.arguments) + (f" ({passed.at})" if passed.at is not None else "")


def _environment_text(launch: Launch) -> str:
    decided = [variable for variable in launch.environment if variable.value is not None]
    removed = len(launch.environment) - len(decided)
    text = f"{count(len(decided), 'variable')} set"
    if removed:
        text += f", {removed} removed"
    return f"{text} (`ddplaunch plan` says why)" if launch.environment else ""
