"""Reads what torchrun's process is like when the template would be forked; refuses to judge it."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from ddplaunch.agent.warm import kernel
from ddplaunch.agent.warm.why_cold import AgentFacts

_TORCH = f"torch{os.sep}distributed{os.sep}"
_STARTERS = ("<frozen runpy>", "runpy.py", "torchrun")


def agent_facts() -> AgentFacts:
    """Return the facts of this process, which has imported torch."""
    return AgentFacts(
        orig_argv=tuple(sys.orig_argv),
        environ=dict(os.environ),
        unbuffered=bool(getattr(sys.__stdout__, "write_through", False)),
        python_threads=threading.active_count(),
        traced=sys.gettrace() is not None or sys.getprofile() is not None,
        cuda=kernel.cuda_in_use(),
        has_streams=None not in (sys.stdin, sys.stdout, sys.stderr),
        popen_parameters=_popen_parameters(),
        caller=foreign_caller(_files_of_stack()),
    )


def foreign_caller(files: Sequence[str]) -> str | None:
    """Return the file that called torchrun's functions, None if Python ran torchrun itself.

    ``files`` are those of the stack, the innermost first: the plug-in, then torch's, then nothing but what
    ``python -m`` or the script `torchrun` puts beneath.
    """
    first = next((number for number, file in enumerate(files) if _TORCH in file), 0)
    return next((file for file in files[first:] if _TORCH not in file and Path(file).name not in _STARTERS), None)


def _files_of_stack() -> list[str]:
    files = []
    frame = inspect.currentframe()
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return files


def environ_at_load() -> dict[str, str]:
    """Return the environment with which this process was started, whatever it has set since."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    return {name: value for name, _, value in pairs}


def _popen_parameters() -> tuple[str, ...] | None:
    try:
        from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

        return tuple(inspect.signature(SubprocessHandler._popen).parameters)
    except (ImportError, AttributeError, TypeError, ValueError):
        return None
