"""The measurements of `doctor --comm`, group by group: what is wrong with them, and who is tested with whom next.

Two rounds with changed partners tell which of a bad pair is bad. The second one gives the members of bad pairs partners
that were fine. Two more are for hosts that had one partner so far (an odd number of hosts), or only bad ones, and for
those that were slow twice, which may have been something else that ran on them.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

from ddplaunch.values.frozen import dataclass

_SLOW = 0.4  # of what most hosts reach
_LOSS = 0.05  # of the segments of a ping-pong, in which nothing else is in the way
_LEAST_SEGMENTS = 20
_LEAST_RESENT = 3


@dataclass(frozen=True)
class Measured:
    """One group's collectives. ``bandwidth`` is bytes per second (bus bandwidth), of all-reduces of ``size_bytes``.

    ``latency_us`` is the median of all-reduces of four bytes, ``latency_most_us`` the longest of them.
    """

    bandwidth: float
    size_bytes: int
    latency_us: float
    latency_most_us: float


@dataclass(frozen=True)
class HostGroup:
    """One step of one or more hosts. ``round`` 0 is each host alone, with all its ranks.

    ``problem`` is empty where all was measured; else it says why not. ``resent`` of ``segments`` TCP segments were sent
    again: during the all-reduces of four bytes, or up to the end where nothing was measured; both 0 without TCP.
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
        enough = self.segments >= _LEAST_SEGMENTS and self.resent >= _LEAST_RESENT
        return min(1.0, self.resent / self.segments) if enough else 0.0


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


ROUNDS = 4
_FOR_ALL = 2
_SLOWER = 0.5  # of the round's quickest: only decides who is paired with whom

Pair = tuple[str, str]


def next_round(hosts: Sequence[str], groups: Sequence[HostGroup]) -> tuple[Pair, ...]:
    """Return the pairs of the next round, empty when there is nothing more to learn. ``groups`` are those so far.

    ``hosts`` are those that can still take part.
    """
    between = [group for group in groups if group.round > 0]
    done = max((group.round for group in between), default=0)
    if done >= ROUNDS:
        return ()
    of_host = {host: [group for group in between if host in group.hosts] for host in hosts}
    suspects = _never_good(hosts, between)
    wanting = [host for host in hosts if done < _FOR_ALL or _can_tell_more(host, of_host[host], suspects, done)]
    wanting.sort(key=lambda host: (host not in suspects, len(of_host[host])))
    return _match(wanting, hosts, {frozenset(group.hosts) for group in between}, suspects)


def _never_good(hosts: Sequence[str], groups: Sequence[HostGroup]) -> set[str]:
    """Return the hosts with no good pair, but some that failed, lost packets or were slow for their round."""
    best = max((group.measured.bandwidth for group in groups if group.measured), default=0.0)
    good: set[str] = set()
    bad: set[str] = set()
    for group in groups:
        fine = group.measured is not None and group.measured.bandwidth >= _SLOWER * best and not lossy(group)
        (good if fine else bad).update(group.hosts)
    return (bad & set(hosts)) - good


def _can_tell_more(host: str, mine: Sequence[HostGroup], suspects: Collection[str], done: int) -> bool:
    """Whether one more pair tells more of ``host`` than ``mine``, those it was in during the ``done`` rounds."""
    if len(mine) < 2:
        return True
    if host not in suspects:
        return sum(not failed(group) for group in mine) < 2
    only_suspects = all(other in suspects for group in mine for other in group.hosts)
    only_slow = not any(failed(group) or lossy(group) for group in mine)
    return only_suspects or (only_slow and done == _FOR_ALL)


def _match(
    order: Sequence[str], hosts: Sequence[str], tried: Collection[frozenset[str]], suspects: Collection[str]
) -> tuple[Pair, ...]:
    """Give each of ``order`` a partner that it has not had; a suspect gets one that is none, where one is left."""
    pairs: list[Pair] = []
    taken: set[str] = set()
    wanting = set(order)
    places = {host: place for place, host in enumerate(hosts)}

    def less_wanted(each: str) -> tuple[bool, bool]:
        return host in suspects and each in suspects, each not in wanting

    for host in order:
        if host in taken:
            continue
        # those behind it come first: without suspects the second round is shifted by one
        after = (*hosts[places[host] + 1 :], *hosts[: places[host]])
        free = (each for each in after if each not in taken and frozenset((host, each)) not in tried)
        partner = min(free, key=less_wanted, default=None)
        if partner is not None:
            pairs.append((host, partner))
            taken |= {host, partner}
    left = [host for host in order if host not in taken]
    while len(left) >= 2 and _rearranged(pairs, left[0], left[1], tried):
        del left[:2]
    return tuple(pairs)


def _rearranged(pairs: list[Pair], one: str, two: str, tried: Collection[frozenset[str]]) -> bool:
    """Give two hosts that are left over, and had each other, the partners of a pair that is taken apart."""
    for position, (third, fourth) in enumerate(pairs):
        for a, b in ((third, fourth), (fourth, third)):
            if frozenset((one, a)) not in tried and frozenset((two, b)) not in tried:
                pairs[position : position + 1] = [(one, a), (two, b)]
                return True
    return False
