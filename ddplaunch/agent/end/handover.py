"""The hand-over of an ended run from the guard to its explanation, whose own failure changes neither end nor status.

What explains is imported here, and only when ranks end: it would treble the guard's memory while they run.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddplaunch.agent.end.ended import EndedAttempt, EndedRun, UserConsole
    from ddplaunch.launch.settings import Settings


def get_ready() -> None:
    """Import what will be needed while torchrun still notices that its ranks have ended. Never raises."""
    with contextlib.suppress(Exception):
        importlib.import_module("ddplaunch.agent.end.conclude")


def speak_of_attempt(settings: Settings, attempt: EndedAttempt, speaker: UserConsole) -> None:
    """Say what is to be said between two attempts. Never raises."""
    try:
        from ddplaunch.agent.end.conclude import attempt_ended

        if text := attempt_ended(settings, attempt):
            speaker.say(text)
    except Exception as error:
        speaker.say(f"ddplaunch: attempt {attempt.attempt} has ended; explaining it failed: {error!r}\n")


def conclude_run(settings: Settings, ended: EndedRun, speaker: UserConsole) -> int:
    """Write the outcome, say what is to be said, and return the exit status. Never raises."""
    try:
        from ddplaunch.agent.end.conclude import conclude

        return conclude(settings, ended, speaker)
    except Exception as error:
        first = ended.seen_first()
        how = ended.state if first is None else f"rank {first.rank} failed first"
        speaker.say(f"ddplaunch: the run has ended ({how}); explaining it failed: {error!r}\n")
        return ended.exit_status(first)
