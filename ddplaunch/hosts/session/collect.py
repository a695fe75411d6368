"""Asks many hosts at once for their facts, sources and clocks, and finds an address where all of them can meet."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ddplaunch.hosts.json_lines import message_in
from ddplaunch.hosts.session.fan_out import FanOut
from ddplaunch.hosts.session.links import Link, Links
from ddplaunch.hosts.ssh import misunderstood
from ddplaunch.machine.facts import ProbeRequest
from ddplaunch.planning.hosts_plan import HostReport, Meeting, names_text
from ddplaunch.values import codec
from ddplaunch.values.finding import Finding, error
from ddplaunch.values.frozen import dataclass

_MEET_S = 10.0
_SAMPLES = 3  # most samples of a clock; the quickest one counts
_SURE_S = 0.02
_ECHO_S = 2.0  # for the echoes of all hosts
_UNKNOWN_CLOCK = (0.0, 1e6)  # for a host without an echo in time: too uncertain for a finding


@dataclass(frozen=True)
class Question:
    """The question to every host. ``cwd`` is the directory there, ``env`` the variables passed from here.

    ``sources`` are the script's files in ``cwd`` to compare, each with its digest where this machine has the file.
    """

    request: ProbeRequest
    python: str
    cwd: str | None = None
    script: str | None = None
    sources: tuple[tuple[str, str | None], ...] = ()
    env: Mapping[str, str] | None = None
    deadline_s: float = 20.0


@dataclass(frozen=True)
class Gathered:
    """The answers: reports in the order of the hosts, and a finding for each host without a report."""

    reports: tuple[HostReport, ...]
    links: tuple[Link, ...]
    missing: tuple[Finding, ...]


def ask_all(links: Links, names: Sequence[str], start: Callable[[str], Link], question: Question) -> Gathered:
    """Ask all hosts at once, after each was reached or found out of reach, and return their answers.

    ``start`` opens the session of one host. Raises OSError where there is no ssh.
    """
    hosts = FanOut(links, start, question.deadline_s).reach(names)
    asked_links = [host.link for host in hosts if host.greeted]
    for link in asked_links:
        link.send(
            {
                "what": "facts",
                "request": codec.plain(replace(question.request, torch_needs_gpu=True, packages=True)),
                "cwd": question.cwd,
                "files": [path for path, _ in question.sources],
                "env": dict(question.env or {}),
            }
        )
    answers = dict(replies(links, asked_links, question.deadline_s))
    clocks = _clocks(links, [link for link in asked_links if link.name in answers])
    reports, answered_links, missing = [], [], []
    for host in hosts:
        report: HostReport | Finding
        if host.name in answers:
            report = _report(host.name, question, answers[host.name], clocks.get(host.name, _UNKNOWN_CLOCK))
        else:
            report = host.failure(question.python)
        if isinstance(report, HostReport):
            reports.append(report)
            answered_links.append(host.link)
        else:
            missing.append(report)
            links.close(host.link)
    return Gathered(tuple(reports), tuple(answered_links), tuple(missing))


def replies(links: Links, asked_links: Sequence[Link], deadline_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and answer of each host that answers in time."""
    waiting = {link for link in asked_links if not link.closed}
    until = time.monotonic() + deadline_s
    while waiting and (left_s := until - time.monotonic()) > 0:
        for event in links.wait(left_s):
            if event.link in waiting:
                waiting.discard(event.link)
                if event.kind == "message":
                    yield event.link.name, message_in(event.body)


def _report(
    name: str, question: Question, reply: Mapping[str, Any], clock: tuple[float, float]
) -> HostReport | Finding:
    if "problem" in reply:
        return misunderstood(name, str(reply["problem"]))
    try:
        report = codec.from_plain(reply.get("report"), HostReport)
    except (ValueError, RecursionError) as problem:
        return misunderstood(name, str(problem))
    return replace(
        report,
        name=name,
        script_name=question.script,
        script=dict(report.sources).get(question.script or ""),
        clock_ahead_s=clock[0],
        clock_unsure_s=clock[1],
        sources_here=tuple((path, digest) for path, digest in question.sources if digest is not None),
    )


