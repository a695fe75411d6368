"""What ``stop`` is about to do and what it did, on one host or several, in words and as JSON."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddplaunch.hosts.local.stop_run import HostStopped, Stopped
from ddplaunch.machine.files import owner_name
from ddplaunch.machine.processes.process_table import Process
from ddplaunch.machine.processes.run_processes import RunProcesses, is_guard, is_launcher
from ddplaunch.records.launchers import Launched
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding, error, warning
from ddplaunch.values.words import count, listed, ranks_text

_SCHEMA = 1


def begin_text(run: RunProcesses, grace_s: float) -> str:
    """Return a line about the action that begins, so that the wait is not silent."""
    if not run.launchers:
        return f"{run.run_id}: torchrun is gone; SIGTERM to {_listed(_entries(run.ranks or run.children, run))}\n"
    pids = ", ".join(f"pid {process.pid}" for process in run.launchers)
    return f"{run.run_id}: SIGTERM to torchrun ({pids}), SIGKILL after {grace_s:g} s\n"


def begin_on_hosts(launched: Launched, grace_s: float | None) -> str:
    """Return a line about the action that begins; without launcher, ``grace_s`` is None and each host is asked."""
    hosts = listed([place.host for place in launched.places], 3, " and ")
    head = f"{launched.run_id}: its launcher (pid {launched.pid})"
    if grace_s is None:
        return f"{head} is gone; asking {hosts}\n"
    return f"{head} gets SIGTERM, to end the run on {hosts}; SIGKILL after {grace_s:g} s\n"


def stopped_text(stopped: Stopped, hosts: Sequence[HostStopped] = ()) -> str:
    """Return what ended, here or on each of the ``hosts`` that answered, and what only SIGKILL ended."""
    run = stopped.run
    how = _how(_ended(stopped), _entries(stopped.remaining, run))
    head = f"{'not stopped' if stopped.remaining else 'stopped'} {run.run_id} after {stopped.took_s:.1f} s"
    return f"{head}\n{hosts_lines(hosts)}" if hosts else f"{head}: {how}\n"


def hosts_lines(hosts: Sequence[HostStopped]) -> str:
    """Return a line for each host that answered."""
    return "".join(f"  {host.host}: {_how(host.ended, host.remaining)}\n" for host in hosts if host.problem is None)


def _how(ended: Sequence[Mapping[str, Any]], remaining: Sequence[Mapping[str, Any]]) -> str:
    soft = _listed(entry for entry in ended if entry.get("by") != "SIGKILL")
    hard = _listed(entry for entry in ended if entry.get("by") == "SIGKILL")
    groups = {"ended ": soft, "SIGKILL ended ": hard, "still running: ": _listed(remaining)}
    return "; ".join(label + text for label, text in groups.items() if text) or "nothing of it is left"


def _listed(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return ``torchrun, ranks 0-3 and 2 child processes``; the pids are in the JSON."""
    roles = Counter(str(entry.get("role")) for entry in entries)
    ranks = sorted(int(role[5:]) for role in roles if re.fullmatch(r"rank \d{1,9}", role))
    names = [role for role in roles if role != "child" and not role.startswith("rank ")]
    names += [ranks_text(ranks)] if ranks else []
    names += [count(roles["child"], "child process")] if roles["child"] else []
    return listed(names, len(names), " and ")


def stop_findings(
    run_id: str, stopped: Stopped | None, elsewhere: Sequence[str], hosts: Sequence[HostStopped] = ()
) -> tuple[Finding, ...]:
    """Return what is left to do: another user's processes, processes that do not end, hosts that were not asked."""
    findings = [host.problem for host in hosts if host.problem is not None]
    if stopped and stopped.denied:
        owner = owner_name(stopped.denied[0].uid)
        findings.append(
            error(
                "not-permitted",
                f"{run_id} belongs to {owner}",
                why="only its owner and root may end a process",
                fix=f"ask {owner}, or `sudo ddplaunch stop {run_id}`",
            )
        )
    elif stopped and stopped.remaining:
        names = _listed(_entries(stopped.remaining, stopped.run))
        findings.append(does_not_end(names, [process.pid for process in stopped.remaining]))
    if elsewhere:
        findings.append(
            warning(
                "other-hosts",
                f"{run_id} has processes on other hosts, which were not looked at",
                why="a process is ended on the host that it runs on",
                fix=" and ".join(f"`ssh {host} ddplaunch stop {run_id}`" for host in elsewhere),
                where=tuple(elsewhere),
            )
        )
    for host in hosts:
        if host.remaining:
            pids = [entry.get("pid") for entry in host.remaining]
            findings.append(does_not_end(f"{_listed(host.remaining)} of {run_id}", pids, host.host))
    return tuple(findings)


def does_not_end(names: str, pids: Iterable[Any], host: str = "") -> Finding:
    """Return the finding for processes, of this host or ``host``, that SIGKILL did not end."""
    ssh = f"ssh {shlex.quote(host)} " if host else ""
    return error(
        "does-not-end",
        f"SIGKILL did not end {names}",
        why="in state D the kernel waits for a device or a file server, and takes no signal until it answers",
        fix=f"`{ssh}ps -o pid,user,stat,wchan:32,cmd -p {','.join(map(str, pids))}` shows what each waits for",
        where=host or (),
    )


def stop_json(
    run_id: str, stopped: Stopped | None, elsewhere: Sequence[str] = (), hosts: Sequence[HostStopped] = ()
) -> dict[str, Any]:
    """Return the result as data; ``by`` is "itself" or "SIGKILL". ``stopped`` is None where the launcher was gone."""
    remaining = [] if stopped is None else _entries(stopped.remaining, stopped.run)
    unasked = [host.host for host in hosts if host.problem is not None]
    shown = [{**plain(host), "problem": None if host.problem is None else host.problem.what} for host in hosts]
    return {
        "schema": _SCHEMA,
        "run_id": run_id,
        "stopped": not (remaining or unasked or any(host.remaining for host in hosts)),
        "took_s": None if stopped is None else round(stopped.took_s, 3),
        "ended": [
            *(_ended(stopped) if stopped is not None and not hosts else ()),
            *({**entry, "host": host.host} for host in hosts for entry in host.ended),
        ],
        "remaining": [*remaining, *({**entry, "host": host.host} for host in hosts for entry in host.remaining)],
        "not_permitted": [] if stopped is None else _entries(stopped.denied, stopped.run),
        "other_hosts": [*elsewhere, *unasked],
        **({"hosts": shown} if hosts else {}),
    }


def _ended(stopped: Stopped) -> list[dict[str, Any]]:
    groups = (("itself", stopped.ended), ("SIGKILL", stopped.killed))
    return [{**entry, "by": by} for by, group in groups for entry in _entries(group, stopped.run)]


def _entries(processes: Sequence[Process], run: RunProcesses) -> list[dict[str, Any]]:
    return [
        {"pid": process.pid, "role": _role_of(process, run), "rank": process.number("RANK")} for process in processes
    ]


def _role_of(process: Process, run: RunProcesses) -> str:
    """Return ``torchrun``, ``launcher`` (over ssh), ``rank 3``, ``child`` (also detached), or the guard's role."""
    if is_guard(process):
        return "ddplaunch's recorder"
    if any(process.pid == launcher.pid for launcher in run.launchers):
        return "torchrun" if is_launcher(process) else "launcher"
    rank = process.number("RANK")
    leads = process.session == process.pid and all(process.pid != child.pid for child in run.children)
    return f"rank {rank}" if rank is not None and leads else "child"
