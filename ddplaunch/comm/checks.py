"""The checks of `doctor --comm`: findings from the measurements of groups of ranks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from ddplaunch.checks.check import CheckOutcome, checks_in, run_check
from ddplaunch.comm.results import Comm, GroupResult
from ddplaunch.values.finding import Finding, error, warning
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import listed

_SLOW = 0.4  # of the median of the hosts
_SLOW_INSIDE = 0.3  # lower, as ranks share the host's processors with other programs
_FAST_ETHERNET = 12.5e6  # bytes per second
_GRADIENT_BYTES = 400e6  # 100 million float32
_LATE_FACTOR = 10.0
_LATE_US = 2000.0
_TWO_HOSTS = "with only two hosts it is unknown whether one of them or the network between them is the cause"
_LINK = "`ethtool INTERFACE` shows the speed and `ip -s link` drops; `--socket-ifname NAME` picks another interface"
_LARGE_LOST = "small messages get through and large ones do not, as where something drops large packets (MTU)"
_SMALLER = "`sudo ip link set dev INTERFACE mtu 1500` on these hosts; `ip link` shows the names and what is set now"
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


def comm_untested(comm: Comm) -> Iterator[Finding]:
    """The collective test did not finish.

    The test is a run like any other: it was refused, a host was lost, or torch cannot be imported there.
    Remedy: the fix in the finding, or the record of the run.
    """
    if not comm.ended:
        cause = comm.failure or error("comm-untested", "nothing says why", why="", fix="`ddplaunch ps` shows the run")
        yield replace(cause, code="comm-untested", what=f"the collective test did not finish: {cause.what}")


def comm_ranks_fail(comm: Comm) -> Iterator[Finding]:
    """An all-reduce fails among the ranks of one host, or only among all ranks.

    If only one host took part, the network between hosts is not to blame: GPUs cannot reach each other's memory (ACS,
    IOMMU, a broken NVLink), /dev/shm is full, or the host cannot resolve its own name.
    Remedy: `NCCL_DEBUG=INFO`, and then `NCCL_P2P_DISABLE=1` or `NCCL_SHM_DISABLE=1` to see which transport fails.
    """
    failed = [group for group in comm.groups if group.problem is not None]
    for group in failed:
        if len(group.hosts) > 1 and failed != [group]:
            continue
        why = "no other host took part: its GPUs, its shared memory or the resolution of its own name is at fault"
        why = f"{comm.failure.what}; {why}" if comm.failure else why
        if len(group.hosts) > 1:
            why = "each host alone and each tested pair works: the cause may be a pair that was not tested"
        if group.test != "pair":
            yield error(
                "comm-ranks-fail",
                f"{group.ranks} ranks on {listed(group.hosts)} did not complete an all-reduce: {group.problem}",
                why=why,
                fix=comm.failure.fix if comm.failure else "`NCCL_DEBUG=INFO` before the same command",
                where=group.hosts,
            )


def comm_cut_off(comm: Comm) -> Iterator[Finding]:
    """Collectives fail between a host and every other host that was tried, or between two hosts.

    Hosts are tested in pairs, each with three partners. A host is the cause if it fails with all of its partners, and
    at least one of these works with another host. If there are only two hosts, either may be the cause. Where four
    bytes get through and larger messages do not, something on the way drops packets of the size that hosts send (MTU).
    Remedy: let TCP through between the hosts, on all ports: ranks connect to ports that the kernel chooses.
    """
    for blame in _blamed(comm.pairs, lambda group: group.problem is not None):
        only_small = all(group.latency_us for group in blame.groups)  # sizes that a slow link cannot do are left out
        ports = f"let TCP through {blame.place('to and from')} on all ports"
        yield error(
            "comm-cut-off",
            f"no collective gets through {blame.place('to and from')}: {blame.groups[0].problem}",
            why=f"{_LARGE_LOST}; {blame.proof}" if only_small else blame.proof,
            fix=f"{_SMALLER if only_small else ports}{blame.leave_out}",
            where=blame.hosts,
        )


def comm_slow_host(comm: Comm) -> Iterator[Finding]:
    """A host, or the network between two hosts, is less than 40 % as fast as the median of the hosts.

    Each host counts by its best pair, because a slow partner does not mean that the host is slow. Every all-reduce of a
    job is as slow as its slowest link. TCP that loses packets is slow too.
    Remedy: check the speed and drops of the interface, and which one is used (`--socket-ifname`); use InfiniBand.
    """
    normal = _usual(comm.pairs, _rate, max)
    if normal is None:
        return
    for blame in _blamed(_sound(comm.pairs), lambda group: _rate(group) < _SLOW * normal):
        best = rate_text(max(map(_rate, blame.groups)))
        yield warning(
            "comm-slow-host",
            f"{best} {blame.place('to and from')}; the median of the hosts is {rate_text(normal)}",
            why=f"every all-reduce of a job is as slow as its slowest link; {blame.proof}",
            fix=f"{_LINK}{blame.leave_out}",
            where=blame.hosts,
        )


def comm_slow_network(comm: Comm) -> Iterator[Finding]:
    """All pairs of hosts exchange less than 100 Mbit/s.

    100 Mbit/s is the speed of Fast Ethernet. The limit is fixed, so it also finds a slow network that all hosts use,
    and works with only two hosts.
    Remedy: another interface with `--socket-ifname`; `ethtool INTERFACE` shows the negotiated speed.
    """
    best = max(map(_rate, _sound(comm.pairs)), default=_FAST_ETHERNET)
    if best < _FAST_ETHERNET:
        yield warning(
            "comm-slow-network",
            f"no two hosts exchange more than {rate_text(best)}",
            why=f"the gradients of 100 million parameters take {_GRADIENT_BYTES / best:.0f} s for each step",
            fix=_LINK,
            where=comm.hosts,
        )


def comm_late_host(comm: Comm) -> Iterator[Finding]:
    """All-reduces of a single number with one host take over ten times the median, and over 2 ms longer.

    Small collectives are as late as the latest rank. Causes are a long route through other networks, packets that TCP
    sends again, power saving, or a busy host.
    Remedy: `ping` between the hosts; look for other programs that run there.
    """
    normal = _usual(comm.pairs, _latency, min)
    if normal is None:
        return
    most = max(_LATE_FACTOR * normal, normal + _LATE_US)
    for blame in _blamed(_sound(comm.pairs), lambda group: _latency(group) > most):
        best = min(map(_latency, blame.groups))
        yield warning(
            "comm-late-host",
            f"an all-reduce of 4 bytes {blame.place('with')} takes {time_text(best)}; the median of the hosts is "
            f"{time_text(normal)}",
            why=f"small collectives, and every barrier, are as late as the latest rank; {blame.proof}",
            fix="`ping` between the hosts tells whether it is the network or a host, which may be busy",
            where=blame.hosts,
        )


def comm_slow_inside(comm: Comm) -> Iterator[Finding]:
    """The GPUs of one host exchange data at less than 30 % of the median of the hosts.

    Only hosts of the same kind can be compared. The GPUs reach each other through the processor instead of NVLink, or
    the ranks share the processors with another job.
    Remedy: compare `nvidia-smi topo -m` there and on another host; look for other programs that run there.
    """
    normal = _usual(comm.inside, _rate, max) if comm.backend == "nccl" else None
    for group in _sound(comm.inside):
        if normal is not None and _rate(group) < _SLOW_INSIDE * normal:
            yield warning(
                "comm-slow-inside",
                f"the {group.ranks} ranks on {group.hosts[0]} exchange {rate_text(_rate(group))}; the median of the "
                f"hosts is {rate_text(normal)}",
                why="no other host took part: its GPUs reach each other by a slower way, or something else runs there",
                fix="compare `nvidia-smi topo -m` and `top` there with another host",
                where=group.hosts,
            )


def _rate(group: GroupResult) -> float:
    return group.bandwidth or 0.0


def _latency(group: GroupResult) -> float:
    return group.latency_us or 0.0


def _sound(groups: Iterable[GroupResult]) -> list[GroupResult]:
    return [group for group in groups if group.problem is None]


def _usual(
    groups: Iterable[GroupResult], value: Callable[[GroupResult], float], best: Callable[[list[float]], float]
) -> float | None:
    """Return the median over hosts of the value of each host's ``best`` group; None for fewer than three hosts."""
    values: dict[str, list[float]] = {}
    for group in _sound(groups):
        for host in group.hosts:
            values.setdefault(host, []).append(value(group))
    return statistics.median(map(best, values.values())) if len(values) > 2 else None


