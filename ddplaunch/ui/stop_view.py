"""What ``stop`` is about to do and what it did, on this host or on several, in words and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
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
_NAMED = 8  # of so many ranks or workers the pids are told


def begin_text(run: RunProcesses, grace_s: float) -> str:
    """Return what is about to be done, so that a wait is not silent."""
    if not run.launchers:
        return f"{run.run_id}: torchrun is gone; SIGTERM to {_listed(run.ranks or run.children, run)}\n"
    names = ", ".join(f"pid {process.pid}" for process in run.launchers)
    return f"{run.run_id}: SIGTERM to torchrun ({names}), SIGKILL to what is left after {grace_s:g} s\n"


def stopped_text(stopped: Stopped) -> str:
    """Return what ended, and what only SIGKILL ended."""
    ended = f"  ended: {_listed(stopped.ended, stopped.run)}\n" if stopped.ended else ""
    killed = f"  SIGKILL: {_listed(stopped.killed, stopped.run)}\n" if stopped.killed else ""
    return f"{_verdict(stopped)}\n{ended}{killed}"


def _verdict(stopped: Stopped) -> str:
    head = "not stopped" if stopped.remaining else "stopped"
    return f"{head} {stopped.run.run_id} after {stopped.took_s:.1f} s"


def stop_findings(stopped: Stopped, elsewhere: Sequence[str]) -> tuple[Finding, ...]:
    """Return what is left to do: processes of another user, ones that do not end, other hosts."""
    run_id, found = stopped.run.run_id, []
    if stopped.denied:
        owner = owner_name(stopped.denied[0].uid)
        found.append(
            error(
                "not-permitted",
                f"{run_id} belongs to {owner}: {_listed(stopped.denied, stopped.run)} may not be signalled",
                why="only its owner and root may end a process",
                fix=f"ask {owner}, or `sudo ddplaunch stop {run_id}`",
            )
        )
    elif stopped.remaining:
        what = f"{_listed(stopped.remaining, stopped.run)} {'does' if len(stopped.remaining) == 1 else 'do'} not end"
        shown = "what it waits for: a dead mount or the GPU driver"
        found.append(does_not_end(what, stopped.remaining, "the process is still there", shown))
    if elsewhere:
        found.append(
            warning(
                "other-hosts",
                f"{run_id} has processes on other hosts, which were not looked at",
                why="a process is ended on the host that it runs on",
                fix=" and ".join(f"`ssh {host} ddplaunch stop {run_id}`" for host in elsewhere),
                where=tuple(elsewhere),
            )
        )
    return tuple(found)


def does_not_end(what: str, processes: Sequence[Process], still: str, shown: str) -> Finding:
    """Return the finding for ``processes`` that SIGKILL did not end; ``shown`` is what the command for them shows."""
    pids = ",".join(str(process.pid) for process in processes)
    stuck = any(process.state == "D" for process in processes)
    return error(
        "does-not-end",
        what,
        why="state D: the kernel waits for a device or a file server, and takes no signal until it answers"
        if stuck
        else f"SIGKILL was sent, and {still}",
        fix=f"`ps -o pid,stat,wchan:32,cmd -p {pids}` shows {shown}",
    )


def _listed(processes: Sequence[Process], run: RunProcesses) -> str:
    """Return ``torchrun (pid 7), rank 0 (pid 8), 2 processes of theirs (9, 10)``; pids of many are in the JSON."""
    roles = [(process, _role_of(process, run)) for process in processes]
    ranks = [int(name.removeprefix("rank ")) for _, name in roles if name.startswith("rank ")]
    many = len(ranks) > _NAMED
    named = [f"{name} (pid {one.pid})" for one, name in roles if name and not (many and name.startswith("rank "))]
    if many:
        named.append(ranks_text(ranks))
    others = [str(process.pid) for process, name in roles if not name]
    if others:
        named.append(f"{count(len(others), 'process')} of theirs ({listed(others, _NAMED)})")
    return ", ".join(named)


def _role_of(process: Process, run: RunProcesses) -> str:
    """Return ``torchrun``, ``rank 3``, ``the guard``, or nothing for a child of a rank, also one that it detached."""
    if is_guard(process):
        return "the guard"
    if is_launcher(process):
        return "torchrun"
    rank = process.number("RANK")
    leads = process.session == process.pid and all(process.pid != child.pid for child in run.children)
    return f"rank {rank}" if rank is not None and leads else ""


def stop_json(stopped: Stopped, elsewhere: Sequence[str]) -> dict[str, Any]:
    """Return the same as data; ``by`` is "itself" or "SIGKILL", null for what is still there."""
    rows = [(process, "itself") for process in stopped.ended] + [(process, "SIGKILL") for process in stopped.killed]
    return {
        "schema": _SCHEMA,
        "run_id": stopped.run.run_id,
        "stopped": not stopped.remaining,
        "took_s": round(stopped.took_s, 3),
        "ended": [{**_entry(process, stopped.run), "by": by} for process, by in rows],
        "remaining": [_entry(process, stopped.run) for process in stopped.remaining],
        "not_permitted": [_entry(process, stopped.run) for process in stopped.denied],
        "other_hosts": list(elsewhere),
    }


def _entry(process: Process, run: RunProcesses) -> dict[str, Any]:
    return {"pid": process.pid, "role": _role_of(process, run) or "child", "rank": process.number("RANK")}


def begin_on_hosts(launched: Launched, grace_s: float) -> str:
    """Return what is about to be done."""
    hosts = listed([place.host for place in launched.places], 3, " and ")
    return (
        f"{launched.run_id}: SIGTERM to its launcher (pid {launched.pid}), which ends it on {hosts}; SIGKILL to what "
        f"is left after {grace_s:g} s\n"
    )


def begin_asking_hosts(launched: Launched) -> str:
    """Return that the hosts are asked one by one."""
    hosts = listed([place.host for place in launched.places], 3, " and ")
    return f"{launched.run_id}: its launcher (pid {launched.pid}) is gone; asking {hosts} what is left\n"


def stopped_on_hosts_text(stopped: Stopped, hosts: Sequence[HostStopped]) -> str:
    """Return how the launcher ended and what ended on each host."""
    hard = ", its launcher by SIGKILL" if stopped.killed else ""
    return f"{_verdict(stopped)}{hard}\n{hosts_lines(hosts)}"


def hosts_lines(hosts: Sequence[HostStopped]) -> str:
    """Return a line for each host that could tell."""
    return "".join(f"  {each.host}: {_host_text(each)}\n" for each in hosts if each.problem is None)


def _host_text(host: HostStopped) -> str:
    soft = [each for each in host.ended if each.get("by") != "SIGKILL"]
    hard = [each for each in host.ended if each.get("by") == "SIGKILL"]
    said = [f"ended {_listed_entries(soft)}"] if soft else []
    said += [f"SIGKILL ended {_listed_entries(hard)}"] if hard else []
    said += [f"{_listed_entries(host.remaining)} still there"] if host.remaining else []
    return "; ".join(said) or "nothing of it runs there"


def _listed_entries(entries: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{each.get('role')} (pid {each.get('pid')})" for each in entries)


def hosts_findings(run_id: str, hosts: Sequence[HostStopped]) -> tuple[Finding, ...]:
    """Return why hosts could not be asked, and which of them still run something."""
    found = [each.problem for each in hosts if each.problem is not None]
    for each in hosts:
        if each.remaining:
            pids = ",".join(str(entry.get("pid")) for entry in each.remaining)
            found.append(
                error(
                    "does-not-end",
                    f"on {each.host} {_listed_entries(each.remaining)} of {run_id} did not end",
                    why="SIGKILL was sent there, and the process waits in the kernel or is another user's",
                    fix=f"`ssh {shlex.quote(each.host)} ps -o pid,user,stat,wchan:32,cmd -p {pids}` shows which",
                    where=each.host,
                )
            )
    return tuple(found)


def stop_on_hosts_json(run_id: str, stopped: Stopped | None, hosts: Sequence[HostStopped]) -> dict[str, Any]:
    """Return the same as data, with the keys of a run on one host; ``hosts`` says it host by host."""
    remaining = () if stopped is None else stopped.remaining
    unasked = [each.host for each in hosts if each.problem is not None]
    return {
        "schema": _SCHEMA,
        "run_id": run_id,
        "stopped": not (remaining or unasked or any(each.remaining for each in hosts)),
        "took_s": None if stopped is None else round(stopped.took_s, 3),
        "ended": [{**entry, "host": each.host} for each in hosts for entry in each.ended],
        "remaining": [
            *({"pid": process.pid, "role": "launcher", "rank": None, "host": None} for process in remaining),
            *({**entry, "host": each.host} for each in hosts for entry in each.remaining),
        ],
        "not_permitted": [] if stopped is None else [{"pid": process.pid} for process in stopped.denied],
        "other_hosts": unasked,
        "hosts": [{**plain(each), "problem": None if each.problem is None else each.problem.what} for each in hosts],
    }
