"""The folder that comes first in the PYTHONPATH of ranks, to end and observe them from inside; also `breakpoint()`.

Under torchrun all ranks read the same stdin. If it is a terminal, `breakpoint()` works as usual in the rank shown
there, and the others skip it: PYTHONBREAKPOINT is 0 (https://docs.python.org/3/library/sys.html#sys.breakpointhook).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ddplaunch.agent.rank_site.sitecustomize import HERE, MARK, PARENT

#: The variables with the paths of the rank's note, and of its phases.
OBSERVE, PHASES = "DDPLAUNCH_OBSERVE", "DDPLAUNCH_PHASES"
VARIABLE = "PYTHONBREAKPOINT"


def taking_part(environ: Mapping[str, str], **wanted: object) -> dict[str, str]:
    """Return the variables to add to ``environ``, a child's environment, so that it ends when this process does.

    ``wanted`` are variables for what else the child does: it shows its stacks (``STACKS``), writes the numbers it
    trains with to a note (``OBSERVE``) and the phases of its steps (``PHASES``), gets at most so many bytes of memory
    (``LIMIT``), and notes in a file that its program has finished (``ENDED``). Those without a value are left out.
    """
    before = environ.get("PYTHONPATH", "")
    path = f"{HERE}:{before}" if before else HERE
    asked = {name: str(value) for name, value in wanted.items() if value}
    return {MARK: before, PARENT: str(os.getpid()), "PYTHONPATH": path, **asked}


def breakpoints(environ: Mapping[str, str], *, stdin_terminal: bool, alone: bool) -> dict[str, str]:
    """Return the variables that turn `breakpoint()` off in a rank unless it is shown ``alone`` or the user set one."""
    return {VARIABLE: "0"} if stdin_terminal and not alone and VARIABLE not in environ else {}
