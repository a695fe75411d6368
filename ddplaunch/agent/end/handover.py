"""From the guard to the explanation of a run's end; refuses to let a failing explanation change how a run ends.

What explains is imported here, and only when ranks end: it would treble the guard's memory while they run.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING

from ddplaunch.launch.settings import Settings

if TYPE_CHECKING:
    from ddplaunch.agent.end.ended import EndedAttempt, EndedRun, Speaker


def get_ready() -> None:
    """Import what will be needed while torchrun still notices that its ranks have ended. Never raises."""
    with contextlib.suppress(Exception):
        importlib.import_module("ddplaunch.agent.end.conclude")


def speak_of_attempt(settings: Settings, attempt: EndedAttempt, speaker: Speaker) -> None:
    """Say what is to be said between two attempts. Never raises."""
    try:
        from ddplaunch.agent.end.conclude import attempt_ended

        if text := attempt_ended(settings, attempt):
            speaker.say(text)
    except Exception as error:
        speaker.say(f"ddplaunch: attempt {attempt.attempt} has ended; explaining it failed: {error!r}\n")


def conclude_run(settings: Settings, ended: EndedRun, speaker: Speaker) -> int:
    """Write the outcome, say what is to be said, and return the exit status. Never raises."""
    try:
        from ddplaunch.agent.end.conclude import conclude

        return conclude(settings, ended, speaker)
    except Exception as error:
        speaker.say(f"ddplaunch: the run has ended ({_plainly(ended)}); explaining it failed: {error!r}\n")
        return plain_status(ended)


def plain_status(ended: EndedRun) -> int:
    """Return the first failed rank's exit code or 128 + signal, 128 + n for a launcher told to end by signal n."""
    if ended.state == "signal" and ended.signal:
        return 128 + ended.signal
    last = ended.attempts[-1] if ended.attempts else None
    for rank in last.ranks if last else ():
        if last and rank.rank == last.first:
            return 128 + rank.signal if rank.signal else rank.exit_code or 1
    return 0 if ended.state == "succeeded" else 1


def _plainly(ended: EndedRun) -> str:
    first = ended.attempts[-1].first if ended.attempts else None
    return ended.state if first is None else f"rank {first} failed first"
