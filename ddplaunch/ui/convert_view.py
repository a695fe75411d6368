"""What `ddplaunch convert` prints: translated lines, a line for each thing dropped or not known, a diff of a script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddplaunch.launch.convert.translate import Translation
from ddplaunch.launch.convert.words import Word
from ddplaunch.ui.terminal import Terminal, visible, wrap
from ddplaunch.values.finding import Finding, error

_LONGEST = 60  # of a line that is quoted in a finding


def line_text(words: Sequence[Word], said: Translation) -> str:
    """Return the line with the launcher's part replaced, as shell text."""
    return " ".join([*(word.source for word in words[: said.start]), said.source]) + "\n"


def line_json(words: Sequence[Word], said: Translation) -> dict[str, Any]:
    """Return a translation as JSON values: ``command`` is None where there is none."""
    return {
        "schema": 1,
        "launcher": said.launcher,
        "command": line_text(words, said).rstrip("\n") if said.words else None,
        "dropped": [{"what": note.what, "why": note.why} for note in said.dropped],
        "unknown": [{"what": note.what, "why": note.why} for note in said.unknown],
    }


def notes_text(said: Translation, terminal: Terminal, where: str = "") -> str:
    """Return a line for each thing that was dropped and each that is not known; ``where`` stands in front."""
    lines: list[str] = []
    for label, notes in (("dropped", said.dropped), ("unknown", said.unknown)):
        for note in notes:
            head = f"{where}{label} "
            found = wrap(visible(f"{note.what}: {note.why}"), terminal.width, head, "  ")
            lines += [terminal.paint(head, "dim") + found[0][len(head) :], *found[1:]]
    return terminal.spell("".join(f"{line}\n" for line in lines))


def not_converted(said: Translation, line: str, where: str) -> Finding:
    """Return the finding for a line that stays as it is."""
    note = said.unknown[0]
    short = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    return error(
        "line-not-converted",
        f"`{visible(short)}` stays as it is: {note.what}",
        why=note.why,
        fix="say it by hand: `ddplaunch run NPROC -- train.py`; `ddplaunch run --help` lists the options",
        where=where,
    )
