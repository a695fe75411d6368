"""The folder that leads PYTHONPATH of ranks whose stacks may be asked for; holds nothing but ``sitecustomize``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ddplaunch.agent.rank_site.sitecustomize import MARK


def showing_stacks(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which a rank that would start in ``environ`` shows its stacks when it is asked."""
    before = environ.get("PYTHONPATH", "")
    folder = str(Path(__file__).parent)
    return {MARK: before, "PYTHONPATH": f"{folder}:{before}" if before else folder}
