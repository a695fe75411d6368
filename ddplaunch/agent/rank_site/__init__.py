"""The folder that leads PYTHONPATH of ranks whose stacks may be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddplaunch.agent.rank_site.ddplaunch_marks import PATH
from ddplaunch.agent.rank_site.sitecustomize import MARK


def showing_stacks(environ: Mapping[str, str], marks: str | None = None) -> dict[str, str]:
    """Return the variables with which a rank that would start in ``environ`` shows its stacks when it is asked.

    ``marks`` is where it is to note when it had Python, torch and its first collective, if that is wanted too.
    """
    before = environ.get("PYTHONPATH", "")
    folder = str(Path(__file__).parent)
    path = {} if marks is None else {PATH: marks}
    return {MARK: before, **path, "PYTHONPATH": f"{folder}:{before}" if before else folder}
