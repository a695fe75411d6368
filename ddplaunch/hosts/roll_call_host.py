"""Node 0's side of a roll call: wait for all, compare them, tell them the verdict; refuses to launch anything."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from ddplaunch.finding import Finding, Severity
from ddplaunch.frozen import dataclass
from ddplaunch.hosts import roll_call_rules as rules
from ddplaunch.hosts.roll_call_door import Caller, Door
from ddplaunch.hosts.roll_call_words import (
    Hello,
    Status,
    Verdict,
    greeting,
    names,
    read_hello,
    status_line,
    verdict_line,
)
from ddplaunch.launch.topology import endpoint

_TICK_S = 1.0
_SPREAD_S = 0.2  # with many nodes, telling each of every other one would be most of the work
Show = Callable[[Status], None]
Compare = Callable[[Mapping[int, Hello], Mapping[int, tuple[float, float]]], tuple[Finding, ...]]


@dataclass(frozen=True)
class Call:
    """What is asked for: ``nodes`` nodes at ``address``:``port`` within ``timeout_s``.

    ``known`` are the hosts of node ranks where somebody said them beforehand, as Slurm does.
    """

    nodes: int
    address: str
    port: int
    timeout_s: float
    known: Mapping[int, str]

    @property
    def place(self) -> str:
        """Address and port as one word."""
        return endpoint(self.address, self.port)


def hold(call: Call, me: Hello, rendezvous_id: str, compare: Compare, show: Show) -> Verdict:
    """Call the roll on node 0 and return the verdict, which all others got too.

    ``compare`` judges the nodes once all are in, with how far each clock is ahead. Raises OSError where the port
    cannot be had. Whatever ends this early (a signal) is told to the nodes that wait.
    """
    with Door(call.port, greeting()) as door:
        roll = _Roll(call, me, door, show)
        try:
            verdict = roll.wait()
            if verdict is None:
                found = compare(roll.joined, roll.clocks)
                go = not any(each.severity is Severity.ERROR for each in found)
                verdict = Verdict(go, found, f"{rendezvous_id}-{os.urandom(4).hex()}" if go else None)
        except BaseException as problem:
            cause = "was interrupted" if isinstance(problem, (KeyboardInterrupt, SystemExit)) else "failed"
            last = verdict_line(Verdict(False, (rules.ended_by(me.host, cause),)))
            door.close_after(last, patience_s=0.3)  # somebody pressed Ctrl-C
            raise
        door.close_after(verdict_line(verdict))
        return verdict


class _Roll:
    """Who came so far."""

    def __init__(self, call: Call, me: Hello, door: Door, show: Show) -> None:
        self.joined: dict[int, Hello] = {0: me}
        self.clocks: dict[int, tuple[float, float]] = {}
        self._call, self._door, self._show = call, door, show
        self._started = time.monotonic()
        self._of: dict[Caller, Hello] = {}
        self._hosts = dict(call.known)
        self._note: str | None = None
        self._news = False
        self._spread_s = 0.0

    def wait(self) -> Verdict | None:
        """Return None once all are in, or the verdict that refuses them."""
        while len(self.joined) < self._call.nodes:
            left = self._call.timeout_s - self._waited_s()
            if left <= 0:
                missing = rules.nodes_missing(self._call.nodes, self._missing(), self._waited_s(), self._call.place)
                return Verdict(False, (missing,))
            self._show(self._status())
            self._spread()
            for caller, line in self._door.lines(min(left, _SPREAD_S if self._news else _TICK_S)):
                problem = self._heard(caller, line)
                if problem is not None:
                    return Verdict(False, (problem,))
        self._show(self._status())
        return None

    def _heard(self, caller: Caller, line: bytes | None) -> Finding | None:
        if line is None:
            self._left(caller)
            return None
        hello = None if caller.known else read_hello(line)
        if hello is None:
            if not caller.known:
                self._door.drop(caller)  # a stranger
            return None
        caller.known = True
        problem = rules.at_the_door(self.joined, hello)
        if problem is None:
            self._enter(caller, hello)
        return problem

    def _enter(self, caller: Caller, hello: Hello) -> None:
        for other, known in list(self._of.items()):
            if known.node_rank == hello.node_rank:  # the rules found that the same host started it again
                other.say(verdict_line(Verdict(False, (rules.replaced(hello.host, hello.pid),))))
                del self._of[other]
        now = time.time()
        self._of[caller] = hello
        self.joined[hello.node_rank] = hello
        self._hosts[hello.node_rank] = hello.host
        self.clocks[hello.node_rank] = (hello.clock_s - (caller.greeted_s + now) / 2, (now - caller.greeted_s) / 2)
        self._note = None
        self._news = True

    def _left(self, caller: Caller) -> None:
        hello = self._of.pop(caller, None)
        if hello is not None:
            del self.joined[hello.node_rank]
            self._note = f"{hello.name} went away"
            self._news = True

    def _spread(self) -> None:
        if not self._news or time.monotonic() - self._spread_s < _SPREAD_S:
            return
        self._news, self._spread_s = False, time.monotonic()
        line = status_line(self._status())
        for caller in self._of:
            caller.say(line)

    def _missing(self) -> tuple[str, ...]:
        absent = (rank for rank in range(self._call.nodes) if rank not in self.joined)
        return names(absent, self._hosts)

    def _status(self) -> Status:
        return Status(self._call.nodes, self._missing(), self._waited_s(), self._note, len(self.joined))

    def _waited_s(self) -> float:
        return time.monotonic() - self._started
