"""Frozen values of a run that has ended, as the guard saw it. Times are seconds since the epoch.

The guard passes ``EndedRun`` to ``conclude``, and each ``EndedAttempt`` before the last to ``attempt_ended``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ddplaunch.agent.protocol import RankFailure
from ddplaunch.explain.diagnosis import Diagnosis
from ddplaunch.explain.stacks.parse import RankStack
from ddplaunch.records.first_failure import TorchrunState, exit_status, first_failed, run_state
from ddplaunch.records.outcome import RankOutcome, RunState
from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass


@dataclass(frozen=True)
class EndedAttempt:
    """One start of this node's ranks; ``attempt`` counts from 0, ``first`` is the rank seen to fail first.

    In ``ranks``, ``last_lines`` are not filled in yet. ``unwritten`` is the last output that could
    not be written to disk, by its file's name in the record. ``stacks`` are the ranks' stacks from when the first rank
    printed that a collective had timed out. ``hung`` is what was said of ranks that hung until the run was told to end.
    """

    attempt: int
    started_s: float
    ended_s: float
    ranks: tuple[RankOutcome, ...]
    first: int | None
    unwritten: Mapping[str, bytes] = field(default_factory=dict)
    stacks: tuple[RankStack, ...] = ()
    hung: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class EndedRun:
    """The run on this node, as far as the guard saw it.

    ``state`` and ``error`` are torchrun's report of its end (``error``: its own exception, if no rank failed);
    ``launcher_died``: torchrun ended without a report (``state`` is then "error" or "signal"). ``signal`` told torchrun
    to end, None if none did. ``left_over`` are processes that had to be killed at the end; ``unrecorded`` is why output
    is missing in the record, None if none is; ``stopped`` is why the guard itself ended the run; ``told`` are the first
    lines of the findings already shown.
    ``elsewhere`` is the outcome of another node of a launch by hand; the guard fills it in when it arrives, even at the
    end.
    ``announced`` is the signal by which a scheduler announced the end to the ranks, and when; None if none did.
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
        """Return the state of the run for its outcome."""
        stopped = None if self.stopped is None else self.stopped.code
        return run_state(self.state, launcher_died=self.launcher_died, stopped=stopped)

    def first_failed(self, accused: int | None = None) -> RankOutcome | None:
        """Return the rank of the last attempt that failed first: ``accused`` by the evidence, else the one seen."""
        last = self.attempts[-1] if self.attempts else None
        return first_failed(last.ranks, accused, last.first) if last else None

    def exit_status(self, first: RankOutcome | None) -> int:
        """Return the exit status of torchrun's process; ``first`` is the rank that failed first."""
        return exit_status(
            self.state,
            first,
            ((failure["timestamp_s"], failure["exit_code"]) for failure in self.failures),
            signal=self.signal,
            launcher_died=self.launcher_died,
            stopped=self.stopped is not None,
        )
