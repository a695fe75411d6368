"""``stop`` for a run that was launched from here on other hosts; refuses to choose the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from ddplaunch.cli.say import answer_json, tell, tell_findings
from ddplaunch.errors import ExitStatus
from ddplaunch.finding import Finding
from ddplaunch.hosts.stop_elsewhere import HostStopped, ask_hosts
from ddplaunch.hosts.stopping import Stopped, stop_resident
from ddplaunch.probes.process_table import Process
from ddplaunch.probes.run_processes import RunProcesses
from ddplaunch.records.find import RunRecord, read_record
from ddplaunch.records.residents import Launched
from ddplaunch.ui.stop_hosts_view import (
    begin_asking,
    begin_together,
    hosts_findings,
    hosts_lines,
    together_json,
    together_text,
)
from ddplaunch.ui.stop_view import stop_findings

LONGER_S = 5.0  # so that torchrun, and not this command, is the one that insists


def stop_launched(run: RunProcesses, launched: Launched, launcher: Process, grace_s: float | None, json: bool) -> int:
    """Have the launcher end its run on all hosts; where it had to be killed, ask each host whether it has ended."""
    own_s = launched.grace_s + LONGER_S
    grace_s = own_s if grace_s is None else grace_s
    tell(begin_together(launched, grace_s))
    stopped = stop_resident(run, launcher, grace_s, own_s)
    hosts: tuple[HostStopped, ...] = ()
    if not stopped.remaining:
        record = read_record(launched.directory)
        hosts = told_by(record, launched) if is_concluded(record) else _ask(launched, grace_s)
    if not json:
        tell(together_text(stopped, hosts))
    return _conclude(launched, stopped, hosts, stop_findings(stopped, ()), json)


def stop_without_launcher(launched: Launched, grace_s: float | None, json: bool) -> int:
    """Ask every host to end what it still runs, since the launcher that would is gone."""
    tell(begin_asking(launched))
    hosts = _ask(launched, launched.grace_s + LONGER_S if grace_s is None else grace_s)
    if not json:
        tell(hosts_lines(hosts))
    return _conclude(launched, None, hosts, (), json)


def _ask(launched: Launched, grace_s: float) -> tuple[HostStopped, ...]:
    pairs = list(dict.fromkeys((place.host, place.python) for place in launched.places))
    return ask_hosts(pairs, launched.run_id, grace_s)


def _conclude(
    launched: Launched,
    stopped: Stopped | None,
    hosts: Sequence[HostStopped],
    findings: Sequence[Finding],
    json: bool,
) -> int:
    if json:
        answer_json(together_json(launched.run_id, stopped, hosts))
    findings = (*findings, *hosts_findings(launched.run_id, hosts))
    tell_findings(findings)
    return ExitStatus.FINDINGS if findings else ExitStatus.DONE


def is_concluded(record: RunRecord) -> bool:
    """Return whether the launcher saw every host end: it writes one outcome for all, with a note for a lost one."""
    return record.outcome is not None and "notes" in record.outcome and not record.outcome["notes"]


def told_by(record: RunRecord, launched: Launched) -> tuple[HostStopped, ...]:
    """Return which ranks ended on which host in the last attempt, as the outcome of all hosts has them."""
    attempts = record.ended("attempts", list) or []
    ranks = attempts[-1].get("ranks", []) if attempts and isinstance(attempts[-1], dict) else []
    ended: dict[int | None, list[dict[str, Any]]] = {}
    for rank in ranks:
        if isinstance(rank, dict):
            ended.setdefault(_node_of(rank), []).append(_entry(rank))
    return tuple(HostStopped(place.host, tuple(ended.get(place.node, ()))) for place in launched.places)


def _node_of(rank: Mapping[str, Any]) -> int | None:
    """Return the node whose directory has the rank's output."""
    folder = PurePosixPath(str(rank.get("out") or "")).parts[:1]
    number = folder[0].removeprefix("node-") if folder else ""
    return int(number) if number.isdecimal() else None


def _entry(rank: Mapping[str, Any]) -> dict[str, Any]:
    by = "SIGKILL" if rank.get("signal") == "SIGKILL" else "itself"
    return {"pid": rank.get("pid"), "role": f"rank {rank.get('rank')}", "rank": rank.get("rank"), "by": by}
