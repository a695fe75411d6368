"""The `ddplaunch` command as users start it, in an environment without the variables of a launcher."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

#: What an outer launcher, or a user, may have left; the launches of the tests decide it anew.
_LEFT = ("PET_", "MASTER_", "DDPLAUNCH_", "NCCL_", "GLOO_", "TORCHELASTIC_", "OMP_", "SLURM_")
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK")


def ddplaunch(*words: str | bytes) -> list[str]:
    """Return the command line of this interpreter's ddplaunch."""
    return [sys.executable, "-m", "ddplaunch", *map(os.fsdecode, words)]


def clean_environment(**more: str) -> dict[str, str]:
    """Return this process's environment without traces of a launch, with ``more``."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_LEFT) and name not in _NAMES}
    return {**kept, **more}


def write_script(path: Path, lines: Sequence[str]) -> Path:
    """Write a program of ``lines`` to ``path``."""
    path.write_text("\n".join([*lines, ""]))
    return path
