"""Reads what torchrun's process is like when the template would be forked; refuses to judge it."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from pathlib import Path

from ddplaunch.agent.warm import kernel
from ddplaunch.agent.warm.why_cold import AgentFacts


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
    )


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
