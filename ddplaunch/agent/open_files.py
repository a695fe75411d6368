"""The limit of open files, of which recording takes only what torchrun and its ranks leave."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

#: What torchrun opens after the plug-in: its store, the rendezvous, modules, a pipe for each start. 18 were counted.
_TORCHRUN = 32


def require(count: int) -> None:
    """Raise OSError (EMFILE) where torchrun would not have enough left with ``count`` more descriptors taken."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and len(list(Path("/proc/self/fd").iterdir())) + count + _TORCHRUN > soft:
        raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)} (`ulimit -n`: {soft})")
