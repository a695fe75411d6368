"""Follows one Slurm job to its end: its log as it grows, its states as they change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ddplaunch.hosts.slurm.job_reasons import never
from ddplaunch.hosts.slurm.programs import JobState, cancel, job_state
from ddplaunch.values.finding import RefusedError, error

_FIRST_POLL_S, _LAST_POLL_S = 0.5, 10.0  # a controller serves a whole cluster
_LOG_POLL_S = 0.25
_SETTLE_S = 1.0  # a log on a network file system arrives after the state
_SILENCE_S = 300.0
_UNDECIDED = ("", "PartitionConfig", "Priority")  # what a job waits for until the scheduler has looked at it
_CHUNK = 1 << 20


def first_state(job: str, environ: Mapping[str, str], patience_s: float = 3.0) -> JobState | None:
    """Return the state of a job that was just submitted, once Slurm has looked at it or ``patience_s`` is over.

    Raises RefusedError, and cancels the job, where it can never start.
    """
    deadline = time.monotonic() + patience_s
    while True:
        state = job_state(job, environ)
        if state is not None:
            _refuse_hopeless(job, state, environ)
        undecided = state is not None and state.state == "PENDING" and state.reason in _UNDECIDED
        if not undecided or time.monotonic() > deadline:
            return state
        time.sleep(_LOG_POLL_S)


def _refuse_hopeless(job: str, state: JobState, environ: Mapping[str, str]) -> None:
    """Raise RefusedError, and cancel the job, where it waits for what never comes."""
    why = never(state.reason) if state.state == "PENDING" else None
    if why is None:
        return
    done = cancel(job, environ)
    raise RefusedError(
        error(
            "slurm-job-cannot-start",
            f"job {job} can never start: {state.reason}",
            why=f"{why}; Slurm would let it wait for ever",
            fix="ask for less, or elsewhere: `sinfo -o '%P %D %l %G'` shows partitions, nodes, time limits and GPUs; "
            + ("the job was cancelled" if done else f"`scancel {job}` takes it back"),
        )
    )


def follow(
    job: str,
    log: Path | None,
    environ: Mapping[str, str],
    show: Callable[[bytes], None],
    changed: Callable[[JobState], None],
    known: JobState | None = None,
) -> JobState:
    """Return the last state of the job; ``show`` gets what its log grows by, ``changed`` every wait and run.

    ``known`` is the state that was told already.

    Raises RefusedError where the job can never start, or Slurm does not answer for five minutes.
    """
    position, poll_s = 0, _FIRST_POLL_S
    last, heard = known or JobState("UNKNOWN"), time.monotonic()
    while True:
        state = job_state(job, environ)
        if state is not None:
            heard = time.monotonic()
            _refuse_hopeless(job, state, environ)
            if (state.state, state.reason) != (last.state, last.reason) and state.state in ("PENDING", "RUNNING"):
                changed(state)
            last = state
        elif time.monotonic() - heard > _SILENCE_S:
            raise RefusedError(
                error(
                    "slurm-unanswered",
                    f"Slurm said nothing of job {job} for {_SILENCE_S:.0f} s",
                    why="its controller is down or has forgotten the job, and there is no accounting to ask",
                    fix=f"`squeue -j {job}` and `sacct -j {job}` once it answers; the job goes on without this command",
                )
            )
        log = log or (Path(last.log) if last.log else None)
        until = time.monotonic() + (_SETTLE_S if last.ended else poll_s)
        while True:
            position = _grown(log, position, show)
            if time.monotonic() >= until:
                break
            time.sleep(_LOG_POLL_S)
        if last.ended:
            return last
        poll_s = min(poll_s * 1.3, _LAST_POLL_S)


def _grown(log: Path | None, position: int, show: Callable[[bytes], None]) -> int:
    """Hand on what is new in the log and return the position behind it; a log that is not there yet is no error."""
    if log is None:
        return position
    try:
        with log.open("rb") as file:
            file.seek(position)
            while chunk := file.read(_CHUNK):
                show(chunk)
                position += len(chunk)
    except OSError:
        pass
    return position
