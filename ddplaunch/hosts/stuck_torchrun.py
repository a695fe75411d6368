"""What a torchrun that waits for a store which is gone keeps from its ranks: the signal to end; refuses to kill ranks.

The store lives in the first node's torchrun. Where that host went without a word, the others' torchruns sit in a call
to it, in C++, where Python runs no signal handler: for up to a quarter of an hour. A store whose host still answers,
if only to refuse, holds nobody up.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddplaunch.hosts.ending import send
from ddplaunch.probes.process_table import Process

_PATIENCE_S = 2.0  # how long torchrun may take to pass a signal on, before anybody asks why
_CONNECT_S = 1.0
_LOOK_S = 0.5


class StuckTorchrun:
    """From the first signal on: asks once whether the store is silent, and then acts in torchrun's place."""

    def __init__(self, order: Mapping[str, Any], ranks: Callable[[], Sequence[Process]]) -> None:
        """``order`` is the body of LAUNCH, ``ranks`` returns the ranks that live here."""
        self._store, self._ranks = store_of(order), ranks
        self._number = signal.SIGTERM
        self._look_at: float | None = None
        self._told = False

    def signalled(self, number: int) -> None:
        """Torchrun got signal ``number``."""
        if self._look_at is None:
            self._number, self._look_at = signal.Signals(number), time.monotonic() + _PATIENCE_S

    def over(self) -> bool:
        """Look after the ranks of a torchrun that is stuck; return whether they are gone, and it may be killed."""
        if self._look_at is None or time.monotonic() < self._look_at:
            return False
        if not self._told:
            if self._store is None or not is_silent(*self._store):
                self._store = self._look_at = None
                return False
            for rank in self._ranks():
                send(rank, self._number)
            self._told = True
        self._look_at = time.monotonic() + _LOOK_S
        return not self._ranks()


def store_of(order: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return address and port of the store, None where the launch names none."""
    try:
        options = order["launch"]["options"]
        return str(options["master_addr"]["value"]), int(options["master_port"]["value"])
    except (KeyError, TypeError, ValueError):
        return None


def is_silent(address: str, port: int) -> bool:
    """Return whether nothing comes back from there, not even a refusal; it is waited for a second."""
    try:
        socket.create_connection((address, port), timeout=_CONNECT_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return False
