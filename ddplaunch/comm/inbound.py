"""Tries whether ranks can connect to every host, before anything is launched there; firewalls let few ports in."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ddplaunch.hosts.session.answers import Listening
from ddplaunch.hosts.session.collect import meet, replies, routes_in
from ddplaunch.hosts.session.links import Link
from ddplaunch.planning.hosts_plan import Meeting, names_text
from ddplaunch.values import codec
from ddplaunch.values.finding import Finding, error

_PATIENCE_S = 30.0  # for all hosts together


async def connected(links: Sequence[Link], port: int | None, address: str | None) -> Meeting | tuple[Finding, ...]:
    """Return where the hosts meet, as ``meet`` does, or a finding about those that take no connection from the first.

    Each listens at a port that its kernel chooses, as it chooses the ports of ranks.
    """
    meeting = await meet(links, port, address)
    if not isinstance(meeting, Meeting):
        return meeting
    first, *others = links
    nonce = secrets.token_hex(8)
    answers = await replies(others, {"what": "listen", "port": 0, "nonce": nonce}, _PATIENCE_S)
    address_of = dict(zip(others, meeting.local[1:], strict=True))
    places = [([address], _port(answers.get(link, {}))) for link, address in address_of.items()]
    question = {"what": "reach", "places": places, "nonce": nonce}
    routes = routes_in((await replies([first], question, _PATIENCE_S)).get(first, {}))
    closed = [link.name for link, address in address_of.items() if address not in routes]
    if not closed:
        return meeting
    return (
        error(
            "hosts-not-connected",
            f"{names_text(closed)} cannot be reached from {first.name} at the ports that ranks get from the kernel",
            why="ranks connect to each other on every host, not only to rank 0's; a firewall there keeps them out",
            fix="let TCP through between the hosts, on all ports; `--no-checks` launches without trying",
            where=tuple(closed),
        ),
    )


def _port(reply: Mapping[str, Any]) -> int:
    with suppress(ValueError, RecursionError):
        return codec.from_plain(reply.get("listening"), Listening).port
    return 0
