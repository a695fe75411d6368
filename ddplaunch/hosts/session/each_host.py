"""Runs one command about a run (logs, top, stacks, stop) on each of its hosts, in separate ssh sessions.

The command prints JSON there, which arrives here unchanged. The run itself does not depend on these sessions.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from ddplaunch.hosts.json_lines import message_in
from ddplaunch.hosts.ssh import command, ssh_missing, why_lost
from ddplaunch.records.launchers import Launched, Place
from ddplaunch.values.finding import ExitStatus, Finding, warning

if TYPE_CHECKING:
    from ddplaunch.hosts.session.links import Link

_REACH_S = 30.0
_LONGEST_ANSWER = 16 << 20


class EachHost:
    """The hosts of a run while each of them runs a command; for a ``with`` statement.

    ``nodes`` are those that run it; ``problems`` explain which hosts do not, or went away.
    """

    def __init__(self, launched: Launched, what: str, *options: str) -> None:
        """``what`` is a command, run on each host's part of this launch, or "record": an archive of that part."""
        self._places = {place.host: place for place in launched.places}
        self._part, self._words = f"{launched.run_id}@{launched.launch}", (what, *options)
        self._by_link: dict[Link, Place] = {}
        self._output: list[tuple[Place, bytes]] = []
        self._pending: dict[int, bytes] = {}
        self.nodes: tuple[int, ...] = ()
        self.problems: tuple[Finding, ...] = ()

    def __enter__(self) -> EachHost:
        """Start the command on each host as soon as it is reached.

        Raises RefusedError where this machine cannot open that many sessions.
        """
        from ddplaunch.hosts.session.links import Links  # asyncio, which a run on this host does not need

        self._links = Links()
        with contextlib.ExitStack() as begun:
            begun.enter_context(self._links)
            self._links.run(self._begin())
            begun.pop_all()
        return self

    async def _begin(self) -> None:
        import asyncio

        from ddplaunch.hosts.session.fan_out import FanOut

        fan_out = FanOut(self._links, self._start, _REACH_S)

        async def begin(place: Place) -> None:
            link = await fan_out.reach(place.host)
            if link.greeted:
                what, *options = self._words
                run = f"{place.record.rpartition('/')[0]}/{self._part}"
                self._by_link[link] = place
                self.nodes += (place.node,)
                link.hand_over("command", self._take, words=[what, run, *options])
            else:
                self.problems += (link.failure(place.python),)
                link.close()

        try:
            await asyncio.gather(*map(begin, self._places.values()))
        except FileNotFoundError:
            self.problems = (ssh_missing(),)

    def __exit__(self, *problem: object) -> None:
        """End the sessions."""
        self._links.__exit__(*problem)

    def _start(self, name: str) -> Link:
        return self._links.open(name, command(name, self._places[name].python))

    @property
    def open(self) -> bool:
        """Whether any host may still send something."""
        return bool(self._by_link or self._output)

    def arrived(self, timeout_s: float) -> Iterator[tuple[Place, bytes]]:
        """Yield output that arrives within ``timeout_s`` seconds."""
        if not self._output:
            self._links.run(self._links.arrival(timeout_s))
        output, self._output = self._output, []
        yield from output

    def _take(self, link: Link, kind: Literal["out", "err", "end"], data: bytes) -> None:
        """Keep a command's output, and forget a session that has ended."""
        if kind == "out":
            self._output.append((self._by_link[link], data))
        elif kind == "end":
            self._end(link, self._by_link.pop(link))

    def lines(self, timeout_s: float) -> Iterator[tuple[Place, dict[str, Any]]]:
        """Yield output that has arrived, as the objects that commands print line by line."""
        for place, data in self.arrived(timeout_s):
            *whole, rest = (self._pending.get(place.node, b"") + data).split(b"\n")
            self._pending[place.node] = rest[-_LONGEST_ANSWER:]
            for line in whole:
                yield place, message_in(line)

    def answers(self, deadline_s: float) -> dict[int, dict[str, Any]]:
        """Wait for all sessions to end; return by node the object that each printed, empty if it printed nothing."""
        until_s, texts = time.monotonic() + deadline_s, dict.fromkeys(self.nodes, b"")
        while self.open and (left_s := until_s - time.monotonic()) > 0:
            for place, data in self.arrived(left_s):
                texts[place.node] = (texts[place.node] + data)[-_LONGEST_ANSWER:]
        self.problems += tuple(link.failure(place.python) for link, place in self._by_link.items())
        silent_hosts = {host for finding in self.problems for host in finding.where}
        places = (place for place in self._places.values() if place.host not in silent_hosts)
        return {place.node: message_in(texts[place.node]) for place in places if place.node in texts}

    def _end(self, link: Link, place: Place) -> None:
        if link.status not in (ExitStatus.DONE, ExitStatus.FINDINGS):
            self.problems += (
                warning(
                    "host-silent",
                    f"no more output from {place.host}: {why_lost(link.status, link.stderr_text)}",
                    why="the session ended, but the run itself does not depend on it",
                    fix=f"`ssh {place.host} uptime` says whether it can be reached",
                    where=place.host,
                ),
            )
