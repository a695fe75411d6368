"""On which host a launch began to fail and why, from what all of them recorded; refuses to guess beyond the evidence.

The node that failed first by itself counts, by one clock. A host that was lost or whose torchrun was killed is a cause,
unless ranks elsewhere had failed before.

What it means that the launcher heard nothing more of hosts; refuses to look at what ranks did.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.explain.diagnosis import Diagnosis, Explanation, RankEnd, RunFacts
from ddplaunch.explain.explain_logs import explain_texts
from ddplaunch.hosts.session.start_hosts import HostEnd
from ddplaunch.records.outcome import Verdict, diagnosis_of
from ddplaunch.records.to_explain import of_run
from ddplaunch.values.finding import ExitStatus
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import duration_text

_TOGETHER_S = 5.0
_AWAKE = (
    "launch from a machine that stays up, such as the login node, in `tmux` or `screen`",
    "`ddplaunch submit` where there is Slurm: nothing has to stay up for it",
)


def lost(end: HostEnd, ends: Sequence[HostEnd]) -> Diagnosis:
    """Return the diagnosis of ``end``, the first of the hosts that were lost. All at once points at this machine."""
    gone = [each for each in ends if each.lost is not None]
    if end.still_s:
        return Diagnosis(
            "launcher-stood-still",
            "observed",
            f"this launcher stood still for {duration_text(end.still_s)}, and the run ended meanwhile",
            "a machine that sleeps, or a process that is stopped, sends nothing; hosts that hear nothing of their "
            "launcher for 15 s end what it started there",
            _AWAKE,
            host=socket.gethostname(),
        )
    close = max(each.heard_s for each in gone) - min(each.heard_s for each in gone) < _TOGETHER_S
    if len(gone) == len(ends) > 1 and close:
        return Diagnosis(
            "launcher-cut-off",
            "likely",
            f"all {len(ends)} hosts were lost at once; of {end.name}: {end.lost}",
            "so many do not go at once, but this machine's own network may; what runs on the hosts ends itself when "
            "it hears nothing of the launcher",
            (f"`ssh {end.name} uptime` says whether they can be reached again", *_AWAKE),
            host=socket.gethostname(),
        )
    return Diagnosis(
        "host-lost",
        "observed",
        f"{end.name} was lost: {end.lost}",
        "its power, its network, its ssh or ddplaunch there went away while its ranks ran; what runs there ends itself "
        "when it hears nothing of the launcher, and all other hosts were ended",
        (
            f"`ssh {end.name} uptime` says whether it is back, `ddplaunch doctor --hosts {end.name}` what is wrong",
            "start again without it by `--exclude`",
        ),
        host=end.name,
    )


_LOOK = "`ddplaunch explain` reads all that was printed; each host's output is in the record"


@dataclass(frozen=True)
class Failure:
    """One node's own failure: when, by the launcher's clock, and of which kind."""

    at_s: float
    end: HostEnd
    kind: str  # "ranks", "torchrun", "lost", "other"


def decide(
    directory: Path, ends: Sequence[HostEnd], outcomes: Mapping[int, Mapping[str, Any]], interrupted: int | None
) -> Verdict:
    """Return how the whole launch ended. ``outcomes`` are by node, their times by the launcher's clock."""
    notes = tuple(f"{end.name}: its record was not brought" for end in ends if end.lost is not None)
    failures = sorted(
        (found for end in ends if (found := _failure(end, outcomes.get(end.node))) is not None),
        key=lambda each: (each.at_s, each.end.node),
    )
    if interrupted is not None and not any(each.kind == "ranks" for each in failures):
        return Verdict("terminated", 128 + interrupted, Explanation(None), notes=notes)
    if not failures:
        bad = next((end for end in ends if end.status), None)
        if bad is None:
            return Verdict("succeeded", 0, Explanation(None), host=ends[0].name, notes=notes)
        failures = [Failure(bad.heard_s, bad, "other")]
    first = failures[0]
    explanation = _explain(directory, first, outcomes, ends)
    status = _status(first, explanation.diagnosis, outcomes)
    state = "killed" if first.kind == "torchrun" else "failed"
    return Verdict(state, status, explanation, first.end.node, first.end.name, notes)


