"""Starts the guard: a light interpreter beside torchrun, connected by one socket; refuses to know what they say.

The guard is ``python -ISE -c … FD``: no site-packages, no torch, some 12 ms. It gets the settings in the environment,
its end of the socket as descriptor FD, the launcher's own stdout and stderr, /dev/null as stdin, and the signals that a
terminal or a scheduler sends to all processes blocked, so that it is there until everything is said.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from ddplaunch.frozen import dataclass

#: Blocked when the guard begins; it decides itself which of them it looks at.
BLOCKED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGTTOU,
    signal.SIGTTIN,
    signal.SIGPIPE,
)
_SEND_BUFFER_BYTES = 1 << 20  # the kernel caps it (net.core.wmem_max); a message has to fit in one piece
_CODE = "import sys; sys.path.append({root!r}); from ddplaunch.agent.guard import main; main(int(sys.argv[1]))"


@dataclass(frozen=True)
class Guard:
    """A guard that was started: its process id, and this side of the socket."""

    pid: int
    channel: socket.socket


def start_guard(environ: Mapping[str, str], stderr: int = 2) -> Guard:
    """Start a guard whose stderr is this process's descriptor ``stderr``. Raises OSError if that is impossible."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        os.set_inheritable(its.fileno(), True)
        actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        ]
        if stderr != 2:
            actions.append((os.POSIX_SPAWN_DUP2, stderr, 2))
        pid = os.posix_spawn(
            sys.executable,
            guard_argv(its.fileno()),
            dict(environ),
            file_actions=actions,
            setsigmask=BLOCKED,
            setsigdef=BLOCKED,
        )
    except BaseException:
        mine.close()
        raise
    finally:
        its.close()
    return Guard(pid, mine)


def guard_argv(descriptor: int) -> list[str]:
    """Return the guard's command line. The package is looked up last, so nothing beside it shadows the library."""
    root = str(Path(__file__).resolve().parents[2])
    cache = ["-B"] if sys.dont_write_bytecode else []
    return [sys.executable, "-ISE", *cache, "-c", _CODE.format(root=root), str(descriptor)]
