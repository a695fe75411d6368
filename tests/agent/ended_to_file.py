"""Stands in for ``ddplaunch.agent.end.conclude`` in tests of the guard: writes down what the guard saw."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddplaunch.agent.end.ended import EndedAttempt, EndedRun, UserConsole
    from ddplaunch.launch.settings import Settings


def conclude(settings: Settings, ended: EndedRun, console: UserConsole) -> int:
    import pickle

    with open(os.environ["GUARD_TEST_ENDED"], "wb") as file:
        pickle.dump(ended, file)
    console.say("concluded\n")
    return ended.exit_status(ended.seen_first())


def attempt_ended(settings: Settings, attempt: EndedAttempt) -> str | None:
    return f"attempt {attempt.attempt} ended\n" if attempt.failed else None
