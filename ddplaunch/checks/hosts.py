"""Checks that compare hosts with each other; refuses to look at one host alone, which the other families do."""

from __future__ import annotations

from collections.abc import Iterator

from ddplaunch.checks import hosts_differ, hosts_packages
from ddplaunch.checks.check import Check, declare
from ddplaunch.finding import Finding, error, warning
from ddplaunch.launch.hosts_plan import HostReport
from ddplaunch.values import Unavailable

Reports = tuple[HostReport, ...]
_SKEW_WARNING_S = 5.0


def host_directory_missing(hosts: Reports) -> Iterator[Finding]:
    """The working directory does not exist on a host.

    Every host starts in the directory of this launch, where the script and its relative paths are.
    Remedy: a shared file system, a copy, or `--chdir` with a directory that all hosts have.
    """
    for host in hosts:
        if host.cwd_problem is not None:
            yield error(
                "host-directory-missing",
                f"`{host.cwd}` cannot be entered on {host.name}: {host.cwd_problem}",
                why="every host starts in the directory of this launch",
                fix="put the project there too, or name a directory that all hosts have: `--chdir DIR`",
                where=host.name,
            )


def host_script_missing(hosts: Reports) -> Iterator[Finding]:
    """The script does not exist on a host.

    Scripts are not copied: each host reads its own file under the same path.
    Remedy: a shared file system, or `rsync` in front of the launch.
    """
    for host in hosts:
        if host.script == "missing" and host.cwd_problem is None:
            yield error(
                "host-script-missing",
                f"there is no `{host.script_name}` in `{host.cwd}` on {host.name}",
                why="each host reads its own file; ddplaunch copies none",
                fix=f"`rsync -a ./ {host.name}:{host.cwd}/`, or use a directory that all hosts share: `--chdir DIR`",
                where=host.name,
            )


def clock_skew(hosts: Reports) -> Iterator[Finding]:
    """The clocks of hosts differ.

    Lines of logs no longer sort, files seem to come from the future, and tokens and certificates fail.
    Remedy: NTP on all hosts (`timedatectl set-ntp true`).
    """
    if len(hosts) < 2:
        return
    ahead = sorted(hosts, key=lambda host: host.clock_ahead_s)
    middle = ahead[len(ahead) // 2] if len(hosts) > 2 else ahead[0]
    for host in hosts:
        skew_s = host.clock_ahead_s - middle.clock_ahead_s
        if abs(skew_s) - host.clock_unsure_s - middle.clock_unsure_s > _SKEW_WARNING_S:
            yield warning(
                "clock-skew",
                f"the clock of {host.name} is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} "
                f"that of {middle.name}",
                why="logs of different hosts no longer sort by time; files and tokens look too new or too old",
                fix=f"`ssh {host.name} sudo timedatectl set-ntp true`",
                where=host.name,
            )


def same_host_twice(hosts: Reports) -> Iterator[Finding]:
    """Two names are one machine.

    Two node ranks on it would take the same GPUs, and each would end the other's processes as left-overs of its own.
    Remedy: name the machine once, with all its processes.
    """
    seen: dict[str, HostReport] = {}
    for host in hosts:
        other = seen.setdefault(host.machine, host) if host.machine else host
        if other is not host:
            yield error(
                "same-host-twice",
                f"{other.name} and {host.name} are the same machine",
                why="each of them would get a node rank and take the same GPUs",
                fix=f"leave `{host.name}` out",
                where=(other.name, host.name),
            )


def login_node_as_rank_0(hosts: Reports) -> Iterator[Finding]:
    """The first host has no GPU while the others have.

    The first host of the list gets node rank 0 and trains like all others: it is no place for a login node.
    Remedy: leave it out; the launch may be started from it all the same.
    """
    counts = [0 if isinstance(host.facts.nvml, Unavailable) else len(host.facts.nvml.gpus) for host in hosts]
    if len(hosts) > 1 and counts[0] == 0 and all(counts[1:]):
        yield error(
            "login-node-as-rank-0",
            f"{hosts[0].name} has no GPU, and the other hosts have",
            why="the first host gets node rank 0 and trains like the others",
            fix=f"leave `{hosts[0].name}` out of the hosts; the launch can be started from it all the same",
            where=hosts[0].name,
        )


CHECKS: tuple[Check, ...] = (
    declare("hosts", same_host_twice),
    declare("hosts", host_directory_missing),
    declare("hosts", host_script_missing),
    *hosts_differ.CHECKS,
    *hosts_packages.CHECKS,
    declare("hosts", login_node_as_rank_0),
    declare("hosts", clock_skew),
)
