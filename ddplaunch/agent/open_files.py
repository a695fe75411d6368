"""The limit of open files: all that may be had, and for recording only what torchrun and its ranks leave."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from pathlib import Path

#: What torchrun opens after the plug-in: its store, the rendezvous, modules, a pipe for each start. 18 were counted.
_TORCHRUN = 32


def raise_limit() -> tuple[int, int]:
    """Raise this process's soft limit as far as the hard one; return both as they were (getrlimit(2))."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # the kernel's own limit, fs.nr_open, was lowered since
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def require(count: int) -> None:
    """Raise OSError (EMFILE) where torchrun would not have enough left with ``count`` more descriptors taken."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and len(list(Path("/proc/self/fd").iterdir())) + count + _TORCHRUN > soft:
        raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)} (`ulimit -n`: {soft})")