def _clocks(links: Links, asked_links: Sequence[Link]) -> dict[str, tuple[float, float]]:
    """Return (seconds ahead of this clock, uncertainty) of each host: Cristian's algorithm, the best of three.

    One quick sample is enough. A host that does not echo the first beat is not asked again.
    """
    best: dict[str, tuple[float, float]] = {}
    for _ in range(_SAMPLES):
        for link in asked_links:
            link.send({"what": "clock", "sent": time.time()})
        for name, beat in replies(links, asked_links, _ECHO_S):
            with suppress(KeyError, TypeError, ValueError, OverflowError):  # an invalid answer counts as no echo
                clock = clock_of(beat, time.time())
                best[name] = min(best.get(name, clock), clock, key=lambda sample: sample[1])
        asked_links = [link for link in asked_links if link.name in best and best[link.name][1] > _SURE_S]
    return best


def clock_of(beat: Mapping[str, Any], now_s: float) -> tuple[float, float]:
    """Return how far ahead a host's clock is, and the uncertainty of that, in seconds, from one beat and its echo.

    Raises ValueError, KeyError, TypeError or OverflowError for an invalid echo.
    """
    sent, wall = float(beat["sent"]), float(beat["wall"])
    if not (math.isfinite(sent) and math.isfinite(wall)):
        raise ValueError("a clock shows no time")
    return wall - (sent + now_s) / 2, max(0.0, (now_s - sent) / 2)


def _routes(reply: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return for each address of the first host the two ends of another host's connection to it."""
    reached = reply.get("reached")
    pairs = reached.items() if isinstance(reached, dict) else ()
    return {name: (str(pair[0]), str(pair[1])) for name, pair in pairs if isinstance(pair, list) and len(pair) == 2}


def meet(
    links: Links, asked_links: Sequence[Link], port: int | None, address: str | None
) -> Meeting | tuple[Finding, ...]:
    """Let the first host listen on ``port`` (or a free one) and all others try its addresses; return where they meet.

    That is the first address that all others reach; ``address`` is the user's choice. Otherwise returns findings that
    name the hosts.
    """
    first, *other_links = asked_links
    nonce = secrets.token_hex(8)
    first.send({"what": "listen", "port": port, "nonce": nonce})
    reply = dict(replies(links, [first], _MEET_S)).get(first.name, {"problem": "no answer"})
    if "problem" in reply:
        return (misunderstood(first.name, str(reply["problem"])),)
    if "port_problem" in reply:
        return (
            error(
                "port-taken",
                f"port {reply.get('port')} cannot be used on {first.name}: {reply['port_problem']}",
                why="rank 0's host has to listen on it",
                fix="leave `--master-port` away, and a free port is found; or name another one",
                where=first.name,
            ),
        )
    found_port, listed = reply.get("port"), reply.get("addresses")
    if type(found_port) is not int or not 0 < found_port < 1 << 16 or not isinstance(listed, list):
        return (misunderstood(first.name, "it names no port and addresses"),)
    addresses = [address] if address else list(map(str, listed))
    for link in other_links:
        link.send({"what": "reach", "addresses": addresses, "port": found_port, "nonce": nonce})
    answers = dict(replies(links, other_links, _MEET_S))
    routes = {link.name: _routes(answers.get(link.name, {})) for link in other_links}
    for candidate in addresses:
        if all(candidate in of_host for of_host in routes.values()):
            numbers = {of_host[candidate][1] for of_host in routes.values()}
            place = numbers.pop() if len(numbers) == 1 else candidate  # on rank 0 its name may resolve to 127.0.1.1
            return Meeting(place, found_port, (place, *(of_host[candidate][0] for of_host in routes.values())))
    cut_off = [name for name, of_host in routes.items() if not of_host] or list(routes)
    return (
        error(
            "hosts-not-connected",
            f"{names_text(cut_off)} cannot reach {first.name} at {' or '.join(addresses) or 'any address'} "
            f"port {found_port}",
            why="all ranks meet at rank 0's host; a firewall, a missing route or another network stands between",
            fix=f"open TCP between the hosts, or name an address of {first.name} that all reach: "
            "`--master-addr ADDRESS`; `--master-port PORT` where only some ports are open",
            where=tuple(cut_off),
        ),
    )
