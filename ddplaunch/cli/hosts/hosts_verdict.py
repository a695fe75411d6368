"""Decides on which host a launch began to fail, why, and how the whole launch ended, from all hosts' records.

``records/first_failure.py`` decides which node's failure counts; this module finds its reason.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import localtime, strftime

from ddplaunch.explain.diagnosis import VAGUE, Diagnosis, Explanation, RunFacts
from ddplaunch.explain.explain_logs import explain_texts
from ddplaunch.explain.signatures import say
from ddplaunch.hosts.session.start_hosts import HostEnd
from ddplaunch.records.directory import read_stop
from ddplaunch.records.explain_sources import recorded_run
from ddplaunch.records.find import RunRecord
from ddplaunch.records.first_failure import NodeFailure, first_node_to_fail, node_failure, status_of_all, steady_s
from ddplaunch.records.hosts_record import merged_attempts
from ddplaunch.records.launchers import read_launched
from ddplaunch.records.outcome import RunOutcome, RunState, rank_end
from ddplaunch.records.run_states import summary
from ddplaunch.ui.outcome_view import told_in_log
from ddplaunch.values.finding import ExitStatus
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import host_name, listed, signal_name
from ddplaunch.watch.phases import late_host_of_run

_TOGETHER_S = 5.0
_RECOVERS_S = 120.0  # after a cut TCP tries again at ever longer intervals, up to so many seconds
_AWAKE = (
    "launch from a machine that stays up, such as the login node; with `--detach` it needs no terminal",
    "`ddplaunch submit` where there is Slurm: nothing has to stay up for it",
)


def lost(end: HostEnd, ends: Sequence[HostEnd]) -> Diagnosis:
    """Return the diagnosis for ``end``, the first lost host. If all were lost at once, this machine is the suspect."""
    heard_s = [host_end.heard_s for host_end in ends if host_end.lost is not None]
    if len(heard_s) == len(ends) > 1 and max(heard_s) - min(heard_s) < _TOGETHER_S:
        return Diagnosis(
            "launcher-cut-off",
            "likely",
            f"all {len(ends)} hosts were lost at once; of {end.name}: {end.lost}",
            "so many do not go at once, but this machine's own network may, and it may have slept; what runs on the "
            "hosts ends itself when it hears nothing of the launcher",
            (f"`ssh {end.name} uptime` says whether they can be reached again", *_AWAKE),
            host=socket.gethostname(),
        )
    return Diagnosis(
        "host-lost",
        "observed",
        f"{end.name} was lost: {end.lost}",
        "its power, its network, its ssh or ddplaunch there went away while its ranks ran; what runs there ends itself "
        "when it hears nothing of a launcher that was cut off, stopped or asleep, and all other hosts were ended",
        (
            f"`ssh {end.name} uptime` says whether it is back, `ddplaunch doctor --hosts {end.name}` what is wrong",
            f"start again without it: `--exclude {end.name}`",
        ),
        host=end.name,
    )


def told_by_launcher(directory: Path) -> bool:
    """Return whether the launcher over ssh wrote one outcome for all hosts; it then moves node 0's own elsewhere."""
    return (directory / "node-0" / "outcome.json").exists()


def launcher_lost(directory: Path) -> Diagnosis | None:
    """Return the diagnosis for ranks that got a signal because their launcher over ssh died; None if it did not."""
    launched = read_launched(directory)
    if launched is None or told_by_launcher(directory):
        return None
    hosts = listed(list(dict.fromkeys(place.host for place in launched.places)), 4, " and ")
    return Diagnosis(
        "launcher-lost",
        "likely",
        f"the launcher on {launched.host} died, and {hosts} ended the run",
        "hosts that hear nothing of their launcher for `--host-timeout`, or whose connection to it closes, end what it "
        "started there; it left no word of its own, as after `kill -9`, a loss of power or of memory",
        (*_AWAKE, "`dmesg -T | grep -iE 'oom|killed process'` there for memory, `last -x` for its restarts"),
        host=launched.host,
    )


