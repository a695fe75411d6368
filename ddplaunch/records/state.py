"""In which state a run is, from its record and the processes of this machine; refuses to read either."""

from __future__ import annotations

from typing import Literal

from ddplaunch.probes.run_processes import RunProcesses
from ddplaunch.records.find import RunRecord
from ddplaunch.records.processes import NodeProcesses

#: "running": its launcher lives here. "orphaned": ranks live here, their launcher does not. "elsewhere": no outcome,
#: and it was started on another host. "ended": nothing of it runs here, and nobody wrote how it ended. "unreadable":
#: the record was written by a newer ddplaunch or is damaged.
State = Literal[
    "running", "orphaned", "succeeded", "failed", "terminated", "killed", "ended", "elsewhere", "unreadable"
]
_RECORDED: tuple[State, ...] = ("succeeded", "failed", "terminated", "killed")


def state_of(
    record: RunRecord | None, processes: RunProcesses | None, nodes: tuple[NodeProcesses, ...], host: str
) -> State:
    """Return the state. What runs outranks what is written: a node may end before the others do."""
    if processes is not None:
        return "running" if processes.launchers or processes.guards else "orphaned"
    if record is None:
        return "ended"
    for state in _RECORDED:
        if (record.outcome or {}).get("state") == state:
            return state
    if record.problem is not None:
        return "unreadable"
    hosts = {node.host for node in nodes} or {record.value("host", "host", "name")}
    return "elsewhere" if hosts - {host, None, ""} else "ended"


def hosts_of(record: RunRecord | None, nodes: tuple[NodeProcesses, ...], host: str) -> tuple[str, ...]:
    """Return the hosts of a run by node, as far as the record names them; this host where it names none."""
    named = {node.node: node.host for node in nodes if node.host}
    for number, outcome in (record.outcomes if record is not None else {}).items():
        if isinstance(name := outcome.get("host"), str):
            named.setdefault(number, name)
    if not named:
        first = record.value("host", "host", "name") if record is not None else host
        return (first,) if isinstance(first, str) else ()
    return tuple(dict.fromkeys(named[number] for number in sorted(named)))
