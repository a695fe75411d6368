"""What the template imports once for all ranks, and whether it may be forked from afterwards; refuses to fork ranks."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddplaunch.agent.warm import kernel


def import_all(names: Sequence[str], first: str | None) -> list[str]:
    """Import what was asked for; return a line for each that could not be imported."""
    if first is not None:
        sys.path.insert(0, first)
    notes = []
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as exception:
            notes.append(f"`--preload {name}`: {type(exception).__name__}: {exception}".splitlines()[0])
    if first is not None and first in sys.path:
        sys.path.remove(first)
    return notes


def torchrun_args() -> Any:
    """Return torchrun's own reading of its command line, None if this is no torchrun."""
    torchrun = sys.modules.get("torch.distributed.run") or sys.modules["__main__"]  # the latter for `python -m`
    parse = getattr(torchrun, "parse_args", None)
    return None if parse is None else parse(sys.argv[1:])


def may_start_again(args: Any) -> bool:
    """Say whether torchrun may start ranks once more: after a failure, or when nodes come and go."""
    return args is None or args.max_restarts > 0 or args.nnodes != "1"


def first_path(args: Any) -> str | None:
    """Return the folder that leads a rank's ``sys.path``."""
    if args is None or args.no_python or getattr(sys.flags, "safe_path", False):
        return None
    return str(Path.cwd()) if args.module else str(Path(args.training_script).resolve().parent)


def unfit() -> str | None:
    """Return why this process must not be forked from, None if it may.

    Threads that a library ends in its at-fork handler and starts again later (OpenBLAS does) do no harm: so the count
    is taken after a fork.
    """
    if kernel.native_threads() > 1:
        child = kernel.fork_on_trial()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    threads = kernel.native_threads()
    if threads > 1:
        return f"{threads} threads run"
    cuda = kernel.cuda_in_use()
    return f"{cuda} is in use" if cuda else None
