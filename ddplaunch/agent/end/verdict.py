"""Who failed first and what the launcher exits with, from how ranks ended; refuses to read a log.

Which ranks torchrun ended by its own decision, from its own messages; refuses to guess from signals alone.

The guard sees that a rank died of SIGTERM, not who sent it. On a node without a failure of its own, torchrun ends the
ranks because another node failed or came, and says so: ``SubprocessContext._close`` in
torch/distributed/elastic/multiprocessing/api.py logs ``Sending process PID closing signal SIGTERM`` for each.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from signal import Signals

from ddplaunch.agent.end.ended import EndedAttempt, EndedRank, EndedRun
from ddplaunch.launch.settings import Settings
from ddplaunch.records.outcome import RunState
from ddplaunch.values.finding import ExitStatus

_KILLED = 137
TIME_LIMIT = "time-limit"


def state_of(ended: EndedRun) -> RunState:
    """Return how the run ended. What torchrun says counts; where it said nothing it was killed."""
    if ended.stopped is not None:
        return "terminated" if ended.stopped.code == TIME_LIMIT else "failed"
    if ended.launcher_died:
        return "killed"
    if ended.state == "signal":
        return "terminated"
    return "succeeded" if ended.state == "succeeded" else "failed"


def first_failed(attempt: EndedAttempt, accused: int | None) -> EndedRank | None:
    """Return the rank that failed first: the one that the evidence names, else the one that was seen to end first.

    A rank that was ended by torchrun, because of the others, is neither. None where none ended by itself.
    """
    failed = {
        each.rank: each for each in attempt.ranks if each.ended_by != "launcher" and (each.exit_code or each.signal)
    }
    for rank in (accused, attempt.first):
        if rank is not None and rank in failed:
            return failed[rank]
    return min(failed.values(), key=lambda each: (each.ended_s is None, each.ended_s or 0.0, each.rank), default=None)


def exit_status(ended: EndedRun, first: EndedRank | None) -> int:
    """Return what torchrun's process exits with: 128 + signal if it was told to end, else the first failed rank's own.

    A rank's own is its exit code, or 128 + the signal that ended it, as a shell says it. A run that was ended by
    `--timeout` or `--on-hang stop` has the status of timeout(1).
    """
    if ended.stopped is not None:
        return ExitStatus.TIMED_OUT
    if ended.launcher_died:
        return _KILLED
    if ended.state == "succeeded":
        return 0
    if ended.state == "signal" and ended.signal:
        return 128 + ended.signal
    if first is not None:
        return first.exit_code or 128 + (first.signal or 0)
    told = sorted(ended.failures, key=lambda failure: failure["timestamp_s"])
    own = [failure["exit_code"] for failure in told if failure["exit_code"] != -15] or [
        failure["exit_code"] for failure in told
    ]
    if not own:
        return 1
    return own[0] if own[0] > 0 else 128 - own[0]


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9, and the number where it has no name."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


_CLOSING = re.compile(rb"Sending process (\d+) closing signal")
_TAIL_BYTES = 1 << 20


def closed_by_torchrun(settings: Settings) -> frozenset[int]:
    """Return the pids that torchrun says it has ended; none where its messages are not recorded."""
    path = Path(settings.directory or ".") / f"node-{settings.node}" / "launcher.err"
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            return frozenset(int(pid) for pid in _CLOSING.findall(file.read(_TAIL_BYTES)))
    except OSError:
        return frozenset()


def attributed(attempt: EndedAttempt, closed: frozenset[int]) -> EndedAttempt:
    """Return the attempt with ``ended_by`` "launcher" for each rank of ``closed``, and ``first`` none of them."""
    ranks = tuple(replace(each, ended_by="launcher") if each.pid in closed else each for each in attempt.ranks)
    own = {each.rank for each in ranks if failed_by_itself(each)}
    return replace(attempt, ranks=ranks, first=attempt.first if attempt.first in own else None)


def failed_by_itself(rank: EndedRank) -> bool:
    """Whether the rank failed before anybody asked it to end."""
    return rank.ended_by != "launcher" and bool(rank.exit_code or rank.signal)
