"""What torchrun's process and the template send each other: one value at a time over a stream socket."""

from __future__ import annotations

import contextlib
import marshal
import os
import socket
from collections.abc import Sequence
from typing import Any

from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import numbers_of

_DESCRIPTORS = 8


def send(channel: socket.socket, value: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one value of plain built-in types, with descriptors. Raises OSError if the other side is gone.

    marshal, because both sides are the same interpreter, and it keeps the surrogates of undecodable names; in memory of
    its own, because an environment may be larger than what a socket takes in one piece.
    """
    with open(os.memfd_create("ddplaunch-warm"), "wb") as memory:
        marshal.dump(value, memory)
        memory.flush()
        socket.send_fds(channel, [b"+"], [memory.fileno(), *descriptors])


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Return one value and its descriptors; None when the other side is gone."""
    try:
        head, descriptors, _, _ = socket.recv_fds(channel, 1, _DESCRIPTORS)
    except ConnectionError:
        return None
    if not head:
        return None
    with open(descriptors[0], "rb") as memory:
        memory.seek(0)
        return marshal.load(memory), descriptors[1:]


@dataclass(frozen=True)
class Request:
    """One rank: its whole command line and its whole environment, as Popen would get them.

    ``cpus`` are those that it may use, None the template's.
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

    @property
    def siblings(self) -> int:
        """How many ranks start together on this node; 0 if torchrun does not say."""
        value = self.environ.get("LOCAL_WORLD_SIZE", "")
        return int(value) if value.isdigit() else 0


def without_numactl(args: Sequence[str]) -> tuple[tuple[str, ...], tuple[int, ...] | None]:
    """Return the command of a rank, and the CPUs to which torchrun's ``--numa-binding`` would have `numactl` bind it.

    None if there is no such thing in front (``torch/numa/binding.py``, ``_assemble_numactl_command_args``).
    """
    binding = "--physcpubind="
    if len(args) > 2 and args[0] == "numactl" and args[1].startswith(binding):
        with contextlib.suppress(ValueError):
            return tuple(args[2:]), numbers_of(args[1].removeprefix(binding))
    return tuple(args), None


def is_python_command(args: Sequence[str], python: str) -> bool:
    """Say whether ``args`` is what torchrun makes of a script or a module: `PYTHON -u [-m] TARGET …`."""
    if len(args) < 3 or args[0] != python or args[1] != "-u":
        return False
    return len(args) > 3 if args[2] == "-m" else not args[2].startswith("-")
