"""Stands in for ``ddplaunch.agent.end.conclude`` in tests of the guard: writes down what the guard saw.

``GUARD_TEST_HANGS`` names a file of the record that opens after ``GUARD_TEST_HANGS_S`` seconds, by default never, as if
its disk were gone. ``GUARD_TEST_LONGER_S`` is how long after the grace a torchrun that hears no SIGTERM is killed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddplaunch.agent.end.ended import EndedAttempt, EndedRun
    from ddplaunch.planning.settings import Settings

_HANGS = os.environ.get("GUARD_TEST_HANGS", "")
_HANGS_S = float(os.environ.get("GUARD_TEST_HANGS_S", "3600"))
_LONGER_S = os.environ.get("GUARD_TEST_LONGER_S")


def _hang() -> None:
    import time

    from ddplaunch.agent.guard import record_file

    class OpensLate(record_file.RecordFile):
        def open(self) -> None:
            time.sleep(_HANGS_S if (self.path or "").endswith(_HANGS) else 0)
            super().open()

    record_file.RecordFile = OpensLate  # type: ignore[misc]


if _HANGS:
    _hang()
if _LONGER_S is not None:
    from ddplaunch.agent.guard import guard

    guard._LONGER_S = float(_LONGER_S)


def conclude(settings: Settings, ended: EndedRun, say: Callable[[str], None], hear: Callable[[float], None]) -> int:
    import pickle

    with open(os.environ["GUARD_TEST_ENDED"], "wb") as file:
        pickle.dump(ended, file)
    hear(0.0)
    if "GUARD_TEST_FAILS" in os.environ:
        raise ZeroDivisionError
    say("concluded\n")
    return ended.exit_status(ended.seen_first())


def attempt_ended(settings: Settings, attempt: EndedAttempt) -> tuple[str, bool]:
    if "GUARD_TEST_FAILS" in os.environ:
        raise ZeroDivisionError
    return f"attempt {attempt.attempt} ended\n" if attempt.first is not None else "", attempt.first == 1
