"""What ``stop`` did to a run on several hosts, in words and as JSON, and where else to look; refuses to stop any."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.finding import Finding, error
from ddplaunch.hosts.stop_elsewhere import HostStopped
from ddplaunch.hosts.stopping import Stopped
from ddplaunch.records.residents import Launched

SCHEMA = 1
_NAMED = 4


def begin_together(launched: Launched, grace_s: float) -> str:
    """Return what is about to be done."""
    hosts = hosts_text([place.host for place in launched.places])
    return (
        f"{launched.run_id}: SIGTERM to its launcher (pid {launched.pid}), which ends it on {hosts}; SIGKILL to what "
        f"is left after {grace_s:g} s\n"
    )


def begin_asking(launched: Launched) -> str:
    """Return that the hosts are asked one by one."""
    hosts = hosts_text([place.host for place in launched.places])
    return f"{launched.run_id}: its launcher (pid {launched.pid}) is gone; asking {hosts} what is left\n"


def hosts_text(hosts: Sequence[str]) -> str:
    """Return ``a and b``, ``a, b and c``, or ``a, b, c and 9 more``."""
    if len(hosts) > _NAMED:
        return f"{', '.join(hosts[: _NAMED - 1])} and {len(hosts) - _NAMED + 1} more"
    return " and ".join(filter(None, (", ".join(hosts[:-1]), *hosts[-1:])))


def together_text(stopped: Stopped, hosts: Sequence[HostStopped]) -> str:
    """Return how the launcher ended and what ended on each host."""
    head = "not stopped" if stopped.remaining else "stopped"
    hard = ", its launcher by SIGKILL" if stopped.killed else ""
    return f"{head} {stopped.run.run_id} after {stopped.took_s:.1f} s{hard}\n{hosts_lines(hosts)}"


def hosts_lines(hosts: Sequence[HostStopped]) -> str:
    """Return a line for each host that could tell."""
    return "".join(f"  {each.host}: {_host_text(each)}\n" for each in hosts if each.problem is None)


def _host_text(host: HostStopped) -> str:
    soft = [each for each in host.ended if each.get("by") != "SIGKILL"]
    hard = [each for each in host.ended if each.get("by") == "SIGKILL"]
    said = [f"ended {_listed(soft)}"] if soft else []
    said += [f"SIGKILL ended {_listed(hard)}"] if hard else []
    said += [f"{_listed(host.remaining)} still there"] if host.remaining else []
    return "; ".join(said) or "nothing of it runs there"


def _listed(entries: Sequence[Mapping[str, Any]]) -> str:
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
                    f"on {each.host} {_listed(each.remaining)} of {run_id} did not end",
                    why="SIGKILL was sent there, and the process waits in the kernel or is another user's",
                    fix=f"`ssh {shlex.quote(each.host)} ps -o pid,user,stat,wchan:32,cmd -p {pids}` shows which",
                    where=each.host,
                )
            )
    return tuple(found)


def together_json(run_id: str, stopped: Stopped | None, hosts: Sequence[HostStopped]) -> dict[str, Any]:
    """Return the same as data, with the keys of a run on one host; ``hosts`` says it host by host."""
    remaining = () if stopped is None else stopped.remaining
    unasked = [each.host for each in hosts if each.problem is not None]
    return {
        "schema": SCHEMA,
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
        "hosts": [
            {
                "host": each.host,
                "ended": list(each.ended),
                "remaining": list(each.remaining),
                "problem": None if each.problem is None else each.problem.what,
            }
            for each in hosts
        ],
    }


def elsewhere_text(launched: Launched, words: str, terminal: bool = False) -> str:
    """Return which hosts to ask, with the command for each: ``words`` is a command of ddplaunch."""
    hosts, ssh = [place.host for place in launched.places], "ssh -t" if terminal else "ssh"
    command = f"-m ddplaunch {words} {shlex.quote(launched.run_id)}"
    lines = [f"  {ssh} {shlex.quote(place.host)} {shlex.quote(place.python)} {command}\n" for place in launched.places]
    return f"{launched.run_id} runs on {hosts_text(hosts)}; ask there:\n{''.join(lines)}"
