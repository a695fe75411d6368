"""Stands in for ``ddplaunch.agent.end.conclude`` in tests of the guard: writes down what the guard saw.

``GUARD_TEST_HANGS`` names a file of the record that never opens, as if its disk were gone.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddplaunch.agent.end.ended import EndedAttempt, EndedRun
    from ddplaunch.planning.settings import Settings

_HANGS = os.environ.get("GUARD_TEST_HANGS", "")


def _hang() -> None:
    import time

    from ddplaunch.agent.guard import record_file

    class NeverOpens(record_file.RecordFile):
        def open(self) -> None:
            while (self.path or "").endswith(_HANGS):
                time.sleep(60)
            super().open()

    record_file.RecordFile = NeverOpens  # type: ignore[misc]


if _HANGS:
    _hang()


def conclude(settings: Settings, ended: EndedRun, say: Callable[[str], None], hear: Callable[[float], None]) -> int:
    import pickle

    with open(os.environ["GUARD_TEST_ENDED"], "wb") as file:
        pickle.dump(ended, file)
    say("concluded\n")
    return ended.exit_status(ended.seen_first())


def attempt_ended(settings: Settings, attempt: EndedAttempt) -> tuple[str, bool]:
    return f"attempt {attempt.attempt} ended\n" if attempt.first is not None else "", attempt.first == 1
