"""What the guard saw of a run that has ended, as frozen values. Times are seconds since the epoch.

The guard hands ``EndedRun`` to ``conclude_run``, and each ``EndedAttempt`` that another one follows to
``speak_of_attempt`` (``handover.py``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ddplaunch.agent.protocol import Failure
from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.records.first_failure import EndedBy, RankEnding, TorchrunState, exit_status, run_state
from ddplaunch.records.outcome import RunState
from ddplaunch.values.frozen import dataclass


class UserConsole(Protocol):
    """Where to speak to the user: the launcher's stderr, behind everything that ranks have printed until then."""

    def say(self, text: str) -> None:
        """Write ``text``, whole lines. Never raises: a console that is gone hears nothing."""


@dataclass(frozen=True)
class EndedRank:
    """One rank of one attempt. ``exit_code`` and ``signal`` (a positive number) are both None where nobody could see.

    ``pid``, ``started_s`` are None for a rank that never started, ``ended_s`` for one whose end was not seen.
    ``out`` and ``err`` are files of the record, ``err`` None where both streams were one terminal or one file;
    ``message`` is what torchrun reports of it (a traceback, if the script uses ``@record``).
    """

    rank: int
    local_rank: int
    pid: int | None
    started_s: float | None
    ended_s: float | None
    exit_code: int | None
    signal: int | None
    ended_by: EndedBy | None
    out: Path
    err: Path | None
    message: str = ""


@dataclass(frozen=True)
class EndedAttempt:
    """One start of this node's ranks; ``attempt`` counts from 0, ``first`` is the rank seen to fail first."""

    attempt: int
    started_s: float
    ended_s: float
    ranks: tuple[EndedRank, ...]
    first: int | None

    @property
    def failed(self) -> bool:
        """Whether any rank ended otherwise than with status 0."""
        return any(rank.exit_code or rank.signal for rank in self.ranks)


@dataclass(frozen=True)
class EndedRun:
    """The run on this node, as far as the guard saw it.

    ``state`` and ``error`` are what torchrun said at its end (``error`` its own exception, where no rank failed);
    ``launcher_died`` is True when it ended without a word (then ``state`` is "error"). ``signal`` is what torchrun was
    told to end with, None for nothing; ``interrupts`` counts Ctrl-C. ``left_over`` are processes that had to be
    killed at the end, ``unrecorded`` why some output is not in the record, None when all of it is; ``stopped`` why the
    guard ended the run itself.
    """

    host: str
    started_s: float
    ended_s: float
    attempts: tuple[EndedAttempt, ...]
    state: TorchrunState
    signal: int | None
    interrupts: int
    launcher_died: bool
    error: str
    failures: tuple[Failure, ...]
    left_over: tuple[int, ...] = ()
    unrecorded: str | None = None
    stopped: Diagnosis | None = None

    def run_state(self) -> RunState:
        """Return how the run ended, as its outcome says it."""
        stopped = None if self.stopped is None else self.stopped.code
        return run_state(self.state, launcher_died=self.launcher_died, stopped=stopped)

    def exit_status(self, first: RankEnding | None) -> int:
        """Return what torchrun's process exits with; ``first`` is the rank that failed first."""
        return exit_status(
            self.state,
            first,
            ((failure["timestamp_s"], failure["exit_code"]) for failure in self.failures),
            signal=self.signal,
            launcher_died=self.launcher_died,
            stopped=self.stopped is not None,
        )

    def seen_first(self) -> EndedRank | None:
        """Return the rank of the last attempt that was seen to fail first."""
        last = self.attempts[-1] if self.attempts else None
        return None if last is None else next((each for each in last.ranks if each.rank == last.first), None)