@dataclass(frozen=True)
class _Blame:
    """The cause of bad ``groups``: one host, or two if neither can be blamed alone; ``proof`` says why."""

    hosts: tuple[str, ...]
    groups: tuple[GroupResult, ...]
    proof: str

    def place(self, preposition: str) -> str:
        one = len(self.hosts) == 1
        return f"{preposition} {self.hosts[0]}" if one else f"between {' and '.join(self.hosts)}"

    @property
    def leave_out(self) -> str:
        return f"; or leave it out: `--exclude {self.hosts[0]}`" if len(self.hosts) == 1 else ""


def _blamed(pairs: Sequence[GroupResult], bad: Callable[[GroupResult], bool]) -> Iterator[_Blame]:
    """Yield the hosts that cause the bad pairs. A host with a good pair is innocent.

    A host with only bad pairs is guilty if it has at least two, one of them with an innocent partner.
    """
    innocent = {host for pair in pairs if not bad(pair) for host in pair.hosts}
    wrong = [pair for pair in pairs if bad(pair)]
    guilty: dict[str, list[str]] = {}
    for pair in wrong:
        suspects = [host for host in pair.hosts if host not in innocent]
        if len(suspects) == 1 and sum(suspects[0] in other.hosts for other in wrong) > 1:
            guilty.setdefault(suspects[0], []).extend(host for host in pair.hosts if host in innocent)
    for host, witnesses in guilty.items():
        proof = f"{listed(witnesses, 3, ' and ')} {'works' if len(witnesses) == 1 else 'work'} well with another host"
        yield _Blame((host,), tuple(pair for pair in wrong if host in pair.hosts), proof)
    for pair in wrong:
        if not guilty.keys() & {*pair.hosts}:
            reason = "neither of them was tested with a host that works" if len(pairs) > 1 else _TWO_HOSTS
            proof = "each of them works with another host" if innocent >= {*pair.hosts} else reason
            yield _Blame(pair.hosts, (pair,), proof)


CHECKS = checks_in(globals(), "comm")


def run_measured(comm: Comm, ignore: Collection[str] = ()) -> tuple[CheckOutcome, ...]:
    """Run every check on the measurements of `doctor --comm`."""
    return tuple(run_check(check, {"comm": comm}, ignore) for check in CHECKS)
