"""Asks many hosts at once for their facts, sources and clocks, and finds an address where all of them can meet."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ddplaunch.hosts.session.answers import Listening, Question
from ddplaunch.hosts.session.fan_out import FanOut
from ddplaunch.hosts.session.links import Link, Links
from ddplaunch.hosts.ssh import misunderstood
from ddplaunch.planning.hosts_plan import HostReport, Meeting, names_text
from ddplaunch.values import codec
from ddplaunch.values.finding import Finding, error
from ddplaunch.values.frozen import dataclass

_MEET_S = 10.0
_ECHO_S = 2.0  # for the echoes of all hosts
_UNKNOWN_CLOCK = (0.0, 1e6)  # for a host without an echo in time: too uncertain for a finding


@dataclass(frozen=True)
class Gathered:
    """The answers: reports in the order of the hosts, and a finding for each host without a report."""

    reports: tuple[HostReport, ...]
    links: tuple[Link, ...]
    missing: tuple[Finding, ...]


async def ask_all(links: Links, names: Sequence[str], start: Callable[[str], Link], question: Question) -> Gathered:
    """Open a session with each host, ask all that can be reached at once, and return their answers.

    ``start`` opens the session of one host. Raises FileNotFoundError where there is no ssh.
    """
    fan_out = FanOut(links, start, question.deadline_s)
    request = replace(question.request, torch_needs_gpu=True, packages=True)
    message = {"what": "facts", "question": codec.plain(replace(question, request=request))}

    async def ask(name: str) -> tuple[Link, HostReport | Finding]:
        """Ask as soon as this host is reached: the time of another one, which hangs, is not its own."""
        link = await fan_out.reach(name)
        if link.greeted and (reply := await link.ask(message, link.until_s)) is not None:
            return link, _report(name, question, reply, await _clock(link))
        return link, link.failure(question.python)

    reports, answered_links, missing = [], [], []
    for link, report in await asyncio.gather(*map(ask, names)):
        if isinstance(report, HostReport):
            reports.append(report)
            answered_links.append(link)
        else:
            missing.append(report)
            link.close()
    return Gathered(tuple(reports), tuple(answered_links), tuple(missing))


async def replies(links: Sequence[Link], message: Mapping[str, Any], deadline_s: float) -> dict[Link, dict[str, Any]]:
    """Ask all hosts one question; return the answers that arrive within ``deadline_s``."""
    until_s = time.monotonic() + deadline_s
    answers = await asyncio.gather(*(link.ask(message, until_s) for link in links))
    return {link: answer for link, answer in zip(links, answers, strict=True) if answer is not None}


def _report(
    name: str, question: Question, reply: Mapping[str, Any], clock: tuple[float, float]
) -> HostReport | Finding:
    if "problem" in reply:
        return misunderstood(name, reply["problem"])
    try:
        report = codec.from_plain(reply.get("report"), HostReport)
    except (ValueError, RecursionError) as problem:
        return misunderstood(name, problem)
    return replace(
        report,
        name=name,
        script_name=question.script,
        script=dict(report.sources).get(question.script or ""),
        clock_ahead_s=clock[0],
        clock_unsure_s=clock[1],
        sources_here=tuple((path, digest) for path, digest in question.sources if digest is not None),
    )


async def _clock(link: Link) -> tuple[float, float]:
    """Return how far ahead a host's clock is, and the uncertainty of that, by one question: Cristian's algorithm."""
    beat = {"what": "clock", "sent": time.time()}
    echo = await link.ask(beat, time.monotonic() + _ECHO_S)
    with suppress(KeyError, TypeError, ValueError, OverflowError):  # an invalid answer counts as no echo
        return clock_of(echo or {}, time.time())
    return _UNKNOWN_CLOCK


def clock_of(beat: Mapping[str, Any], now_s: float) -> tuple[float, float]:
    """Return how far ahead a host's clock is, and the uncertainty of that, in seconds, from one beat and its echo.

    Raises ValueError, KeyError, TypeError or OverflowError for an invalid echo.
    """
    sent, wall = float(beat["sent"]), float(beat["wall"])
    if not math.isfinite(sent + wall):
        raise ValueError("a clock shows no time")
    return wall - (sent + now_s) / 2, max(0.0, (now_s - sent) / 2)


def routes_in(reply: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return for each address of the first host the two ends of another host's connection to it."""
    with suppress(ValueError, RecursionError):
        routes = codec.from_plain(reply.get("reached"), tuple[tuple[str, str, str], ...])
        return {address: (own_address, peer) for address, own_address, peer in routes}
    return {}


async def meet(links: Sequence[Link], port: int | None, address: str | None) -> Meeting | tuple[Finding, ...]:
    """Let the first host listen on ``port`` (or a free one) and all others try its addresses; return where they meet.

    That is the first address that all others reach; ``address`` is the user's choice. Otherwise returns findings that
    name the hosts.
    """
    first, *other_links = links
    nonce = secrets.token_hex(8)
    answers = await replies([first], {"what": "listen", "port": port, "nonce": nonce}, _MEET_S)
    reply = answers.get(first, {"problem": "no answer"})
    if "problem" in reply:
        return (misunderstood(first.name, reply["problem"]),)
    try:
        listening = codec.from_plain(reply.get("listening"), Listening)
    except (ValueError, RecursionError) as problem:
        return (misunderstood(first.name, problem),)
    if listening.problem is not None or not 0 < listening.port < 1 << 16:
        return (
            error(
                "port-taken",
                f"port {listening.port} cannot be used on {first.name}: {listening.problem}",
                why="rank 0's host has to listen on it",
                fix="omit `--master-port` to get a free port, or choose another one",
                where=first.name,
            ),
        )
    addresses = [address] if address else listening.addresses
    question = {"what": "reach", "places": [([one], listening.port) for one in addresses], "nonce": nonce}
    answers = await replies(other_links, question, _MEET_S)
    routes = {link.name: routes_in(answers.get(link, {})) for link in other_links}
    for candidate in addresses:
        if all(candidate in of_host for of_host in routes.values()):
            numbers = {of_host[candidate][1] for of_host in routes.values()}
            place = numbers.pop() if len(numbers) == 1 else candidate  # on rank 0 its name may resolve to 127.0.1.1
            return Meeting(place, listening.port, (place, *(of_host[candidate][0] for of_host in routes.values())))
    cut_off = [name for name, of_host in routes.items() if not of_host] or list(routes)
    return (
        error(
            "hosts-not-connected",
            f"{names_text(cut_off)} cannot reach {first.name} at {' or '.join(addresses) or 'any address'} "
            f"port {listening.port}",
            why="all ranks meet at rank 0's host; a firewall, a missing route, separate networks or lost large packets "
            "(MTU) prevent it",
            fix=f"open TCP between the hosts, or name an address of {first.name} that all reach: "
            "`--master-addr ADDRESS`; `--master-port PORT` where only some ports are open; if `ping -c 2 -s 8000 HOST` "
            "is lost between them and `ping -c 2 HOST` is not, `sudo ip link set dev INTERFACE mtu 1500` on both",
            where=tuple(cut_off),
        ),
    )
