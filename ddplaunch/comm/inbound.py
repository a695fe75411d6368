"""Tries whether ranks can connect to every host, before anything is launched there; firewalls let few ports in."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence

from ddplaunch.hosts.session.collect import meet, replies, routes_in
from ddplaunch.hosts.session.links import Link
from ddplaunch.planning.hosts_plan import Meeting, names_text
from ddplaunch.values.finding import Finding, error

_PORTS = range(33000, 60000)  # inside Linux's ephemeral ports, as the kernel chooses them for ranks
_PATIENCE_S = 10.0
_REACH_S = 2.0  # for each address that does not answer


async def connected(links: Sequence[Link], port: int | None, address: str | None) -> Meeting | tuple[Finding, ...]:
    """Return where the hosts meet, as ``meet`` does, or a finding about those that take no connection from the first.

    A second port is tried on those: something else may have the first one.
    """
    meeting = await meet(links, port, address)
    if not isinstance(meeting, Meeting):
        return meeting
    first, *others = links
    closed = dict(zip(others, meeting.local[1:], strict=True))
    for number in random.sample(_PORTS, 2):
        place = {"port": number, "nonce": secrets.token_hex(8)}
        await replies(list(closed), {"what": "listen", **place}, _PATIENCE_S)
        question = {"what": "reach", "addresses": list(closed.values()), **place}
        answers = await replies([first], question, _PATIENCE_S + _REACH_S * len(closed))
        reached = routes_in(answers.get(first, {}))
        closed = {link: own_address for link, own_address in closed.items() if own_address not in reached}
        if not closed:
            return meeting
    names = [link.name for link in closed]
    return (
        error(
            "hosts-not-connected",
            f"{names_text(names)} cannot be reached from {first.name} at the ports that ranks get from the kernel",
            why="ranks connect to each other on every host, not only to rank 0's; a firewall there keeps them out",
            fix="let TCP through between the hosts, on all ports; `--no-checks` launches without trying",
            where=tuple(names),
        ),
    )
