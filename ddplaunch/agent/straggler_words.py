"""What the recorded metrics say at the end of a run; refuses to speak where nothing was recorded, or to fail."""

from __future__ import annotations

import sys
from pathlib import Path

from ddplaunch.agent.protocol import Settings


def straggler_words(settings: Settings) -> str:
    """Return the findings about this node's ranks for stderr, and where all of it can be seen; "" if not asked for."""
    if not settings.get("record_metrics") or not settings.get("directory"):
        return ""
    try:
        return _words(Path(settings["directory"]), settings.get("node", 0))
    except Exception as error:  # what was measured is worth less than how the run ended
        return f"ddplaunch: the recorded metrics could not be read: {error!r}\n"


def _words(directory: Path, node: int) -> str:
    from ddplaunch.checks.stragglers import stragglers
    from ddplaunch.records.metrics import read_metrics
    from ddplaunch.ui.speech import findings_text
    from ddplaunch.ui.streams import styled, unicode_ok, width

    samples = read_metrics(directory).get(node, [])
    if not samples:
        return "metrics: the run was too short for a sample\n"
    found = stragglers(samples)
    told = findings_text(found, width(sys.stderr), styled(sys.stderr), unicode_ok(sys.stderr)) + "\n" if found else ""
    number = f"{len(samples)} sample{'' if len(samples) == 1 else 's'}"
    return f"{told}metrics: {number}; `ddplaunch top {directory.name} --replay`, or `--plot metrics.svg`\n"
