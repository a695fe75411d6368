"""The messages between torchrun's plug-in and the guard beside it, over one socket.

The plug-in (``logs_specs.py``) lives in torchrun's process. The guard (``guard/guard.py``) is a light interpreter that
the plug-in starts: it reads ranks' output, shows and records it, ends remaining processes when torchrun dies, and
reports the end. Messages are JSON objects over a ``SOCK_SEQPACKET`` pair; file descriptors travel with them
(SCM_RIGHTS, unix(7)). The request that makes a spare process a rank (``warm/spares.py``) goes over such a pair, too.

Plug-in to guard:
- ``{"op": "launcher"}`` with one descriptor: the reading end of torchrun's own stderr.
- ``{"op": "listen"}`` with one descriptor: the reading end of the pipe into which torchrun's process writes the number
  of each signal that it gets, one byte per signal.
- ``{"op": "attempt", "attempt": A, "ranks": [Rank…], "without": TEXT|null}`` before ranks start, with one descriptor
  for each entry of each rank's ``streams``, in order: the reading end of a pipe or the master of a terminal.
  ``without`` says why ranks write to the console and have no descriptors.
- ``{"op": "started", "pids": {"RANK": PID}}`` when all ranks run.
- ``{"op": "closing", "pids": [PID…], "signal": N|null}`` before torchrun ends these ranks, if any run: ``signal`` told
  it to, or a rank has failed, or a node failed or joined.
- ``{"op": "failed", "failures": [RankFailure…]}`` before torchrun would start ranks again.
- ``{"op": "elsewhere", "outcome": {…}}`` when another node has told, in torchrun's store, how it failed.
- ``{"op": "end", "state": …, "signal": N, "failures": [RankFailure…], "error": TEXT}``, last.
Guard to plug-in:
- ``{"op": "verdict", "attempt": A, "final": BOOL}`` after an attempt: whether a restart cannot help.
- ``{"op": "done", "exit_status": N}`` when all output is read, the outcome is written, and no process is left.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Sequence
from typing import Any, TypedDict

_MESSAGE_BYTES = 1 << 16  # what is longer travels as a file in memory, the first descriptor
_DESCRIPTORS = 250  # the kernel passes 253 at once (SCM_MAX_FD)

#: Signals that batch systems may send to every process of a job; the guard must survive them.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGTSTP", "SIGTTOU", "SIGTTIN", "SIGPIPE", "SIGALRM")
IGNORED = tuple(map(signal.Signals.__getitem__, _NAMES))
#: Signals that tell torchrun to end.
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
#: Signals by which schedulers announce an end, or that users define: passed on to ranks that catch them.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


class Rank(TypedDict):
    """One rank of an attempt. ``streams`` names its descriptors: ["out", "err"], ["out"] for both, or none."""

    rank: int
    local_rank: int
    streams: list[str]


class RankFailure(TypedDict):
    """One rank's end as torchrun reports it; ``exit_code`` is negative for a signal, ``timestamp_s`` whole seconds."""

    rank: int
    pid: int
    exit_code: int
    timestamp_s: int


def send(channel: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send one message. Raises OSError if the other side is gone."""
    data = json.dumps(message).encode()
    if len(data) > _MESSAGE_BYTES:
        with os.fdopen(os.memfd_create("message"), "wb", 0) as file:
            file.write(data)
            send(channel, {"op": "long"}, [file.fileno(), *descriptors])
        return
    while len(descriptors) > _DESCRIPTORS:
        socket.send_fds(channel, [b'{"op": "more"}'], list(descriptors[:_DESCRIPTORS]))
        descriptors = descriptors[_DESCRIPTORS:]
    socket.send_fds(channel, [data], list(descriptors))


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return one message and its descriptors; None for the message when the other side is gone."""
    descriptors: list[int] = []
    while True:
        data, more, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, _DESCRIPTORS)
        descriptors += more
        if not data:
            return None, descriptors
        message = json.loads(data)
        if message["op"] == "long":
            with os.fdopen(descriptors.pop(0), "rb") as file:
                file.seek(0)
                message = json.load(file)
        if message["op"] != "more":
            return message, descriptors
