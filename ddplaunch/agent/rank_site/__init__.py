"""The folder that leads PYTHONPATH of ranks, which end with torchrun and are looked at from inside, and `breakpoint()`.

Under torchrun all ranks read the same stdin. Where it is a terminal, the rank that is shown there asks on it as ever,
and the others go on: PYTHONBREAKPOINT is 0 (https://docs.python.org/3/library/sys.html#sys.breakpointhook).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ddplaunch.agent.rank_site import ddplaunch_observer, ddplaunch_phases
from ddplaunch.agent.rank_site.sitecustomize import ENDED, LIMIT, MARK, PARENT, STACKS

VARIABLE = "PYTHONBREAKPOINT"


def taking_part(
    environ: Mapping[str, str],
    *,
    stacks: bool = False,
    note: str | None = None,
    phases: str | None = None,
    memory_bytes: int = 0,
    ended: str | None = None,
) -> dict[str, str]:
    """Return the variables with which a child that would start in ``environ`` ends when this process does.

    It shows its ``stacks``, notes in ``note`` with which numbers it trains, and in ``phases`` what its steps take, if
    that is wanted. It gets ``memory_bytes`` of memory at most, unless that is 0, and notes in ``ended`` that its
    program was through.
    """
    wanted = {
        STACKS: "1" if stacks else None,
        ddplaunch_observer.PATH: note,
        ddplaunch_phases.PATH: phases,
        ENDED: ended,
        LIMIT: str(memory_bytes) if memory_bytes else None,
    }
    found = {PARENT: str(os.getpid()), **{name: value for name, value in wanted.items() if value is not None}}
    before = environ.get("PYTHONPATH", "")
    folder = str(Path(__file__).parent)
    return {MARK: before, **found, "PYTHONPATH": f"{folder}:{before}" if before else folder}


def breakpoints(environ: Mapping[str, str], *, stdin_terminal: bool, alone: bool) -> dict[str, str]:
    """Return the variables of a rank, ``alone`` if it is shown as it is; none where somebody has set his own."""
    return {VARIABLE: "0"} if stdin_terminal and not alone and VARIABLE not in environ else {}
