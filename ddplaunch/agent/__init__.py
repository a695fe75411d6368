"""Code that runs in and beside torchrun while ranks train: the plug-in, the guard, the end of a run, warm starts."""

from __future__ import annotations

import os


def has_other_nodes() -> bool:
    """Return whether the run has more nodes than this one."""
    return os.environ.get("DDPLAUNCH_NNODES", "1") != "1"
