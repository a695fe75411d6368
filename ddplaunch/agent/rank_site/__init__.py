"""The folder that leads PYTHONPATH of ranks, which end with torchrun and are looked at from inside, and `breakpoint()`.

Under torchrun all ranks read the same stdin. Where it is a terminal, the rank that is shown there asks on it as ever,
and the others go on. Where it is none, pdb finds the end of its input and ends the rank, and a line says what to do.
Both are reached by PYTHONBREAKPOINT (https://docs.python.org/3/library/sys.html#sys.breakpointhook).
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ddplaunch.agent.rank_site import ddplaunch_observer, ddplaunch_phases
from ddplaunch.agent.rank_site.sitecustomize import ENDED, LIMIT, MARK, PARENT, STACKS

VARIABLE = "PYTHONBREAKPOINT"
_told: set[str] = set()


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
    if VARIABLE in environ or (stdin_terminal and alone):
        return {}
    hook = passed_over if stdin_terminal else without_terminal
    return {VARIABLE: f"{__name__}.{hook.__name__}"}


def without_terminal(*args: Any, **kwargs: Any) -> None:
    """Begin pdb where `breakpoint()` stands, and say why that will end the rank, if its input is at its end."""
    import pdb

    frame = sys._getframe(1)
    _tell(
        f"breakpoint() at {_place(frame)} finds no terminal to ask on: type `ddplaunch run 1 -- {_script()}` in one, "
        f"or `pip install remote-pdb` and set {VARIABLE}=remote_pdb.set_trace"
    )
    debugger = pdb.Pdb()
    if kwargs.get("header") is not None:
        debugger.message(kwargs["header"])
    debugger.set_trace(frame)


def passed_over(*args: Any, **kwargs: Any) -> None:
    """Go on: another rank has the terminal."""
    rank = os.environ.get("RANK", "?")
    _tell(
        f"rank {rank} goes on past breakpoint() at {_place(sys._getframe(1))}: another rank has the terminal, "
        f"and `--show {rank}` gives it to this one"
    )


def _tell(line: str) -> None:
    if line not in _told:
        _told.add(line)
        sys.stderr.write(f"ddplaunch: {line}\n")


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _script() -> str:
    """Return the command line of the rank without its interpreter."""
    words = sys.orig_argv[1:]
    return shlex.join(words[1:] if words[:1] == ["-u"] else sys.argv)