def unsaid(record: RunRecord) -> Diagnosis | None:
    """Return the diagnosis of a run without an outcome; None where another host may know more, or it never began.

    A launcher that ends by itself, or by a signal that can be caught, writes how the run ended.
    """
    if not record.run:
        return None
    if summary(record.directory, None, host_name()).state != "ended":
        return None
    return launcher_lost(record.directory) or Diagnosis(
        "unknown",
        "unknown",
        f"how run {record.run_id} ended is not recorded, and its launcher is gone",
        "`kill -9`, the kernel when memory is short, or a loss of power leaves a program no time to say anything; a "
        "full disk takes no record",
        (
            "`dmesg -T | grep -iE 'oom|killed process'` for memory, `last -x` for the machine's restarts",
            "the last lines of each rank: `ddplaunch logs --lines 20`",
        ),
    )


def most_telling(from_logs: Explanation, of_nodes: Iterable[Explanation | None]) -> Explanation:
    """Return the explanation from the logs of all nodes, or, where that is vague, a node's own, which may come from
    outside its logs: its kernel, its cgroup, its scheduler.
    """
    diagnosis = from_logs.diagnosis
    if diagnosis is None or diagnosis.code not in VAGUE:
        return from_logs
    own = [(one, one.diagnosis) for one in of_nodes if one is not None and one.diagnosis is not None]
    named = [one for one, found in own if found.code not in VAGUE]
    from_outside = (
        one
        for one, found in own
        if found.code == diagnosis.code and any(not evidence.line for evidence in found.evidence)
    )
    return next(iter((*named, *from_outside)), from_logs)


