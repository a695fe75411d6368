"""What the guard saw of a run that has ended, as frozen values. Times are seconds since the epoch.

The guard hands ``EndedRun`` to ``conclude``, and each ``EndedAttempt`` that another one follows to ``attempt_ended``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ddplaunch.agent.protocol import RankFailure
from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.explain.stacks.parse import RankStack
from ddplaunch.records.first_failure import TorchrunState, exit_status, run_state
from ddplaunch.records.outcome import RankOutcome, RunState
from ddplaunch.values.frozen import dataclass


@dataclass(frozen=True)
class EndedAttempt:
    """One start of this node's ranks; ``attempt`` counts from 0, ``first`` is the rank seen to fail first.

    Of ``ranks``, what their output says (``last_lines`` and ``raised``) is not read yet. ``unwritten`` is the last of
    what they printed that is in no file, by the file's name in the record, because the disk did not take it.
    ``stacks`` say where the ranks were when the first of them said that a collective had timed out.
    """

    attempt: int
    started_s: float
    ended_s: float
    ranks: tuple[RankOutcome, ...]
    first: int | None
    unwritten: Mapping[str, bytes] = field(default_factory=dict)
    stacks: tuple[RankStack, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether any rank ended otherwise than with status 0."""
        return any(rank.exit_code or rank.signal for rank in self.ranks)


@dataclass(frozen=True)
class EndedRun:
    """The run on this node, as far as the guard saw it.

    ``state`` and ``error`` are what torchrun said at its end (``error`` its own exception, where no rank failed);
    ``launcher_died`` is True when it ended without a word (then ``state`` is "error"). ``signal`` is what torchrun was
    told to end with, None for nothing. ``left_over`` are processes that had to be killed at the end, ``unrecorded`` why
    some output is not in the record, None when all of it is; ``stopped`` why the guard ended the run itself; ``told``
    are the first lines of the findings that it has told already.
    ``elsewhere`` is the outcome of another node, which told it to the nodes that were started by hand; the guard fills
    it in when it hears it, even at the end.
    ``announced`` is the signal by which schedulers announce an end, if one came for the ranks, and when.
    """

    host: str
    started_s: float
    ended_s: float
    attempts: tuple[EndedAttempt, ...]
    state: TorchrunState
    signal: int | None
    launcher_died: bool
    error: str
    failures: tuple[RankFailure, ...]
    left_over: tuple[int, ...] = ()
    unrecorded: str | None = None
    stopped: Diagnosis | None = None
    told: tuple[str, ...] = ()
    elsewhere: Mapping[str, Any] | None = None
    announced: tuple[str, float] | None = None

    def run_state(self) -> RunState:
        """Return how the run ended, as its outcome says it."""
        stopped = None if self.stopped is None else self.stopped.code
        return run_state(self.state, launcher_died=self.launcher_died, stopped=stopped)

    def exit_status(self, first: RankOutcome | None) -> int:
        """Return what torchrun's process exits with; ``first`` is the rank that failed first."""
        return exit_status(
            self.state,
            first,
            ((failure["timestamp_s"], failure["exit_code"]) for failure in self.failures),
            signal=self.signal,
            launcher_died=self.launcher_died,
            stopped=self.stopped is not None,
        )

    def seen_first(self) -> RankOutcome | None:
        """Return the rank of the last attempt that was seen to fail first."""
        last = self.attempts[-1] if self.attempts else None
        return None if last is None else next((each for each in last.ranks if each.rank == last.first), None)
