"""Which rank a process that was forked before is to become: what torchrun's process sends it over a stream socket."""

from __future__ import annotations

import marshal
import socket
from collections.abc import Sequence

from ddplaunch.values.frozen import dataclass

_DESCRIPTORS = 8


@dataclass(frozen=True)
class Request:
    """One rank: its whole command line and its whole environment, as Popen would get them.

    ``cpus`` are those that it may use, None for torchrun's.
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
        """``sys.argv`` at the start; for a module runpy puts its file in the place of ``-m``."""
        return ["-m", *self.args[4:]] if self.is_module else list(self.args[2:])


def send(channel: socket.socket, request: Request, descriptors: Sequence[int]) -> None:
    """Send a request, with descriptors. Raises OSError if the other side is gone.

    By marshal, because both sides are the same interpreter, and it keeps the surrogates of undecodable names.
    """
    socket.send_fds(channel, [b"+"], descriptors)
    channel.sendall(marshal.dumps(vars(request)))


def receive(channel: socket.socket) -> tuple[Request, list[int]]:
    """Return a request and its descriptors. Raises OSError, EOFError or ValueError where none comes."""
    _, descriptors, _, _ = socket.recv_fds(channel, 1, _DESCRIPTORS)
    with channel.makefile("rb") as stream:
        return Request(**marshal.load(stream)), descriptors


def is_python_command(args: Sequence[str], python: str) -> bool:
    """Say whether ``args`` is what torchrun makes of a script or a module: `PYTHON -u [-m] TARGET …`."""
    if len(args) < 3 or args[0] != python or args[1] != "-u":
        return False
    return len(args) > 3 if args[2] == "-m" else not args[2].startswith("-")
