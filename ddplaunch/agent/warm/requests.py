"""The request that torchrun's process sends to a forked process over a stream socket: which rank to become."""

from __future__ import annotations

import marshal
import socket
from collections.abc import Sequence

from ddplaunch.values.frozen import dataclass

_DESCRIPTORS = 8


@dataclass(frozen=True)
class Request:
    """One rank: its complete command line and environment, as Popen would get them.

    ``cpus`` are the CPUs that it may use, None for the same as torchrun.
    """

    args: tuple[str, ...]
    environ: dict[str, str]
    cpus: tuple[int, ...] | None = None

    @property
    def is_module(self) -> bool:
        """Whether the target is a module's name (``-m``)."""
        return self.args[2] == "-m"

    @property
    def target(self) -> str:
        """The script's path, or the module's name."""
        return self.args[3] if self.is_module else self.args[2]

    @property
    def argv(self) -> list[str]:
        """The initial ``sys.argv``; for a module, runpy later replaces ``-m`` by its file."""
        return ["-m", *self.args[4:]] if self.is_module else list(self.args[2:])


def send(channel: socket.socket, request: Request, descriptors: Sequence[int]) -> None:
    """Send a request with descriptors. Raises OSError if the other side is gone.

    Uses marshal, because both sides are the same interpreter and it keeps the surrogates of undecodable names.
    """
    socket.send_fds(channel, [b"+"], descriptors)
    channel.sendall(marshal.dumps(vars(request)))


def receive(channel: socket.socket) -> tuple[Request, list[int]]:
    """Return a request and its descriptors. Raises OSError, EOFError or ValueError if none arrives."""
    _, descriptors, _, _ = socket.recv_fds(channel, 1, _DESCRIPTORS)
    with channel.makefile("rb") as stream:
        return Request(**marshal.load(stream)), descriptors


def is_python_command(args: Sequence[str], python: str) -> bool:
    """Return whether ``args`` is torchrun's command line for a script or module: `PYTHON -u [-m] TARGET …`."""
    if len(args) < 3 or args[0] != python or args[1] != "-u":
        return False
    return len(args) > 3 if args[2] == "-m" else not args[2].startswith("-")
