"""The measurements of `doctor --comm`, group by group, and the hosts that explain the bad ones."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal

from ddplaunch.values.frozen import dataclass

_SLOW = 0.4  # of what most hosts reach
_LOSS = 0.05  # of the segments of a ping-pong, in which nothing else is in the way
_LEAST_SEGMENTS = 20
_LEAST_RESENT = 3


@dataclass(frozen=True)
class Measured:
    """One group's collectives. ``bandwidth`` is bytes per second (bus bandwidth), of all-reduces of ``size_bytes``.

    ``latency_us`` is the median of all-reduces of four bytes, ``latency_most_us`` the longest of them. ``segments`` and
    ``resent`` are TCP's while they ran: all, and those sent again; both 0 where it was not TCP.
    """

    bandwidth: float
    size_bytes: int
    latency_us: float
    latency_most_us: float
    segments: int = 0
    resent: int = 0


@dataclass(frozen=True)
class HostGroup:
    """One step of one or more hosts. ``round`` 0 is each host alone, with all its ranks.

    ``problem`` is empty where all was measured; else it says why not, and ``host`` which host could not take part at
    all (its session ended, it has no torch), None where the group as a whole failed. ``resent`` of ``segments`` TCP
    segments were sent again when it ended without a measurement.
    """

    hosts: tuple[str, ...]
    round: int
    ranks: int
    measured: Measured | None = None
    problem: str = ""
    seconds: float = 0.0
    segments: int = 0
    resent: int = 0

    @property
    def loss(self) -> float:
        """The share of TCP's segments that was sent again; 0 where too few were sent to tell."""
        segments, resent = self.segments, self.resent
        if self.measured is not None:
            segments, resent = self.measured.segments, self.measured.resent
        return resent / segments if segments >= _LEAST_SEGMENTS and resent >= _LEAST_RESENT else 0.0


@dataclass(frozen=True)
class Comm:
    """All of it. ``untested`` are hosts that could not take part, or dropped out, with the reason for each."""

    backend: str
    hosts: tuple[str, ...]
    groups: tuple[HostGroup, ...]
    untested: tuple[tuple[str, str], ...] = ()
    deadline_s: float = 0.0

    @property
    def inside(self) -> tuple[HostGroup, ...]:
        """Each host alone."""
        return tuple(group for group in self.groups if group.round == 0)

    @property
    def between(self) -> tuple[HostGroup, ...]:
        """Several hosts."""
        return tuple(group for group in self.groups if group.round > 0)


@dataclass(frozen=True)
class Blame:
    """``hosts`` are those in which a bad group has its cause; ``pairs`` what no single host explains.

    ``innocent`` are those that were in a good group.
    """

    hosts: tuple[str, ...]
    pairs: tuple[HostGroup, ...]
    innocent: frozenset[str]


def blame(comm: Comm, groups: Iterable[HostGroup], bad: Callable[[HostGroup], bool]) -> Blame:
    """Return who explains the bad ones among ``groups``, which are those of ``comm`` that count here.

    A host that is in a good group is innocent. One that is in bad groups only, and had two partners, is the cause if
    one of them is innocent. Two of which neither was ever in a good group cannot be told apart.
    """
    groups = tuple(groups)
    partners = Counter(host for group in comm.between for host in group.hosts)
    good = {host for group in groups if not bad(group) for host in group.hosts}
    wrong = [group for group in groups if bad(group)]
    guilty: dict[str, None] = {}
    for group in wrong:
        suspects = [host for host in group.hosts if host not in good]
        if len(suspects) == 1 and partners[suspects[0]] > 1:
            guilty[suspects[0]] = None
    pairs = tuple(group for group in wrong if not any(host in guilty for host in group.hosts))
    return Blame(tuple(guilty), pairs, frozenset(good))


def failed(group: HostGroup) -> bool:
    """Whether nothing could be measured."""
    return group.measured is None


def lossy(group: HostGroup) -> bool:
    """Whether TCP had to send much again; a group that could not be measured because of that is one too."""
    return group.loss >= _LOSS


def dead(group: HostGroup) -> bool:
    """Whether nothing could be measured, and not because packets were lost now and then."""
    return failed(group) and not lossy(group)


def slow(group: HostGroup, normal: float | None) -> bool:
    """Whether it carried less than ``_SLOW`` of ``normal``, what most hosts do; never where that is not known."""
    return normal is not None and group.measured is not None and group.measured.bandwidth < _SLOW * normal


def bandwidth_of_most(groups: Iterable[HostGroup]) -> float | None:
    """Return the bandwidth that most hosts reach in pairs, in bytes per second; see ``usual``."""
    return usual((group for group in groups if not lossy(group)), lambda measured: measured.bandwidth, max)


GroupVerdict = Literal["fine", "slow", "lossy", "failed"]


def verdicts(comm: Comm) -> tuple[GroupVerdict, ...]:
    """Return what became of each group, in their order."""
    normal = bandwidth_of_most(comm.between)
    found: list[GroupVerdict] = []
    for group in comm.groups:
        if lossy(group):
            found.append("lossy")
        elif failed(group):
            found.append("failed")
        else:
            found.append("slow" if group.round > 0 and slow(group, normal) else "fine")
    return tuple(found)


def usual(groups: Iterable[HostGroup], value: Callable[[Measured], float], best: Callable[..., float]) -> float | None:
    """Return what most hosts reach: the median over the hosts of each one's ``best`` group.

    A host's best, because a slow partner says nothing of it. None for fewer than three hosts, of which no one is usual.
    """
    of_host: dict[str, list[float]] = {}
    for group in groups:
        if group.measured is not None:
            for host in group.hosts:
                of_host.setdefault(host, []).append(value(group.measured))
    if len(of_host) < 3:
        return None
    return statistics.median(best(values) for values in of_host.values())
