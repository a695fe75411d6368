"""Raises the limit of open files, and keeps enough descriptors for torchrun when output is recorded."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from pathlib import Path

#: Descriptors that torchrun opens after the plug-in: store, rendezvous, modules, a pipe per start. 18 were counted.
_TORCHRUN = 32


def raise_limit() -> tuple[int, int]:
    """Raise this process's soft limit to the hard one; return both as they were before (getrlimit(2))."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # the kernel's limit, fs.nr_open, was lowered meanwhile
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def require(count: int) -> None:
    """Raise OSError (EMFILE) if taking ``count`` more descriptors would leave too few for torchrun."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and len(list(Path("/proc/self/fd").iterdir())) + count + _TORCHRUN > soft:
        raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)} (`ulimit -n`: {soft})")
