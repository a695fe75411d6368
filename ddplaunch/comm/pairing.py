"""Which hosts are tested together in the next round, from what became of the last.

Two rounds with changed partners tell which of a bad pair is bad. The second one gives the members of bad pairs partners
that were fine. Two more are for hosts that had one partner so far (an odd number of hosts), or only bad ones, and for
those that were slow twice, which may have been something else that ran on them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ddplaunch.comm.groups import HostGroup, failed, lossy

ROUNDS = 4
_FOR_ALL = 2
_SLOW = 0.5  # of the round's quickest: only decides who is paired with whom

Pair = tuple[str, str]


def next_round(hosts: Sequence[str], groups: Sequence[HostGroup]) -> tuple[Pair, ...]:
    """Return the pairs of the next round, empty when there is nothing more to learn. ``groups`` are those so far.

    ``hosts`` are those that can still take part.
    """
    between = [group for group in groups if group.round > 0]
    done = max((group.round for group in between), default=0)
    tried = {frozenset(group.hosts) for group in between}
    if done >= ROUNDS:
        return ()
    bad = _bad(between)
    suspects = _never_good(hosts, between, bad)
    if done < _FOR_ALL:
        wanting: Sequence[str] = hosts
    else:
        wanting = [
            host
            for host in hosts
            if _partners(host, between) < 2
            or (host not in suspects and _measured(host, between) < 2)
            or (host in suspects and _among(host, between, suspects))
            or (host in suspects and _only_slow(host, between) and done == _FOR_ALL)
        ]
    order = sorted(wanting, key=lambda host: (host not in suspects, _partners(host, between), hosts.index(host)))
    return _match(order, hosts, tried, suspects)


def _bad(groups: Sequence[HostGroup]) -> set[frozenset[str]]:
    """Return the pairs that failed, lost packets, or were slow for their round."""
    best = max((group.measured.bandwidth for group in groups if group.measured), default=0.0)
    return {
        frozenset(group.hosts)
        for group in groups
        if failed(group) or lossy(group) or (group.measured is not None and group.measured.bandwidth < _SLOW * best)
    }


def _never_good(hosts: Sequence[str], groups: Sequence[HostGroup], bad: Collection[frozenset[str]]) -> set[str]:
    """Return the hosts with bad pairs and no good one."""
    good = {host for group in groups if frozenset(group.hosts) not in bad for host in group.hosts}
    return {host for pair in bad for host in pair if host in hosts} - good


def _partners(host: str, groups: Sequence[HostGroup]) -> int:
    return sum(host in group.hosts for group in groups)


def _measured(host: str, groups: Sequence[HostGroup]) -> int:
    return sum(host in group.hosts and not failed(group) for group in groups)


def _only_slow(host: str, groups: Sequence[HostGroup]) -> bool:
    return not any(failed(group) or lossy(group) for group in groups if host in group.hosts)


def _among(host: str, groups: Sequence[HostGroup], suspects: Collection[str]) -> bool:
    """Whether all partners of a suspect are suspects too."""
    return all(other in suspects for group in groups if host in group.hosts for other in group.hosts)


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
