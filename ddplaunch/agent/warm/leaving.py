"""Spares ranks the taking down of libraries that end with the process anyway; refuses to skip what a script has made.

A process that has torch spends more than half of its end on the C++ destructors of torch's libraries and on withdrawing
torch's own operators. In a fork each page that they write to is copied before. What the rank itself sets up after the
fork comes to its end as ever: Python's whole finalisation, ``atexit`` handlers of Python and C, open files.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from typing import Any

#: Tools that are in the process before the fork, and write what they have found when it ends.
_TOOLS = (
    "LD_PRELOAD",
    "LD_AUDIT",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "LLVM_PROFILE_FILE",
    "GCOV_PREFIX",
)


def leave_libraries_alone(environ: Mapping[str, str]) -> None:
    """Let this process and its forks end once all that was registered after this call has run.

    exit(3) calls handlers in reverse order, so that these are the first of those that are left out; ``on_exit`` hands
    on the status (https://man7.org/linux/man-pages/man3/on_exit.3.html). Does nothing under tools that need the rest,
    or with a C library that has no such function.
    """
    libc: Any = ctypes.CDLL(None)
    if any(environ.get(name) for name in _TOOLS) or not hasattr(libc, "on_exit"):
        return
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)  # comes before it: what C code has left in stdio's buffers
    _keep_operators()


def _keep_operators() -> None:
    """Withdraw none of the operators that torch has registered: each of its libraries would do it at exit."""
    registry: Any = getattr(weakref.finalize, "_registry", {})
    for info in list(registry.values()):
        if getattr(info.func, "__module__", None) == "torch.library":
            info.atexit = False
