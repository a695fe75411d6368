"""Stands in for ``ddplaunch.agent.end.conclude`` in tests of the guard: writes down what the guard saw.

``GUARD_TEST_HANGS`` names a file of the record that opens after ``GUARD_TEST_HANGS_S`` seconds, by default never, as if
its disk were gone. ``GUARD_TEST_LONGER_S`` is how long after the grace a torchrun that hears no SIGTERM is killed. A
guard with ``GUARD_TEST_STOPS`` stops before it looks who launched it.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from ddplaunch.agent.end.ended import EndedAttempt, EndedRun
    from ddplaunch.machine.files import Piece
    from ddplaunch.planning.settings import Settings

_HANGS = os.environ.get("GUARD_TEST_HANGS", "")
_HANGS_S = float(os.environ.get("GUARD_TEST_HANGS_S", "3600"))
_LONGER_S = os.environ.get("GUARD_TEST_LONGER_S")


def _hang() -> None:
    import time

    from ddplaunch.agent.guard import record_file

    class OpensLate(record_file.RecordFile):
        def _open(self, piece: Piece) -> None:
            time.sleep(_HANGS_S if (self.path or "").endswith(_HANGS) else 0)
            super()._open(piece)

    record_file.RecordFile = OpensLate  # type: ignore[misc]


if _HANGS:
    _hang()
if _LONGER_S is not None:
    from ddplaunch.agent.guard import guard

    guard._LONGER_S = float(_LONGER_S)
if "GUARD_TEST_STOPS" in os.environ:
    from ddplaunch.agent.guard import guard

    class StopsFirst(guard.GuardedRun):
        def __init__(self, channel: socket.socket, settings: Settings) -> None:
            os.kill(os.getpid(), signal.SIGSTOP)
            super().__init__(channel, settings)

    guard.GuardedRun = StopsFirst  # type: ignore[misc]


def conclude(settings: Settings, ended: EndedRun, say: Callable[[str], None], hear: Callable[[float], None]) -> int:
    import pickle

    with open(os.environ["GUARD_TEST_ENDED"], "wb") as file:
        pickle.dump(ended, file)
    hear(0.0)
    if "GUARD_TEST_FAILS" in os.environ:
        raise ZeroDivisionError
    say("concluded\n")
    return ended.exit_status(ended.first_failed())


def attempt_ended(settings: Settings, attempt: EndedAttempt) -> tuple[str, bool]:
    if "GUARD_TEST_FAILS" in os.environ:
        raise ZeroDivisionError
    return f"attempt {attempt.attempt} ended\n" if attempt.first is not None else "", attempt.first == 1
