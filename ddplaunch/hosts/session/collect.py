"""Asks many hosts for their facts, sources and clocks at once, and finds where all of them meet."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddplaunch.hosts.json_lines import message_in
from ddplaunch.hosts.session.fan_out import FanOut
from ddplaunch.hosts.session.links import Link, Links
from ddplaunch.hosts.ssh import failure, misunderstood
from ddplaunch.machine.facts import Facts, ProbeRequest
from ddplaunch.planning.hosts_plan import HostReport, Meeting, named
from ddplaunch.values import codec
from ddplaunch.values.finding import Finding, error
from ddplaunch.values.frozen import dataclass

_MEET_S = 10.0
_SAMPLES = 3  # of the clock at most; the one that took the least time counts
_SURE_S = 0.02
_ECHO_S = 2.0  # for the echoes of all hosts
_UNKNOWN_CLOCK = (0.0, 1e6)  # a host that echoed nothing in time is not to be blamed for its clock


@dataclass(frozen=True)
class Question:
    """The question to every host. ``cwd`` is the directory there, ``env`` the variables that it gets from here."""

    request: ProbeRequest
    python: str
    cwd: str | None = None
    script: str | None = None
    env: Mapping[str, str] | None = None
    deadline_s: float = 20.0


@dataclass(frozen=True)
class Gathered:
    """The answers: reports in the order of the hosts, and a finding for each host without one."""

    reports: tuple[HostReport, ...]
    links: tuple[Link, ...]
    missing: tuple[Finding, ...]


def ask_all(links: Links, names: Sequence[str], start: Callable[[str], Link], question: Question) -> Gathered:
    """Ask all hosts at once. A host that does not answer costs its deadline, and the others nothing.

    ``start`` opens the session of one host. Raises OSError where there is no ssh.
    """
    order = {
        "what": "facts",
        "request": codec.to_json(replace(question.request, torch_needs_gpu=True, packages=True)),
        "cwd": question.cwd,
        "script": question.script,
        "env": dict(question.env or {}),
    }
    reached = FanOut(links, start, order, question.deadline_s).ask(names)
    clocks = _clocks(links, [each.link for each in reached if each.answer is not None])
    reports, answered, missing = [], [], []
    for each in reached:
        found: HostReport | Finding
        if each.answer is None:
            found = failure(each.name, question.python, each.status, each.said, each.tries)
        else:
            found = _report(each.name, question, each.answer, clocks.get(each.name, _UNKNOWN_CLOCK))
        if isinstance(found, HostReport):
            reports.append(found)
            answered.append(each.link)
        else:
            missing.append(found)
            links.close(each.link)
    return Gathered(tuple(reports), tuple(answered), tuple(missing))


def with_sources(
    links: Links, gathered: Gathered, files: Sequence[str], here: Sequence[tuple[str, str]] = ()
) -> Gathered:
    """Ask every host for digests of ``files`` in its directory, and what git says of it; ``here`` are those of this
    machine. A host that does not answer in time is not compared.
    """
    for link in gathered.links:
        link.send({"what": "sources", "files": list(files)})
    answers = dict(replies(links, gathered.links, _MEET_S))
    reports = []
    for report in gathered.reports:
        said = answers.get(report.name, {})
        tree = said.get("tree")
        found = tuple(_texts(said.get("files")).items())
        tree = tree if isinstance(tree, str) else None
        reports.append(replace(report, sources=found, sources_here=tuple(here), tree=tree))
    return replace(gathered, reports=tuple(reports))


def replies(links: Links, asked: Sequence[Link], deadline_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and answer of each host, as far as they arrive in time."""
    waiting = {link for link in asked if not link.closed}
    until = time.monotonic() + deadline_s
    while waiting and (left := until - time.monotonic()) > 0:
        for event in links.wait(left):
            if event.link in waiting:
                waiting.discard(event.link)
                if event.kind == "message":
                    yield event.link.name, message_in(event.body)


def _report(
    name: str, question: Question, answer: Mapping[str, Any], clock: tuple[float, float]
) -> HostReport | Finding:
    if "problem" in answer:
        return misunderstood(name, str(answer["problem"]))
    try:
        extra = answer["extra"]
        return HostReport(
            name=name,
            facts=codec.from_json(answer["facts"], Facts),
            ddplaunch=str(extra["ddplaunch"]),
            plugin=extra["plugin"],
            cwd=question.cwd or "",
            cwd_problem=extra["cwd_problem"],
            script_name=question.script,
            script=extra["script_sha256"],
            machine=str(extra["machine"]),
            clock_ahead_s=clock[0],
            clock_unsure_s=clock[1],
        )
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        return misunderstood(name, str(problem))


