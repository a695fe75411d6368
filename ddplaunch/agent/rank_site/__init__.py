"""The folder that comes first in the PYTHONPATH of ranks, to end and observe them from inside; also `breakpoint()`.

Under torchrun all ranks read the same stdin. If it is a terminal, `breakpoint()` works as usual in the rank shown
there, and the others skip it: PYTHONBREAKPOINT is 0 (https://docs.python.org/3/library/sys.html#sys.breakpointhook).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ddplaunch.agent.rank_site.sitecustomize import ENDED, LIMIT, MARK, PARENT, STACKS

#: The variables with the paths of the rank's note, and of its phases.
OBSERVE, PHASES = "DDPLAUNCH_OBSERVE", "DDPLAUNCH_PHASES"
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
    """Return the variables to add to ``environ``, a child's environment, so that it ends when this process does.

    If asked for, the child also shows its ``stacks``, writes the numbers it trains with to ``note`` and the phases of
    its steps to ``phases``, gets at most ``memory_bytes`` of memory (0: no limit), and notes in ``ended`` that its
    program has finished.
    """
    wanted = {
        STACKS: "1" if stacks else None,
        OBSERVE: note,
        PHASES: phases,
        ENDED: ended,
        LIMIT: str(memory_bytes) if memory_bytes else None,
    }
    found = {PARENT: str(os.getpid()), **{name: value for name, value in wanted.items() if value is not None}}
    before = environ.get("PYTHONPATH", "")
    folder = str(Path(__file__).parent)
    return {MARK: before, **found, "PYTHONPATH": f"{folder}:{before}" if before else folder}


def breakpoints(environ: Mapping[str, str], *, stdin_terminal: bool, alone: bool) -> dict[str, str]:
    """Return the variables that turn `breakpoint()` off in a rank unless it is shown ``alone`` or the user set one."""
    return {VARIABLE: "0"} if stdin_terminal and not alone and VARIABLE not in environ else {}
