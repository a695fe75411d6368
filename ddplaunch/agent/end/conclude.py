"""The end of a run on one node: what failed, the outcome on disk, the last words on the console, the exit status.

The guard calls it when every rank is gone and everything that they printed is recorded.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

from ddplaunch.agent.end.ended import EndedAttempt, EndedRank, EndedRun, UserConsole
from ddplaunch.agent.end.evidence import attributed, explain_attempt
from ddplaunch.explain.diagnosis import Diagnosis, Explanation, Raised
from ddplaunch.explain.read.lines import clean, frames, read_lines
from ddplaunch.explain.read.traceback import Tracebacks
from ddplaunch.launch.settings import Settings
from ddplaunch.records.directory import path_text
from ddplaunch.records.first_failure import failed_by_itself, first_failed, signal_name
from ddplaunch.records.outcome import AttemptOutcome, RankOutcome, RunOutcome, write_outcome
from ddplaunch.ui.outcome_view import attempt_text, elsewhere_text, outcome_text
from ddplaunch.ui.terminal import Terminal
from ddplaunch.watch.recording import straggler_words

_TAIL_BYTES = 1 << 16
_LINES = 20
_LINE_CHARS = 500

_explained: dict[int, Diagnosis | None] = {}  # attempts before the last, by number, so that none is read twice


def attempt_ended(settings: Settings, attempt: EndedAttempt) -> str | None:
    """Return what to say of an attempt that another one follows; None if it did not fail.

    Ranks that torchrun ended, because another node failed or came, have not failed either.
    """
    if not attempt.failed:
        return None
    attempt = attributed(settings, attempt)
    attempts = settings.max_restarts + 1
    if not any(failed_by_itself(each) for each in attempt.ranks):
        return elsewhere_text(attempt.attempt, attempts)
    diagnosis = explain_attempt(settings, attempt, None).diagnosis
    _explained[attempt.attempt] = diagnosis
    return attempt_text(attempt.attempt, attempts, diagnosis, Terminal.of(sys.stderr).width)


def conclude(settings: Settings, ended: EndedRun, console: UserConsole) -> int:
    """Explain, record and say how the run ended; return the exit status."""
    ended = replace(ended, attempts=tuple(attributed(settings, each) for each in ended.attempts))
    last = ended.attempts[-1] if ended.attempts else None
    if ended.stopped is not None:
        explanation = Explanation(ended.stopped)
    elif ended.state == "succeeded":
        explanation = Explanation(None)
    else:
        explanation = explain_attempt(settings, last, ended)
    accused = explanation.diagnosis.rank if explanation.diagnosis is not None else None
    first = None
    if last is not None and ended.stopped is None:
        first = first_failed(last.ranks, accused, last.first)
    failed = accused if ended.stopped is not None else None if first is None else first.rank
    outcome = RunOutcome(
        run_id=settings.run_id,
        host=ended.host,
        node=settings.node,
        state=ended.run_state(),
        exit_status=ended.exit_status(first),
        started_s=round(ended.started_s, 3),
        ended_s=round(ended.ended_s, 3),
        first_failed_rank=None if ended.state == "succeeded" else failed,
        diagnosis=explanation.diagnosis,
        cascade=explanation.cascade,
        attempts=tuple(
            _attempt(settings, each, explanation if each is last else None, ended) for each in ended.attempts
        ),
        notes=_notes(ended),
    )
    directory = Path(settings.directory) if settings.directory else None
    problem = "no run directory was named" if directory is None else write_outcome(directory, outcome)
    scheduled = _by_the_scheduler(settings, ended)
    if scheduled is not None:
        outcome = replace(outcome, diagnosis=scheduled)
        problem = problem if directory is None else write_outcome(directory, outcome)
    text = outcome_text(
        outcome,
        None if directory is None else path_text(directory),
        Terminal.of(sys.stderr),
        signal=ended.signal,
        stopped=ended.stopped is not None,
        unrecorded=ended.unrecorded or problem,
    )
    if not settings.silent and not _node_0_says_it(settings, outcome):
        console.say(straggler_words(settings) + text)
    return outcome.exit_status


def _node_0_says_it(settings: Settings, outcome: RunOutcome) -> bool:
    """Whether this node ended like all others of a Slurm step, whose words srun puts on one console."""
    alike = outcome.state in ("succeeded", "terminated")
    return alike and bool(settings.node) and "SLURM_STEP_ID" in os.environ


def _by_the_scheduler(settings: Settings, ended: EndedRun) -> Diagnosis | None:
    """Ask Slurm why it sent SIGTERM, on node 0 alone: one controller serves all. What is known is on disk by then."""
    told = ended.state == "signal" and ended.signal == signal.SIGTERM and ended.stopped is None
    if not told or "SLURM_JOB_ID" not in os.environ or settings.node:
        return None
    from ddplaunch.hosts.slurm.job_reasons import why_ended

    return why_ended(os.environ, settings.grace_s, ended.ended_s)


def _notes(ended: EndedRun) -> tuple[str, ...]:
    notes = []
    if ended.left_over:
        notes.append(f"processes that had to be killed at the end: {', '.join(map(str, ended.left_over))}")
    if ended.unrecorded:
        notes.append(f"not all output is recorded: {ended.unrecorded}")
    return tuple(notes)


def _attempt(
    settings: Settings, attempt: EndedAttempt, explanation: Explanation | None, ended: EndedRun
) -> AttemptOutcome:
    """``explanation`` is that of the last attempt, None for one before."""
    last = explanation is not None
    diagnosis = explanation.diagnosis if explanation is not None else _explained.get(attempt.attempt)
    own = any(failed_by_itself(each) for each in attempt.ranks)
    return AttemptOutcome(
        attempt.attempt,
        round(attempt.started_s, 3),
        round(attempt.ended_s, 3),
        own or (last and ended.run_state() == "failed"),
        diagnosis,
        tuple(_rank(settings, rank, ended.host) for rank in attempt.ranks),
    )


def _rank(settings: Settings, rank: EndedRank, host: str) -> RankOutcome:
    failed = bool(rank.exit_code or rank.signal)
    return RankOutcome(
        rank=rank.rank,
        local_rank=rank.local_rank,
        host=host or socket.gethostname(),
        pid=rank.pid,
        exit_code=rank.exit_code,
        signal=None if rank.signal is None else signal_name(rank.signal),
        started_s=rank.started_s,
        ended_s=rank.ended_s,
        ended_by=rank.ended_by,
        last_lines=last_lines(rank.out, rank.err),
        raised=last_exception(rank.out, rank.err) if failed else None,
        out=_relative(settings, rank.out),
        err=_relative(settings, rank.err),
    )


def _relative(settings: Settings, path: Path | None) -> str | None:
    return None if path is None else os.path.relpath(path, settings.directory or ".")


def _tail(path: Path | None) -> list[str]:
    """Return the last lines of a file, whole ones, undecodable bytes replaced; none if it cannot be read."""
    if path is None:
        return []
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except OSError:
        return []
    lines = data.decode("utf-8", "replace").split("\n")
    if size > _TAIL_BYTES and len(lines) > 1:
        lines = lines[1:]
    return lines if lines[-1] else lines[:-1]


def last_lines(out: Path, err: Path | None) -> tuple[str, ...]:
    """Return at most 20 lines of stderr, or of stdout where stderr is empty, as a terminal would show them at last."""
    lines = [clean(frames(line.rstrip("\r"))[-1]).rstrip()[:_LINE_CHARS] for line in _tail(err) or _tail(out)]
    return tuple([line for line in lines if line][-_LINES:])


def last_exception(out: Path, err: Path | None) -> Raised | None:
    """Return the exception of the last traceback that is neither handled nor beside the point."""
    reader = Tracebacks()
    for line in read_lines(enumerate(_tail(err) or _tail(out), 1), "tail"):
        reader.feed(line)
    ended = [each for each in reader.finish() if not each.handled and not each.side]
    return ended[-1].root.raised if ended else None
