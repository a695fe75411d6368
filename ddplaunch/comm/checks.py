"""The checks of `doctor --comm`: findings from what ranks and hosts measured between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from ddplaunch.checks.all_checks import outcome
from ddplaunch.checks.check import Outcome, declare
from ddplaunch.comm.groups import Blame, Comm, HostGroup, bandwidth_of_most, blame, dead, failed, lossy, slow, usual
from ddplaunch.values.finding import Finding, error, warning
from ddplaunch.values.words import listed

_TWO_HOSTS = "with two hosts nothing tells which of them it is, or what lies between them"
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
    for group in filter(failed, comm.inside):
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
    found = blame(comm, (group for group in comm.between if not gone & {*group.hosts}), dead)
    for host in found.hosts:
        groups = [group for group in comm.between if host in group.hosts]
        tried = listed(_partners(host, groups), 3, " and ")
        yield error(
            "comm-cut-off",
            f"{host} gets no collective through, tried with {tried}: {groups[0].problem}",
            why=f"{_not_partners(host, found, comm.between)}: it is {host}'s cable, interface, route or firewall",
            fix=f"let TCP through to and from {host} on all ports, or leave it out: `--exclude {host}`",
            where=host,
        )
    for group in found.pairs:
        yield error(
            "comm-cut-off",
            f"no collective gets through between {' and '.join(group.hosts)}: {group.problem}",
            why=_between(group, comm),
            fix="let TCP through between them on all ports; `ip -s link` on each counts what its interface lost",
            where=group.hosts,
        )


def comm_packet_loss(comm: Comm) -> Iterator[Finding]:
    """TCP had to send 5 % or more of its segments again while two hosts exchanged single numbers.

    Nothing is congested then: packets are lost. Linux waits at least 200 ms before it sends a segment again, and a
    collective waits for its slowest rank.
    Remedy: errors and drops in `ip -s link` and `ethtool -S`; cable, transceiver, switch port, MTU.
    """
    tried = [group for group in comm.between if not dead(group)]
    found = blame(comm, tried, lossy)
    why = "TCP waits 200 ms or more for each lost segment, and all ranks wait with it"
    fix = "drops and errors in `ip -s link` and `ethtool -S INTERFACE`; then cable, switch port and MTU"
    for host in found.hosts:
        groups = [group for group in tried if host in group.hosts]
        yield warning(
            "comm-packet-loss",
            f"{host} loses packets: {_losses_text(groups)} of TCP segments had to be sent again",
            why=f"{why}; {_not_partners(host, found, comm.between)}",
            fix=f"on {host} look at {fix}; or leave it out: `--exclude {host}`",
            where=host,
        )
    for group in found.pairs:
        yield warning(
            "comm-packet-loss",
            f"packets are lost between {' and '.join(group.hosts)}: {_losses_text([group])} of TCP segments had to be "
            "sent again",
            why=f"{why}; {_between(group, comm)}",
            fix=f"on both look at {fix}",
            where=group.hosts,
        )


def comm_slow_host(comm: Comm) -> Iterator[Finding]:
    """A host, or what lies between two hosts, carries less than 40 % of what most hosts do.

    Each host counts by its best pair, because a slow partner says nothing of it. Every all-reduce of a job is as slow
    as its slowest link.
    Remedy: the negotiated speed in `ethtool INTERFACE`, the interface that is used (`--socket-ifname`), InfiniBand.
    """
    groups = [group for group in comm.between if not failed(group) and not lossy(group)]
    normal = bandwidth_of_most(groups)
    if normal is None:
        return
    found = blame(comm, groups, lambda group: slow(group, normal))
    why = "every all-reduce of a job is as slow as its slowest link"
    fix = "`ethtool INTERFACE` shows the negotiated speed; `--socket-ifname NAME` picks another interface"
    for host in found.hosts:
        rates = [group.measured.bandwidth for group in groups if host in group.hosts and group.measured]
        best = max(rates)
        if len(rates) == 1 and best >= _SLOW_PAIR * normal:
            continue
        yield warning(
            "comm-slow-host",
            f"{host} carries {rate_text(best)}; the median of the hosts is {rate_text(normal)}",
            why=f"{why}; {_not_partners(host, found, comm.between)}",
            fix=f"on {host} {fix}; or leave it out: `--exclude {host}`",
            where=host,
        )
    for group in found.pairs:
        if group.measured is None or group.measured.bandwidth >= _SLOW_PAIR * normal:
            continue
        yield warning(
            "comm-slow-host",
            f"{rate_text(group.measured.bandwidth)} between {' and '.join(group.hosts)}; "
            f"the median of the hosts is {rate_text(normal)}",
            why=f"{why}; {_between(group, comm)}",
            fix=f"on both {fix}",
            where=group.hosts,
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
        fix="`ethtool INTERFACE` shows the negotiated speed; `--socket-ifname NAME` picks another interface",
        where=comm.hosts,
    )


def comm_late_host(comm: Comm) -> Iterator[Finding]:
    """All-reduces of a single number take ten times as long with one host as with most, and 2 ms more.

    Small collectives are as late as the latest rank: a long way through other networks, power saving, a busy host.
    Remedy: `ping` between the hosts; what else runs there.
    """
    groups = [group for group in comm.between if not failed(group) and not lossy(group)]
    normal = usual(groups, lambda measured: measured.latency_us, min)
    if normal is None:
        return
    most = max(_LATE_FACTOR * normal, normal + _LATE_US)
    for host in blame(
        comm, groups, lambda group: group.measured is not None and group.measured.latency_us > most
    ).hosts:
        best = min(group.measured.latency_us for group in groups if host in group.hosts and group.measured)
        yield warning(
            "comm-late-host",
            f"an all-reduce of one number with {host} takes {time_text(best)}; the median of the hosts is "
            f"{time_text(normal)}",
            why="small collectives, and every barrier, are as late as the latest rank",
            fix=f"`ping` between {host} and another tells whether it is the network or the host, which may be busy",
            where=host,
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


def _losses_text(groups: Sequence[HostGroup]) -> str:
    """Return the shares of segments that were sent again: ``21 %``, ``18 to 22 %``."""
    shares = sorted(round(100 * group.loss) for group in groups)
    low, high = shares[0], shares[-1]
    return f"{low} %" if low == high else f"{low} to {high} %"


def _partners(host: str, groups: Iterable[HostGroup]) -> list[str]:
    """Return whom ``host`` was tested with, each once."""
    return list(
        dict.fromkeys(other for group in groups if host in group.hosts for other in group.hosts if other != host)
    )


def _not_partners(host: str, found: Blame, groups: Iterable[HostGroup]) -> str:
    """Say which partners of a host that is to blame show that it is not them."""
    others = [other for other in _partners(host, groups) if other in found.innocent]
    return f"{listed(others, 3, ' and ')} {'does' if len(others) == 1 else 'do'} well with another host"


def _between(group: HostGroup, comm: Comm) -> str:
    """Say why neither of two hosts can be blamed alone."""
    if len(comm.hosts) == 2:
        return _TWO_HOSTS
    good = {host for each in comm.between if not (failed(each) or lossy(each)) for host in each.hosts}
    if all(host in good for host in group.hosts):
        return "each of them works with another host: it is what lies between these two"
    return "neither of them was tested with a host that works"


CHECKS = tuple(
    declare("comm", function)
    for function in (
        comm_untested,
        comm_ranks_fail,
        comm_cut_off,
        comm_packet_loss,
        comm_slow_host,
        comm_slow_network,
        comm_late_host,
        comm_slow_inside,
    )
)


def run_measured(comm: Comm, ignore: Collection[str] = ()) -> tuple[Outcome, ...]:
    """Run every check of what `doctor --comm` measured."""
    return tuple(outcome(check, {"comm": comm}, ignore) for check in CHECKS)