@dataclass(frozen=True)
class EndedLaunch:
    """The facts about a launch on all hosts that began at ``begun_s``, in the order of their nodes.

    ``outcomes`` are by node, with times by the launcher's clock. ``interrupted`` is the signal that ended the launch.
    """

    directory: Path
    run_id: str
    begun_s: float
    ends: Sequence[HostEnd]
    outcomes: Mapping[int, RunOutcome]
    interrupted: int | None

    def outcome(self) -> RunOutcome:
        """Return how the whole launch ended; its node is the one where it began to fail."""
        state: RunState
        explanation = Explanation(None)
        first = first_node_to_fail(self._failures(), self.interrupted is not None)
        stopped = None if first is not None else self._stopped()
        bad = next((end for end in self.ends if end.status), None)
        if first is None and stopped is None and self.interrupted is None and bad is not None:
            first = NodeFailure(bad.heard_s, bad.node, "other")
        if first is not None:
            explanation, end = self._explain(first), self.ends[first.node]
            accused = None if explanation.diagnosis is None else explanation.diagnosis.rank
            status = status_of_all(first, accused, self.outcomes, end.status)
            state, node, host = "killed" if first.kind == "torchrun" else "failed", end.node, end.name
        elif stopped is not None:
            end, explanation = stopped
            state, status, node, host = "terminated", 128 + signal.SIGTERM, end.node, end.name
        elif self.interrupted is not None:
            state, status, node, host = "terminated", 128 + self.interrupted, 0, ""
        else:
            state, status, node, host = "succeeded", 0, 0, self.ends[0].name
        diagnosis = explanation.diagnosis
        return RunOutcome(
            run_id=self.run_id,
            host=host,
            node=node,
            state=state,
            exit_status=status,
            started_s=round(self.begun_s, 3),
            ended_s=round(steady_s(), 3),
            first_failed_rank=None if diagnosis is None else diagnosis.rank,
            diagnosis=diagnosis,
            cascade=explanation.cascade,
            attempts=merged_attempts(self.outcomes.values(), diagnosis),
            notes=tuple(
                f"{end.name}: its record was not brought; `ddplaunch explain` tries again"
                for end in self.ends
                if end.lost is not None or (end.node not in self.outcomes and end.status != ExitStatus.REFUSED)
            ),
            findings=(
                *dict.fromkeys(finding for one in self.outcomes.values() for finding in one.findings),
                *late_host_of_run(self.directory, [end.name for end in self.ends]),
            ),
        )

    def _failures(self) -> Iterator[NodeFailure]:
        for end in self.ends:
            outcome, is_lost = self.outcomes.get(end.node), end.lost is not None
            failure = node_failure(end.node, outcome, end.status, told=end.told, lost=is_lost, heard_s=end.heard_s)
            if failure is not None:
                yield failure

    def _stopped(self) -> tuple[HostEnd, Explanation] | None:
        """Return a host where `ddplaunch stop` ended the run, typed here or there, with that explanation, or None."""
        noted = read_stop(self.directory, self.begun_s)
        if self.interrupted == signal.SIGTERM and noted is not None and not noted.launcher_lost:
            words, host = say("stopped", user=noted.user), socket.gethostname()
            diagnosis = Diagnosis("terminated", "observed", *words, host=host, is_stop=True)
            return self.ends[0], Explanation(diagnosis)
        for outcome in sorted(self.outcomes.values(), key=lambda outcome: outcome.ended_s):
            end, found = self.ends[outcome.node], outcome.diagnosis
            if end.told is None and outcome.state == "terminated" and found is not None and found.is_stop:
                return end, Explanation(replace(found, host=end.name))
        return None

    def _explain(self, first: NodeFailure) -> Explanation:
        """Explain the first failure; where its logs say little, by a host that was silent at that time."""
        explanation = self._explain_first(first)
        diagnosis = explanation.diagnosis
        silent = [end for end in self.ends if end.silence[0] <= first.at_s <= end.silence[1] + _RECOVERS_S]
        if diagnosis is None or diagnosis.code not in VAGUE or not 0 < len(silent) < len(self.ends):
            return explanation  # if all were silent, it may have been this machine
        from_time, to_time = (strftime("%H:%M:%S", localtime(moment_s)) for moment_s in silent[0].silence)
        cut_off = replace(silent[0], lost=f"nothing was heard of it from {from_time} to {to_time}; {diagnosis.what}")
        return replace(explanation, diagnosis=replace(lost(cut_off, ()), evidence=diagnosis.evidence))

    def _explain_first(self, first: NodeFailure) -> Explanation:
        """Explain the first failure from its host's own outcome and, where ranks failed, from all logs."""
        end = self.ends[first.node]
        if first.kind == "lost":
            return Explanation(lost(end, self.ends))
        own = self.outcomes[end.node].explanation if end.node in self.outcomes else None
        known = None if own is None else own.diagnosis
        if first.kind == "ranks":
            with suppress(OSError, ValueError, KeyError, TypeError):
                of_others = (outcome.explanation for outcome in self.outcomes.values())
                explanation = most_telling(self._from_logs(end.node), [own, *of_others])
                diagnosis = explanation.diagnosis
                if diagnosis is not None and (diagnosis.rank is not None or known is None):
                    return replace(explanation, diagnosis=replace(diagnosis, host=self._host(diagnosis.rank, end)))
        # A host whose disk took no record may still have printed the reason.
        known = known or told_in_log(end.said.decode(errors="replace"))
        return Explanation(_nothing_known(end) if known is None else replace(known, host=end.name))

    def _from_logs(self, first: int) -> Explanation:
        """Explain the logs of all nodes together, with the times at which ranks ended by one clock.

        ``first`` is the node that failed first. The torchruns of nodes that were ended afterwards are left out: what
        they print looks as if the run had been ended from outside.
        """
        subject = recorded_run(self.directory)
        stopped_launchers = {
            f"node-{node}/launcher"
            for node, outcome in self.outcomes.items()
            if node != first and outcome.state == "terminated"
        }
        sources = tuple(source for source in subject.sources if source.name.partition(".")[0] not in stopped_launchers)
        ranks = tuple(rank_end(rank) for outcome in self.outcomes.values() for rank in outcome.last_ranks)
        facts = replace(subject.facts or RunFacts(), ranks=ranks, state="failed", signal=None)
        return explain_texts(sources, facts)

    def _host(self, rank: int | None, first: HostEnd) -> str:
        """Return the host of a rank as the user named it. Another host's log may contain a line about the rank."""
        nodes = {end.rank: node for node, outcome in self.outcomes.items() for end in outcome.last_ranks}
        return first.name if rank is None else self.ends[nodes.get(rank, first.node)].name


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
        "its record was not brought, or its torchrun and what guards it are gone or could not write there; what they "
        "said is above",
        (f"`ddplaunch explain` asks {end.name} again for its record, and reads those of all hosts",),
        host=end.name,
    )
