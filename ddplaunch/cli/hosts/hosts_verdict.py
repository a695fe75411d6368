"""On which host a launch began to fail, why, and how the whole launch ended, from what all hosts recorded and sent.

``records/first_failure.py`` decides which node's failure counts; here it gets its reason.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ddplaunch.explain.command_fixes import STOPPED, stopped_by
from ddplaunch.explain.diagnosis import Diagnosis, Explanation, RunFacts
from ddplaunch.explain.explain_logs import explain_texts
from ddplaunch.hosts.session.start_hosts import HostEnd
from ddplaunch.records import directory as of_run
from ddplaunch.records.explain_sources import recorded_run
from ddplaunch.records.find import RunRecord
from ddplaunch.records.first_failure import NodeFailure, first_node_to_fail, node_failure, status_of_all, steady_s
from ddplaunch.records.hosts_record import merged_attempts
from ddplaunch.records.launchers import Launched, read_launched
from ddplaunch.records.outcome import RunOutcome, RunState, rank_end
from ddplaunch.records.run_states import summary
from ddplaunch.ui.outcome_view import told_in_log
from ddplaunch.values.finding import ExitStatus
from ddplaunch.values.words import duration_text, host_name, listed, signal_name

_TOGETHER_S = 5.0
_AWAKE = (
    "launch from a machine that stays up, such as the login node; with `--detach` it needs no terminal",
    "`ddplaunch submit` where there is Slurm: nothing has to stay up for it",
)


def lost(end: HostEnd, ends: Sequence[HostEnd]) -> Diagnosis:
    """Return the diagnosis of ``end``, the first of the hosts that were lost. All at once points at this machine."""
    if end.still_s:
        return Diagnosis(
            "launcher-stood-still",
            "observed",
            f"this launcher stood still for {duration_text(end.still_s)}, and the run ended meanwhile",
            "a machine that sleeps, or a process that is stopped, sends nothing; hosts that hear nothing of their "
            "launcher for a minute end what it started there",
            _AWAKE,
            host=socket.gethostname(),
        )
    heard_s = [host_end.heard_s for host_end in ends if host_end.lost is not None]
    if len(heard_s) == len(ends) > 1 and max(heard_s) - min(heard_s) < _TOGETHER_S:
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
            f"start again without it: `--exclude {end.name}`",
        ),
        host=end.name,
    )


def hosts_named(launched: Launched) -> str:
    """Return the hosts of a launch as words."""
    return listed(list(dict.fromkeys(place.host for place in launched.places)), 4, " and ")


def told_by_launcher(directory: Path) -> bool:
    """Return whether the launcher over ssh wrote one outcome for all hosts; it moves node 0's out of its place."""
    return (directory / "node-0" / "outcome.json").exists()


def launcher_lost(directory: Path) -> Diagnosis | None:
    """Return what a signal meant that the ranks of a run over ssh got, where its launcher did not live to say so."""
    launched = read_launched(directory)
    if launched is None or told_by_launcher(directory):
        return None
    return Diagnosis(
        "launcher-lost",
        "likely",
        f"the launcher on {launched.host} died, and {hosts_named(launched)} ended the run",
        "hosts that hear nothing of their launcher for a minute, or whose connection to it closes, end what it started "
        "there; it left no word of its own, as after `kill -9`, a loss of power or of memory",
        (*_AWAKE, "`dmesg -T | grep -iE 'oom|killed process'` there for memory, `last -x` for its restarts"),
        host=launched.host,
    )


def unsaid(record: RunRecord) -> Diagnosis | None:
    """Return what can be said of a run that left no outcome; None where another host may know, or it never began.

    A launcher that ends by itself, or by a signal that can be caught, writes how the run ended.
    """
    if not record.run:
        return None
    launched, state = read_launched(record.directory), summary(record.directory, None, host_name()).state
    if state != "ended":
        return None
    what = f"how run {record.run_id} ended is not recorded, and its launcher is gone"
    why = (
        "`kill -9`, the kernel when memory is short, or a loss of power leaves a program no time to say anything; a "
        "full disk takes no record"
    )
    look = "`dmesg -T | grep -iE 'oom|killed process'` for memory, `last -x` for the machine's restarts"
    if launched is None:
        return Diagnosis(
            "unknown", "unknown", what, why, (look, "the last lines of each rank: `ddplaunch logs --tail 20`")
        )
    return Diagnosis(
        "launcher-lost", "unknown", what, why, (f"its hosts keep their records: {hosts_named(launched)}", look)
    )


_LOOK = "`ddplaunch explain` reads all that was printed; each host's output is in the record"


