"""What ``stop`` did, in words and as JSON; refuses to stop anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddplaunch.finding import Finding, error, warning
from ddplaunch.hosts.stopping import Stopped
from ddplaunch.probes.process_table import Process
from ddplaunch.probes.run_processes import RunProcesses, is_guard, is_launcher
from ddplaunch.records.summary import user_name
from ddplaunch.ui.ages import processes_text

SCHEMA = 1


def begin_text(run: RunProcesses, grace_s: float) -> str:
    """Return what is about to be done, so that a wait is not silent."""
    if not run.launchers:
        return f"{run.run_id}: torchrun is gone; SIGTERM to {_listed(run.ranks or run.children)}\n"
    names = ", ".join(f"pid {process.pid}" for process in run.launchers)
    return f"{run.run_id}: SIGTERM to torchrun ({names}), SIGKILL to what is left after {grace_s:g} s\n"


def nothing_text(run_id: str, others: Sequence[int]) -> str:
    """Return that nothing of the run runs here; ``others`` are pids of its record that mean other processes now."""
    left = ""
    if others:
        names = ", ".join(f"pid {pid}" for pid in others)
        left = f"; {names} of its record cannot be told to be its own any more: left alone"
    return f"{run_id}: nothing of it runs on this host{left}\n"


def stopped_text(stopped: Stopped) -> str:
    """Return what ended, and what only SIGKILL ended."""
    lines = [f"  ended: {_listed(stopped.ended)}"] if stopped.ended else []
    lines += [f"  SIGKILL: {_listed(stopped.killed)}"] if stopped.killed else []
    head = "not stopped" if stopped.remaining else "stopped"
    return "\n".join([f"{head} {stopped.run.run_id} after {stopped.took_s:.1f} s", *lines]) + "\n"


def stop_findings(stopped: Stopped, elsewhere: Sequence[str]) -> tuple[Finding, ...]:
    """Return what is left to do: processes of another user, ones that do not end, other hosts."""
    run_id, found = stopped.run.run_id, []
    if stopped.denied:
        owner = user_name(stopped.denied[0].uid)
        found.append(
            error(
                "not-permitted",
                f"{run_id} belongs to {owner}: {_listed(stopped.denied)} may not be signalled",
                why="only its owner and root may end a process",
                fix=f"ask {owner}, or `sudo ddplaunch stop {run_id}`",
            )
        )
    elif stopped.remaining:
        found.append(_remaining(stopped.remaining))
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


def _remaining(processes: Sequence[Process]) -> Finding:
    stuck = [process for process in processes if process.state == "D"]
    pids = ",".join(str(process.pid) for process in processes)
    return error(
        "does-not-end",
        f"{_listed(processes)} {'does' if len(processes) == 1 else 'do'} not end",
        why="state D: the kernel waits for a device or a file server, and takes no signal until it answers"
        if stuck
        else "SIGKILL was sent, and the process is still there",
        fix=f"`ps -o pid,stat,wchan:32,cmd -p {pids}` shows what it waits for: a dead mount or the GPU driver",
    )


def _listed(processes: Sequence[Process]) -> str:
    """Return ``torchrun (pid 7), rank 0 (pid 8) and 2 other processes (pids 9, 10)``."""
    named = [f"{name} (pid {process.pid})" for process in processes if (name := role_of(process))]
    others = [str(process.pid) for process in processes if not role_of(process)]
    if others:
        named.append(f"{processes_text(len(others))} of theirs ({', '.join(others)})")
    return ", ".join(named)


def role_of(process: Process) -> str:
    """Return ``torchrun``, ``rank 3``, ``the guard``, or nothing for a child of a rank."""
    if is_guard(process):
        return "the guard"
    if is_launcher(process):
        return "torchrun"
    rank = process.mark("RANK")
    return f"rank {rank}" if rank is not None and process.session == process.pid else ""


def stop_json(stopped: Stopped, elsewhere: Sequence[str]) -> dict[str, Any]:
    """Return the same as data; ``by`` is "itself" or "SIGKILL", null for what is still there."""
    rows = [(process, "itself") for process in stopped.ended] + [(process, "SIGKILL") for process in stopped.killed]
    return {
        "schema": SCHEMA,
        "run_id": stopped.run.run_id,
        "stopped": not stopped.remaining,
        "took_s": round(stopped.took_s, 3),
        "ended": [{**_entry(process), "by": by} for process, by in rows],
        "remaining": [_entry(process) for process in stopped.remaining],
        "not_permitted": [_entry(process) for process in stopped.denied],
        "other_hosts": list(elsewhere),
    }


def _entry(process: Process) -> dict[str, Any]:
    rank = process.mark("RANK") or ""
    return {"pid": process.pid, "role": role_of(process) or "child", "rank": int(rank) if rank.isdecimal() else None}
