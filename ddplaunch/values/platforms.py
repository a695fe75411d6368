"""What ddplaunch takes for granted of Linux and other systems lack: flags of files, users, signals, whole commands.

Logs and records come from Linux wherever they are read, so that numbers of signals are Linux's here.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddplaunch.values.finding import Finding

#: Numbers of Linux (signal(7)) on x86-64 and aarch64.
SIGNAL_NAMES = dict(
    enumerate(
        (
            *("SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGKILL", "SIGUSR1"),
            *("SIGSEGV", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGSTKFLT", "SIGCHLD", "SIGCONT", "SIGSTOP"),
            *("SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGXCPU", "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH"),
            *("SIGIO", "SIGPWR", "SIGSYS"),
        ),
        1,
    )
) | {34: "SIGRTMIN", 64: "SIGRTMAX"}
SIGNALS = {name: number for number, name in SIGNAL_NAMES.items()}

#: What starts ranks, or looks after processes of this machine.
_OF_LINUX = ("run", "doctor", "scale", "fit", "stop", "clean", "stacks", "top")


def open_flags(*names: str) -> int:
    """Return these flags of open(2) together, without those that this system lacks."""
    found = 0
    for name in names:
        found |= getattr(os, f"O_{name}", 0)
    return found


def own_id() -> int:
    """Return this user's number; 0 on Windows, where files have none either."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


def host_name() -> str:
    """Return what this machine calls itself."""
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "localhost")


def system_name() -> str:
    """Return what people call this system."""
    return {"linux": "Linux", "darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)


def needs_linux(command: str) -> Finding | None:
    """Return why ``command`` does nothing on this system, None where it can."""
    if sys.platform == "linux" or command not in _OF_LINUX:
        return None
    from ddplaunch.values.finding import error

    windows = sys.platform == "win32"
    there = "in WSL2 (`wsl --install`), or on" if windows else "on"
    return error(
        "not-on-linux",
        f"this is {system_name()}, and `{command}` works on Linux alone",
        why="it needs what Linux has to watch and end ranks: /proc, pidfds, process groups that outlive their parent",
        fix=f"type it {there} the machine that trains; "
        "`plan`, `convert`, `explain`, `report`, `ps` and `logs` work here, on copied records and logs too",
    )
