"""The checks of `doctor --comm`: findings from what ranks and hosts measured between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from ddplaunch.checks.check import CheckOutcome, checks_in, run_check
from ddplaunch.comm.groups import Comm, HostGroup, bandwidth_of_most, dead, failed, lossy, slow, usual
from ddplaunch.values.finding import Finding, error, warning
from ddplaunch.values.words import listed

_TWO_HOSTS = "with two hosts nothing tells which of them it is, or what lies between them"
_OTHER_INTERFACE = "`ethtool INTERFACE` shows the negotiated speed; `--socket-ifname NAME` picks another interface"
_PREFIXES = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"))


def rate_text(bandwidth: float) -> str:
    """Return bytes per second in bits, as networks are sold: ``9.4 Gbit/s``, ``12 Mbit/s``."""
    bits = 8 * bandwidth
    for factor, unit in _PREFIXES:
        if bits >= factor:
            return f"{_two_digits(bits / factor)} {unit}"
    return f"{bits:.0f} bit/s"


def time_text(microseconds: float) -> str:
    """Return a short time: ``85 us``, ``1.2 ms``, ``2.1 s``."""
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= factor:
            return f"{_two_digits(microseconds / factor)} {unit}"
    return f"{microseconds:.0f} us"


def _two_digits(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}"


_SLOW_PAIR = 0.2  # of what most hosts reach, where no second round confirms it
_SLOW_INSIDE = 0.3  # ranks of a host share its processors with whatever else runs there
_FAST_ETHERNET = 12.5e6  # bytes per second
_GRADIENT_BYTES = 400e6  # 100 million of float32
_LATE_FACTOR = 10.0
_LATE_US = 2000.0


def comm_untested(comm: Comm) -> Iterator[Finding]:
    """A host could not take part in the collective test, or was lost in it.

    Its session ended, nothing was heard of it for 15 s, or torch cannot be imported there. All that was started on it
    ends with its session.
    Remedy: what the reason says; `ssh HOST true` has to work throughout.
    """
    for host, reason in comm.untested:
        yield error(
            "comm-untested",
            f"{host} took no part in the collective test: {reason}",
            why="a job over these hosts would wait for it, or end because of it",
            fix=f"look at {host}, or leave it out: `--exclude {host}`",
            where=host,
        )


def comm_ranks_fail(comm: Comm) -> Iterator[Finding]:
    """Ranks of one host do not get through an all-reduce among themselves.

    Nothing but this host took part, so no network between hosts is to blame: GPUs that cannot reach each other's memory
    (ACS, IOMMU, a broken NVLink), a full /dev/shm, or an own name that resolves to nothing.
    Remedy: `NCCL_DEBUG=INFO`, and then `NCCL_P2P_DISABLE=1` or `NCCL_SHM_DISABLE=1` to see which way fails.
    """
    names = "`NCCL_DEBUG=INFO`" if comm.backend == "nccl" else "`TORCH_CPP_LOG_LEVEL=INFO`"
    more = "; `NCCL_P2P_DISABLE=1` tells whether it is the way between GPUs" if comm.backend == "nccl" else ""
    gone = {host for host, _ in comm.untested}  # named with the same reason
    for group in (each for each in comm.inside if failed(each) and each.hosts[0] not in gone):
        (host,) = group.hosts
        yield error(
            "comm-ranks-fail",
            f"{group.ranks} ranks on {host} do not get through an all-reduce: {group.problem}",
            why="no other host took part: it is this one's GPUs, shared memory or own network name",
            fix=f"{names} in front of `ddplaunch doctor --comm` there says how far they come{more}",
            where=host,
        )


def comm_cut_off(comm: Comm) -> Iterator[Finding]:
    """Collectives fail between a host and every other that was tried, or between two hosts.

    Hosts are tested in pairs, in two rounds with changed partners. A host that fails with two partners, of which at
    least one works with somebody else, is the cause. Two hosts alone cannot be told apart.
    Remedy: let TCP through between the hosts, on all ports: ranks connect to ports that the kernel chooses.
    """
    gone = {host for host, _ in comm.untested}
    for hosts, groups, proof in _blamed(comm, [group for group in comm.between if not gone & {*group.hosts}], dead):
        host = hosts[0]
        if len(hosts) == 1:
            groups = [group for group in comm.between if host in group.hosts]
            what = f"{host} gets no collective through, tried with {listed(_partners(host, groups), 3, ' and ')}"
            why = f"{proof}: it is {host}'s cable, interface, route or firewall"
            way = f"to and from {host} on all ports, or leave it out: `--exclude {host}`"
        else:
            what, why = f"no collective gets through between {' and '.join(hosts)}", proof
            way = "between them on all ports; `ip -s link` on each counts what its interface lost"
        what = f"{what}: {groups[0].problem}"
        yield error("comm-cut-off", what, why=why, fix=f"let TCP through {way}", where=hosts)


def comm_packet_loss(comm: Comm) -> Iterator[Finding]:
    """TCP had to send 5 % or more of its segments again while two hosts exchanged single numbers.

    Nothing is congested then: packets are lost. Linux waits at least 200 ms before it sends a segment again, and a
    collective waits for its slowest rank.
    Remedy: errors and drops in `ip -s link` and `ethtool -S`; cable, transceiver, switch port, MTU.
    """
    for hosts, groups, proof in _blamed(comm, [group for group in comm.between if not dead(group)], lossy):
        one = len(hosts) == 1
        where = f"{hosts[0]} loses packets" if one else f"packets are lost between {' and '.join(hosts)}"
        yield warning(
            "comm-packet-loss",
            f"{where}: {_losses_text(groups)} of TCP segments had to be sent again",
            why=f"TCP waits 200 ms or more for each lost segment, and all ranks wait with it; {proof}",
            fix=_on(
                hosts,
                "look at drops and errors in `ip -s link` and `ethtool -S INTERFACE`; then cable, switch port and MTU",
            ),
            where=hosts,
        )


def comm_slow_host(comm: Comm) -> Iterator[Finding]:
    """A host, or what lies between two hosts, carries less than 40 % of what most hosts do.

    Each host counts by its best pair, because a slow partner says nothing of it. Every all-reduce of a job is as slow
    as its slowest link.
    Remedy: the negotiated speed in `ethtool INTERFACE`, the interface that is used (`--socket-ifname`), InfiniBand.
    """
    sound = _sound(comm)
    normal = bandwidth_of_most(sound)
    if normal is None:
        return
    for hosts, groups, proof in _blamed(comm, sound, lambda group: slow(group, normal)):
        rates = [group.measured.bandwidth for group in groups if group.measured]
        if len(rates) == 1 and rates[0] >= _SLOW_PAIR * normal:
            continue
        best = rate_text(max(rates))
        what = f"{hosts[0]} carries {best}" if len(hosts) == 1 else f"{best} between {' and '.join(hosts)}"
        yield warning(
            "comm-slow-host",
            f"{what}; the median of the hosts is {rate_text(normal)}",
            why=f"every all-reduce of a job is as slow as its slowest link; {proof}",
            fix=_on(hosts, _OTHER_INTERFACE),
            where=hosts,
        )


def comm_slow_network(comm: Comm) -> Iterator[Finding]:
    """No two hosts exchange as much as 100 Mbit/s.

    That is what Fast Ethernet carries. It is judged without a host to compare with: all of them use a slow network, or
    there are only two.
    Remedy: another interface by `--socket-ifname`, the negotiated speed in `ethtool INTERFACE`.
    """
    rates = [group.measured.bandwidth for group in comm.between if group.measured is not None and not lossy(group)]
    if not rates or max(rates) >= _FAST_ETHERNET:
        return
    cause = f"; {_TWO_HOSTS}" if len(comm.hosts) == 2 else ""
    yield warning(
        "comm-slow-network",
        f"no two hosts exchange more than {rate_text(max(rates))}",
        why=f"the gradients of 100 million parameters take {_GRADIENT_BYTES / max(rates):.0f} s for each step{cause}",
        fix=_OTHER_INTERFACE,
        where=comm.hosts,
    )


def comm_late_host(comm: Comm) -> Iterator[Finding]:
    """All-reduces of a single number take ten times as long with one host as with most, and 2 ms more.

    Small collectives are as late as the latest rank: a long way through other networks, power saving, a busy host.
    Remedy: `ping` between the hosts; what else runs there.
    """
    sound = _sound(comm)
    normal = usual(sound, lambda measured: measured.latency_us, min)
    if normal is None:
        return
    most = max(_LATE_FACTOR * normal, normal + _LATE_US)
    for hosts, groups, _ in _blamed(
        comm, sound, lambda each: each.measured is not None and each.measured.latency_us > most
    ):
        if len(hosts) > 1:
            continue
        best = min(group.measured.latency_us for group in groups if group.measured)
        yield warning(
            "comm-late-host",
            f"an all-reduce of one number with {hosts[0]} takes {time_text(best)}; the median of the hosts is "
            f"{time_text(normal)}",
            why="small collectives, and every barrier, are as late as the latest rank",
            fix=f"`ping` between {hosts[0]} and another tells whether it is the network or the host, which may be busy",
            where=hosts,
        )


def comm_slow_inside(comm: Comm) -> Iterator[Finding]:
    """The ranks of one host exchange less than a third of what those of most hosts do.

    Only hosts of the same kind are worth comparing. GPUs that reach each other through the processor instead of NVLink,
    or ranks that share their processors with another job.
    Remedy: `nvidia-smi topo -m` on it and on another; what else runs there.
    """
    normal = usual(comm.inside, lambda measured: measured.bandwidth, max) if comm.backend == "nccl" else None
    for group in comm.inside:
        if normal is None or group.measured is None or group.measured.bandwidth >= _SLOW_INSIDE * normal:
            continue
        (host,) = group.hosts
        yield warning(
            "comm-slow-inside",
            f"the {group.ranks} ranks on {host} exchange {rate_text(group.measured.bandwidth)}; the median of the "
            f"hosts is {rate_text(normal)}",
            why="no other host took part: its GPUs reach each other by a slower way, or something else runs there",
            fix="compare `nvidia-smi topo -m` and `top` there with another host",
            where=host,
        )


def _sound(comm: Comm) -> list[HostGroup]:
    """Return the groups of several hosts whose figures say how quick they are."""
    return [group for group in comm.between if not failed(group) and not lossy(group)]


def _blamed(
    comm: Comm, groups: Sequence[HostGroup], bad: Callable[[HostGroup], bool]
) -> Iterator[tuple[tuple[str, ...], list[HostGroup], str]]:
    """Yield who explains the bad ones among ``groups``: one host, or two of which neither can be blamed alone.

    A host that is in a good group is innocent. One that is in bad groups only, and had two partners, is the cause if
    one of them is innocent. With the hosts come those of ``groups`` that they were in, and as a clause what shows that
    it is them.
    """
    partners = Counter(host for group in comm.between for host in group.hosts)
    innocent = {host for group in groups if not bad(group) for host in group.hosts}
    wrong = [group for group in groups if bad(group)]
    guilty: dict[str, None] = {}
    for group in wrong:
        suspects = [host for host in group.hosts if host not in innocent]
        if len(suspects) == 1 and partners[suspects[0]] > 1:
            guilty[suspects[0]] = None
    for host in guilty:
        others = [other for other in _partners(host, comm.between) if other in innocent]
        proof = f"{listed(others, 3, ' and ')} {'does' if len(others) == 1 else 'do'} well with another host"
        yield (host,), [group for group in groups if host in group.hosts], proof
    for group in wrong:
        if not any(host in guilty for host in group.hosts):
            yield group.hosts, [group], _between(group, comm)


def _on(hosts: tuple[str, ...], remedy: str) -> str:
    """Say where the remedy for what ``_blamed`` yields is to be tried."""
    if len(hosts) > 1:
        return f"on both {remedy}"
    return f"on {hosts[0]} {remedy}; or leave it out: `--exclude {hosts[0]}`"


def _losses_text(groups: Sequence[HostGroup]) -> str:
    """Return the shares of segments that were sent again: ``21 %``, ``18 to 22 %``."""
    shares = sorted(round(100 * group.loss) for group in groups)
    low, high = shares[0], shares[-1]
    return f"{low} %" if low == high else f"{low} to {high} %"


def _partners(host: str, groups: Iterable[HostGroup]) -> list[str]:
    """Return whom ``host`` was tested with, each once."""
    tested = (other for group in groups if host in group.hosts for other in group.hosts)
    return [other for other in dict.fromkeys(tested) if other != host]


def _between(group: HostGroup, comm: Comm) -> str:
    """Say why neither of two hosts can be blamed alone."""
    if len(comm.hosts) == 2:
        return _TWO_HOSTS
    good = {host for each in comm.between if not (failed(each) or lossy(each)) for host in each.hosts}
    if all(host in good for host in group.hosts):
        return "each of them works with another host: it is what lies between these two"
    return "neither of them was tested with a host that works"


CHECKS = checks_in(globals(), "comm")


def run_measured(comm: Comm, ignore: Collection[str] = ()) -> tuple[CheckOutcome, ...]:
    """Run every check of what `doctor --comm` measured."""
    return tuple(run_check(check, {"comm": comm}, ignore) for check in CHECKS)