def _clocks(links: Links, asked: Sequence[Link]) -> dict[str, tuple[float, float]]:
    """Return (seconds ahead of this clock, uncertainty) of each host: Cristian's algorithm, the best of three.

    One sample that came back at once is enough. A host that does not echo is waited for once.
    """
    best: dict[str, tuple[float, float]] = {}
    for _ in range(_SAMPLES):
        for link in asked:
            link.send({"what": "clock", "sent": time.time()})
        echoed = set()
        for name, beat in replies(links, asked, _ECHO_S):
            try:
                clock = clock_of(beat, time.time())
            except (KeyError, TypeError, ValueError, OverflowError):  # no clock's answer: as if it had not echoed
                continue
            echoed.add(name)
            if name not in best or clock[1] < best[name][1]:
                best[name] = clock
        asked = [link for link in asked if link.name in echoed and best[link.name][1] > _SURE_S]
    return best


def clock_of(beat: Mapping[str, Any], now_s: float) -> tuple[float, float]:
    """Return how far a host's clock is ahead, and by how much that may be wrong, from one beat and its echo.

    Raises ValueError, KeyError, TypeError or OverflowError for what is no echo.
    """
    sent, wall = float(beat["sent"]), float(beat["wall"])
    if not (math.isfinite(sent) and math.isfinite(wall)):
        raise ValueError("a clock shows no time")
    return wall - (sent + now_s) / 2, max(0.0, (now_s - sent) / 2)


def _texts(value: object) -> dict[str, str]:
    """Return a JSON object of a host with all values as text, empty for anything else."""
    return {key: str(each) for key, each in value.items()} if isinstance(value, dict) else {}


def meet(links: Links, asked: Sequence[Link], port: int | None, address: str | None) -> Meeting | tuple[Finding, ...]:
    """Let the first host listen on ``port`` (or a free one), and all others try its addresses.

    Returns the first address that all reach; ``address`` is the user's choice. Else findings that name the hosts.
    """
    first, *others = asked
    nonce = secrets.token_hex(8)
    first.send({"what": "listen", "port": port, "nonce": nonce})
    answer = dict(replies(links, [first], _MEET_S)).get(first.name, {"problem": "no answer"})
    if "problem" in answer:
        return (misunderstood(first.name, str(answer["problem"])),)
    if "port_problem" in answer:
        return (
            error(
                "port-taken",
                f"port {answer.get('port')} cannot be used on {first.name}: {answer['port_problem']}",
                why="rank 0's host has to listen on it",
                fix="leave `--master-port` away, and a free port is found; or name another one",
                where=first.name,
            ),
        )
    found, listed = answer.get("port"), answer.get("addresses")
    if type(found) is not int or not 0 < found < 1 << 16 or not isinstance(listed, list):
        return (misunderstood(first.name, "it names no port and addresses"),)
    addresses = [address] if address else list(map(str, listed))
    for link in others:
        link.send({"what": "reach", "addresses": addresses, "port": found, "nonce": nonce})
    answers = dict(replies(links, others, _MEET_S))
    reached = {link.name: _texts(answers.get(link.name, {}).get("reached")) for link in others}
    for candidate in addresses:
        if all(candidate in each for each in reached.values()):
            numbers = {_texts(each.get("at")).get(candidate, candidate) for each in answers.values()}
            place = numbers.pop() if len(numbers) == 1 else candidate  # rank 0's name may mean 127.0.1.1 there
            return Meeting(place, found, (place, *(each[candidate] for each in reached.values())))
    cut_off = [name for name, each in reached.items() if not each] or list(reached)
    return (
        error(
            "hosts-not-connected",
            f"{named(cut_off)} cannot reach {first.name} at {' or '.join(addresses) or 'any address'} port {found}",
            why="all ranks meet at rank 0's host; a firewall, a missing route or another network stands between",
            fix=f"open TCP between the hosts, or name an address of {first.name} that all reach: "
            "`--master-addr ADDRESS`; `--master-port PORT` where only some ports are open",
            where=tuple(cut_off),
        ),
    )