def _failure(end: HostEnd, outcome: Mapping[str, Any] | None) -> Failure | None:
    """Return a node's own failure; None where it succeeded, or ended because it was told to."""
    if end.lost is not None:
        return Failure(end.heard_s, end, "lost")
    if end.status == 0:
        return None
    if outcome is None:
        return None if end.told is not None else Failure(end.heard_s, end, "other")
    own = [rank for rank in _ranks(outcome) if rank.get("ended_by") != "launcher" and _failed(rank)]
    times = [rank["ended_s"] for rank in own if isinstance(rank.get("ended_s"), (int, float))]
    if times:
        return Failure(min(times), end, "ranks")
    ended_s = float(outcome.get("ended_s") or end.heard_s)
    if outcome.get("state") == "killed":
        return None if end.told == signal.SIGKILL else Failure(_earliest(outcome, ended_s), end, "torchrun")
    if outcome.get("state") == "terminated" or end.told is not None:
        return None
    return Failure(ended_s, end, "other")


def _earliest(outcome: Mapping[str, Any], otherwise_s: float) -> float:
    """When a torchrun died is not recorded; its ranks, which the guard then ended, say it best."""
    times = [rank["ended_s"] for rank in _ranks(outcome) if isinstance(rank.get("ended_s"), (int, float))]
    return min(times, default=otherwise_s) - 1.0


def _ranks(outcome: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    attempts = outcome.get("attempts") or []
    return list(attempts[-1].get("ranks") or []) if attempts else []


def _failed(rank: Mapping[str, Any]) -> bool:
    return bool(rank.get("exit_code") or rank.get("signal"))


def _explain(
    directory: Path, first: Failure, outcomes: Mapping[int, Mapping[str, Any]], ends: Sequence[HostEnd]
) -> Explanation:
    end = first.end
    if first.kind == "lost":
        return Explanation(lost(end, ends))
    own = diagnosis_of(outcomes.get(end.node, {}))
    if first.kind == "ranks":
        try:
            found = _explain_all(directory, outcomes)
        except (OSError, ValueError, KeyError, TypeError):
            found = Explanation(None)
        if found.diagnosis is not None and (found.diagnosis.rank is not None or own is None):
            return replace(found, diagnosis=_with_host(found.diagnosis, outcomes, ends, end))
    if own is not None:
        return Explanation(replace(own, host=end.name))
    return Explanation(_nothing_known(end))


def _explain_all(directory: Path, outcomes: Mapping[int, Mapping[str, Any]]) -> Explanation:
    """Explain the logs of all nodes together, with the times at which ranks ended by one clock."""
    subject = of_run(directory)
    ends = tuple(
        RankEnd(
            rank["rank"],
            rank.get("host"),
            rank.get("exit_code"),
            rank.get("signal"),
            rank.get("ended_s"),
            rank.get("ended_by"),
        )
        for outcome in outcomes.values()
        for rank in _ranks(outcome)
    )
    facts = replace(subject.facts or RunFacts(), ranks=ends, state="failed", signal=None)
    return explain_texts(subject.sources, facts)


def _with_host(
    diagnosis: Diagnosis, outcomes: Mapping[int, Mapping[str, Any]], ends: Sequence[HostEnd], first: HostEnd
) -> Diagnosis:
    """Name the host as the user did. A line about a rank may stand in another host's log."""
    names = {end.node: end.name for end in ends}
    hosts = {rank["rank"]: names.get(node) for node, outcome in outcomes.items() for rank in _ranks(outcome)}
    return replace(diagnosis, host=hosts.get(diagnosis.rank) or first.name)


def _status(first: Failure, diagnosis: Diagnosis | None, outcomes: Mapping[int, Mapping[str, Any]]) -> int:
    """Return the exit status of the rank that the diagnosis names, else that of the node."""
    for outcome in outcomes.values() if diagnosis is not None and first.kind == "ranks" else ():
        for rank in _ranks(outcome):
            if diagnosis is not None and rank["rank"] == diagnosis.rank and _failed(rank):
                return int(rank["exit_code"] or 128 + getattr(signal.Signals, str(rank["signal"]), 0))
    return first.end.status or 1


def _nothing_known(end: HostEnd) -> Diagnosis:
    status = end.status or 0
    if status == ExitStatus.REFUSED:
        return Diagnosis(
            "host-refused",
            "observed",
            f"{end.name} refused its part of the launch; what it found stands above",
            "each host checks again what it is about to start, and something there is not as it was told before",
            (f"`ddplaunch doctor --hosts {end.name}`, and launch again",),
            host=end.name,
        )
    how = f"by {signal.Signals(status - 128).name}" if 128 < status < 160 else f"with status {status}"
    return Diagnosis(
        "unknown",
        "unknown",
        f"the launch on {end.name} ended {how} before the others, and left no record that says why",
        "its torchrun and what guards it are gone, or never started",
        (_LOOK,),
        host=end.name,
    )