def decide(
    directory: Path,
    run_id: str,
    begun_s: float,
    ends: Sequence[HostEnd],
    outcomes: Mapping[int, RunOutcome],
    interrupted: int | None,
) -> RunOutcome:
    """Return how the whole launch ended that began at ``begun_s``; its node is the one where it began to fail.

    ``outcomes`` are by node, their times by the launcher's clock.
    """
    state: RunState
    explanation = Explanation(None)
    first = first_node_to_fail(_failures(ends, outcomes), interrupted is not None)
    bad = next((end for end in ends if end.status), None)
    stopped = None if first is not None else _stopped(directory, begun_s, ends, outcomes, interrupted)
    if first is None and interrupted is None and bad is not None and stopped is None:
        first = NodeFailure(bad.heard_s, bad.node, "other")
    if first is not None:
        end = next(end for end in ends if end.node == first.node)
        explanation = _explain(directory, first.kind, end, ends, outcomes)
        accused = None if explanation.diagnosis is None else explanation.diagnosis.rank
        status = status_of_all(first, accused, outcomes, end.status)
        state, node, host = "killed" if first.kind == "torchrun" else "failed", end.node, end.name
    elif stopped is not None:
        end, found = stopped
        explanation = Explanation(found)
        state, status, node, host = "terminated", 128 + signal.SIGTERM, end.node, end.name
    elif interrupted is not None:
        state, status, node, host = "terminated", 128 + interrupted, 0, ""
    else:
        state, status, node, host = "succeeded", 0, 0, ends[0].name
    diagnosis = explanation.diagnosis
    return RunOutcome(
        run_id=run_id,
        host=host,
        node=node,
        state=state,
        exit_status=status,
        started_s=round(begun_s, 3),
        ended_s=round(steady_s(), 3),
        first_failed_rank=None if diagnosis is None else diagnosis.rank,
        diagnosis=diagnosis,
        cascade=explanation.cascade,
        attempts=merged_attempts(outcomes.values(), diagnosis),
        notes=tuple(
            f"{end.name}: its record was not brought"
            for end in ends
            if end.lost is not None or (end.node not in outcomes and end.status != ExitStatus.REFUSED)
        ),
        findings=tuple(dict.fromkeys(finding for outcome in outcomes.values() for finding in outcome.findings)),
    )


def _stopped(
    directory: Path,
    begun_s: float,
    ends: Sequence[HostEnd],
    outcomes: Mapping[int, RunOutcome],
    interrupted: int | None,
) -> tuple[HostEnd, Diagnosis] | None:
    """Return what says that `ddplaunch stop` ended a run, and a host where it did: typed here, or on that host."""
    noted = of_run.read_stop(directory, begun_s)
    if interrupted == signal.SIGTERM and noted is not None and not noted.launcher_lost:
        return ends[0], Diagnosis("terminated", "observed", *stopped_by(noted.user), host=socket.gethostname())
    outcomes_with_ends = [(outcomes[end.node], end) for end in ends if end.node in outcomes and end.told is None]
    for outcome, end in sorted(outcomes_with_ends, key=lambda pair: pair[0].ended_s):
        diagnosis = outcome.diagnosis
        if outcome.state == "terminated" and diagnosis is not None and diagnosis.what == STOPPED:
            return end, replace(diagnosis, host=end.name)
    return None


def _failures(ends: Sequence[HostEnd], outcomes: Mapping[int, RunOutcome]) -> Iterator[NodeFailure]:
    for end in ends:
        outcome, lost = outcomes.get(end.node), end.lost is not None
        failure = node_failure(end.node, outcome, end.status, told=end.told, lost=lost, heard_s=end.heard_s)
        if failure is not None:
            yield failure


def _explain(
    directory: Path, kind: str, end: HostEnd, ends: Sequence[HostEnd], outcomes: Mapping[int, RunOutcome]
) -> Explanation:
    """Explain the failure of ``end``, the first host, from what it found and, where ranks failed, from all logs."""
    if kind == "lost":
        return Explanation(lost(end, ends))
    own_diagnosis = outcomes[end.node].diagnosis if end.node in outcomes else None
    if kind == "ranks":
        try:
            explanation = _explain_all(directory, end.node, outcomes)
        except (OSError, ValueError, KeyError, TypeError):
            explanation = Explanation(None)
        if explanation.diagnosis is not None and (explanation.diagnosis.rank is not None or own_diagnosis is None):
            return replace(explanation, diagnosis=_with_host(explanation.diagnosis, outcomes, ends, end))
    if own_diagnosis is None:
        # Its disk took no record, but it said why.
        own_diagnosis = told_in_log(end.said.decode(errors="replace"), end.name)
    if own_diagnosis is not None:
        return Explanation(replace(own_diagnosis, host=end.name))
    return Explanation(_nothing_known(end))


def _explain_all(directory: Path, first: int, outcomes: Mapping[int, RunOutcome]) -> Explanation:
    """Explain the logs of all nodes together, with the times at which ranks ended by one clock.

    ``first`` is the node that failed first. Others were then told to end, which their torchruns put into words that an
    ending from outside has, too.
    """
    subject = recorded_run(directory)
    stopped_launchers = {
        f"node-{node}/launcher" for node, each in outcomes.items() if node != first and each.state == "terminated"
    }
    sources = tuple(source for source in subject.sources if source.name.partition(".")[0] not in stopped_launchers)
    ranks = tuple(rank_end(each) for outcome in outcomes.values() for each in outcome.last_ranks)
    facts = replace(subject.facts or RunFacts(), ranks=ranks, state="failed", signal=None)
    return explain_texts(sources, facts)


def _with_host(
    diagnosis: Diagnosis, outcomes: Mapping[int, RunOutcome], ends: Sequence[HostEnd], first: HostEnd
) -> Diagnosis:
    """Name the host as the user did. A line about a rank may stand in another host's log."""
    names = {end.node: end.name for end in ends}
    hosts = {rank.rank: names.get(node) for node, outcome in outcomes.items() for rank in outcome.last_ranks}
    return replace(diagnosis, host=(None if diagnosis.rank is None else hosts.get(diagnosis.rank)) or first.name)


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
    how = f"by {signal_name(status - 128)}" if 128 < status < 160 else f"with status {status}"
    return Diagnosis(
        "unknown",
        "unknown",
        f"the launch on {end.name} ended {how} before the others, and left no record that says why",
        "its torchrun and what guards it are gone, never started, or could not write there; what they said is above",
        (_LOOK,),
        host=end.name,
    )
