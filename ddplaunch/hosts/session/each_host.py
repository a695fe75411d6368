"""What each host of a run knows of it, asked from where the run was launched, by a session of its own each.

Nothing of the run depends on these sessions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ddplaunch.hosts.session.fan_out import FanOut, Reached
from ddplaunch.hosts.session.links import Event, Link, Links, allow_many
from ddplaunch.hosts.ssh import command, failure, misunderstood, ssh_missing, why_lost
from ddplaunch.records.launchers import Launched, Place
from ddplaunch.values.finding import Finding, warning

_ANSWER_S = 30.0
_CLOSED_S = 0.5  # from the end of ssh's output to its own
#: What hosts send until there is no more of it, or nobody listens; anything else has one answer.
_STREAMS = ("logs", "samples", "record")


class EachHost:
    """The hosts of a run while they are asked ``what``; for a ``with`` statement.

    ``answers`` are by node; ``problems`` say which hosts gave none, or went away, and why.
    """

    def __init__(self, launched: Launched, what: str, answer_s: float = _ANSWER_S, **more: Any) -> None:
        """``answer_s`` is how long a host may take to its answer, in seconds; ``more`` goes along with the question."""
        self._places = {place.host: place for place in launched.places}
        self._order = {"what": what, "run_id": launched.run_id, "token": launched.launch, **more}
        self._is_stream, self._answer_s = what in _STREAMS, answer_s
        self._by_link: dict[Link, Place] = {}
        self._links = Links()
        self.answers: dict[int, dict[str, Any]] = {}
        self.problems: tuple[Finding, ...] = ()

    def __enter__(self) -> EachHost:
        """Ask all at once. Raises RefusedError where this machine cannot open so many sessions."""
        allow_many(len(self._places))
        with contextlib.ExitStack() as begun:
            begun.enter_context(self._links)
            try:
                fan_out = FanOut(self._links, self._start, self._answer_s, greeted=self._is_stream)
                reached = fan_out.ask(list(self._places))
            except FileNotFoundError:
                self.problems = (ssh_missing(),)
                reached = ()
            for host in reached:
                self._take_answer(host)
            if self._is_stream:  # before, nobody would have listened
                for link, place in self._by_link.items():
                    self._ask(link, place)
            begun.pop_all()
        return self

    def __exit__(self, *problem: object) -> None:
        """End the sessions."""
        self._links.__exit__(*problem)

    def _start(self, name: str) -> Link:
        place = self._places[name]
        link = self._links.open(name, command(name, place.python))
        if not self._is_stream:
            self._ask(link, place)
        return link

    def _ask(self, link: Link, place: Place) -> None:
        link.started = self._order["what"] == "record"
        link.send({**self._order, "node": place.node, "record": place.record})

    def _take_answer(self, reached: Reached) -> None:
        place, reply = self._places[reached.name], reached.answer
        if reply is None:
            self.problems += (failure(place.host, place.python, reached.status, reached.said, reached.tries),)
        elif "problem" in reply:
            self.problems += (misunderstood(place.host, str(reply["problem"])),)
        else:
            self.answers[place.node] = reply
            self._by_link[reached.link] = place
            return
        self._links.close(reached.link)

    @property
    def open(self) -> bool:
        """Whether a host may still send something."""
        return bool(self._by_link)

    def arrived(self, timeout_s: float) -> Iterator[tuple[Place, bytes]]:
        """Yield the messages, or pieces of records, that have arrived, after ``timeout_s`` seconds at the latest.

        A session that is over is forgotten.
        """
        for event in self._links.wait(timeout_s):
            place = self._by_link.get(event.link)
            if place is not None and event.kind in ("message", "out"):
                yield place, event.body
            elif place is not None and event.kind == "end":
                self._over(event, place)

    def _over(self, event: Event, place: Place) -> None:
        del self._by_link[event.link]
        status = event.link.reap(_CLOSED_S)
        self._links.close(event.link)
        if status != 0:
            self.problems += (
                warning(
                    "host-silent",
                    f"{place.host} says no more: {why_lost(status, event.link.said.decode('utf-8', 'replace'))}",
                    why="what is shown of it ends here; the run has connections of its own",
                    fix=f"`ssh {place.host} uptime` says whether it can be reached",
                    where=place.host,
                ),
            )
