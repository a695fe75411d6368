"""Runs one command about a run (logs, top, stacks, stop) on each of its hosts, in separate ssh sessions.

The command prints JSON there, which arrives here unchanged. The run itself does not depend on these sessions.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from ddplaunch.hosts.json_lines import message_in
from ddplaunch.hosts.session.fan_out import FanOut
from ddplaunch.hosts.session.links import Event, Link, Links, allow_many
from ddplaunch.hosts.ssh import command, failure, ssh_missing, why_lost
from ddplaunch.records.launchers import Launched, Place
from ddplaunch.values.finding import ExitStatus, Finding, warning

_REACH_S = 30.0
_CLOSED_S = 0.5  # from the end of ssh's output to the end of ssh
_LONGEST_ANSWER = 16 << 20


class EachHost:
    """The hosts of a run while each of them runs a command; for a ``with`` statement.

    ``nodes`` are those that run it; ``problems`` explain which hosts do not, or went away.
    """

    def __init__(self, launched: Launched, what: str, *options: str) -> None:
        """``what`` is a command, run on each host's part of this launch, or "record": an archive of that part."""
        self._places = {place.host: place for place in launched.places}
        self._what, self._options = what, options
        self._run_id, self._token = launched.run_id, launched.launch
        self._by_link: dict[Link, Place] = {}
        self._links = Links()
        self._pending: dict[int, bytes] = {}
        self.nodes: tuple[int, ...] = ()
        self.problems: tuple[Finding, ...] = ()

    def __enter__(self) -> EachHost:
        """Start the command on all at once. Raises RefusedError where this machine cannot open that many sessions."""
        allow_many(len(self._places))
        with contextlib.ExitStack() as begun:
            begun.enter_context(self._links)
            try:
                hosts = FanOut(self._links, self._start, _REACH_S).reach(list(self._places))
            except FileNotFoundError:
                self.problems = (ssh_missing(),)
                hosts = ()
            for host in hosts:
                place = self._places[host.name]
                if host.greeted:
                    run = f"{place.record.rpartition('/')[0]}/{self._run_id}@{self._token}"
                    host.link.hand_over("command", words=[self._what, run, *self._options])
                    self._by_link[host.link] = place
                else:
                    self.problems += (host.failure(place.python),)
                    self._links.close(host.link)
            self.nodes = tuple(place.node for place in self._by_link.values())
            begun.pop_all()
        return self

    def __exit__(self, *problem: object) -> None:
        """End the sessions."""
        self._links.__exit__(*problem)

    def _start(self, name: str) -> Link:
        return self._links.open(name, command(name, self._places[name].python))

    @property
    def open(self) -> bool:
        """Whether any host may still send something."""
        return bool(self._by_link)

    def arrived(self, timeout_s: float) -> Iterator[tuple[Place, bytes]]:
        """Yield output that arrives within ``timeout_s`` seconds; forget sessions that have ended."""
        for event in self._links.wait(timeout_s):
            place = self._by_link.get(event.link)
            if place is not None and event.kind == "out":
                yield place, event.body
            elif place is not None and event.kind == "end":
                self._over(event, place)

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
        for place in self._by_link.values():
            self.problems += (failure(place.host, place.python, None, ""),)
        failed_hosts = {host for finding in self.problems for host in finding.where}
        failed_nodes = {place.node for place in self._places.values() if place.host in failed_hosts}
        return {node: message_in(text) for node, text in texts.items() if node not in failed_nodes}

    def _over(self, event: Event, place: Place) -> None:
        del self._by_link[event.link]
        status = event.link.reap(_CLOSED_S)
        self._links.close(event.link)
        if status not in (ExitStatus.DONE, ExitStatus.FINDINGS):
            self.problems += (
                warning(
                    "host-silent",
                    f"{place.host} says no more: {why_lost(status, event.link.said.decode('utf-8', 'replace'))}",
                    why="what is shown of it ends here; the run has connections of its own",
                    fix=f"`ssh {place.host} uptime` says whether it can be reached",
                    where=place.host,
                ),
            )
