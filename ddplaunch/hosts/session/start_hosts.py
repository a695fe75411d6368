"""Starts one program on every host and watches them to their end; when one fails or is lost, it ends all of them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from ddplaunch.hosts.session.frames import SILENCE_S, Kind, unpack
from ddplaunch.hosts.session.links import Event, Link, Links
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import listed

_CLOSED_S = 0.5  # from the end of ssh's output to its own
_STILL_S = 10.0  # hosts end what they run after 15 s without a beat; one comes in 2 s, later on a busy machine
_RECENT_S = 60.0


_SETTLE_S = 1.0  # the others' own failures, which often are consequences, come to their own end first
_KILLED_S = 20.0  # from SIGKILL to the end of everything on a host
_RECORD_S = 60.0  # how long the records of all hosts may take
_TURN_S = 0.2
_QUIET_S = 2.0  # after Ctrl-C, before it is said what is waited for


@dataclass(frozen=True)
class HostEnd:
    """How the program ended on one host. ``lost`` says why that is not known, None if the host told.

    ``told`` is the signal with which the launcher had asked it to end, None for none. ``heard_s`` is when it was last
    heard, an epoch. ``still_s`` is how long this launcher itself had stood still before the host was lost, 0 if it had
    not.
    """

    node: int
    name: str
    status: int | None
    lost: str | None = None
    told: int | None = None
    heard_s: float = 0.0
    recorded: bool = False
    still_s: float = 0.0


class LaunchOnHosts:
    """The launch on all hosts; ``interrupted`` is the first signal that ended it from here."""

    def __init__(
        self,
        links: Links,
        hosts: Sequence[Link],
        show: Callable[[int, Literal["out", "err"], bytes], None],
        keep: Callable[[int, bytes], None],
        grace_s: float,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``show`` gets the output of a node, ``keep`` the pieces of its record, ``say`` what this launcher says."""
        self._links, self._show, self._keep, self._grace_s, self._say = links, show, keep, grace_s, say
        self._nodes = [_Node(node, link) for node, link in enumerate(hosts)]
        self._by_link = {node.link: node for node in self._nodes}
        self._end_at: float | None = None  # when the others are told to end, because of one
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._say_at: float | None = None
        self._record_until: float | None = None
        self._signals: list[int] = []
        self._standstill = Standstill()
        self.interrupted: int | None = None

    def run(self, orders: Sequence[dict[str, Any]]) -> tuple[HostEnd, ...]:
        """Start every host's order, and return when each host has ended or is lost."""
        with self._handling():
            for node, order in zip(self._nodes, orders, strict=True):
                node.link.launch(order)
            while not all(node.done for node in self._nodes):
                arrived = self._links.wait(_TURN_S)
                self._standstill.look()
                for event in arrived:
                    self._take(event)
                self._heed_signals()
                self._keep_time(time.monotonic())
        return tuple(node.end() for node in self._nodes)

    def _take(self, event: Event) -> None:
        node = self._by_link.get(event.link)
        if node is None or node.done:
            return
        node.heard_wall_s = time.time()
        if event.kind is None:
            self._session_over(node)
        elif event.kind in (Kind.OUT, Kind.ERR):
            self._show(node.rank, "out" if event.kind is Kind.OUT else "err", event.body)
        elif event.kind is Kind.ENDED:
            node.status = int(unpack(event.body)["status"])
            if node.status != 0:
                self._end_others_in(_SETTLE_S)
        elif event.kind is Kind.RECORD:
            if event.body:
                self._keep(node.rank, event.body)
            else:
                node.recorded = True
                self._leave(node)

    def _leave(self, node: _Node) -> None:
        node.link.send(Kind.LEAVE)
        self._links.close(node.link)

    def _session_over(self, node: _Node, why: str | None = None) -> None:
        if node.status is None:
            node.lose(why or node.why_over(), self._standstill.recent_s())
            self._end_others_in(0.0)
        node.recorded = True
        self._links.close(node.link)

    def _end_others_in(self, delay_s: float) -> None:
        at = time.monotonic() + delay_s
        self._end_at = at if self._end_at is None else min(self._end_at, at)

    def _keep_time(self, now: float) -> None:
        """Do what is due."""
        for link in self._links.keep_alive([node.link for node in self._nodes if not node.done]):
            self._session_over(self._by_link[link], f"nothing was heard of it for {SILENCE_S:.0f} s")
            self._end_others_in(0.0)
        if self._end_at is not None and now >= self._end_at:
            self._end_at = None
            self._tell(signal.SIGTERM)
        if self._say_at is not None and now >= self._say_at:
            self._say_at = None
            self._say_what_is_waited_for()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._kill()
        self._bound_waiting(now)

    def _say_what_is_waited_for(self) -> None:
        left = [node.link.name for node in self._nodes if not node.ended]
        if left and self._kill_at is not None:
            again = "; Ctrl-C again ends them at once" if self.interrupted == signal.SIGINT else ""
            self._say(f"the ranks on {listed(left)} get {self._grace_s:.0f} s to end{again}")

    def _bound_waiting(self, now: float) -> None:
        if self._give_up_at is not None and now >= self._give_up_at:
            for node in self._nodes:
                if not node.ended:
                    node.lose(f"it did not end within {_KILLED_S:.0f} s after SIGKILL")
                    self._links.close(node.link)
        if self._record_until is None and all(node.ended for node in self._nodes):
            self._record_until = now + _RECORD_S
        if self._record_until is not None and now >= self._record_until:
            for node in self._nodes:
                if not node.done:
                    node.recorded = True
                    self._leave(node)

    def _tell(self, number: int) -> None:
        """Ask every host that still runs to end; SIGKILL follows when the grace is over."""
        self._kill_at = self._kill_at or time.monotonic() + self._grace_s + 5.0
        for node in self._nodes:
            if not node.ended and node.told is None:
                node.told = number
                node.link.send(Kind.SIGNAL, {"signal": number})

    def _kill(self) -> None:
        self._give_up_at = self._give_up_at or time.monotonic() + _KILLED_S
        for node in self._nodes:
            if not node.ended:
                node.told = signal.SIGKILL
                node.link.send(Kind.SIGNAL, {"kill": True})

    def _heed_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if number == signal.SIGWINCH:
                size = terminal_size()
                for node in self._nodes:
                    if size is not None:
                        node.link.send(Kind.SIZE, size)
            elif self.interrupted is None:
                self._say("")  # a terminal shows ^C where the cursor was
                self.interrupted = number
                self._say_at = time.monotonic() + _QUIET_S
                self._tell(number)
            elif number == signal.SIGINT:
                self._kill()

    @contextlib.contextmanager
    def _handling(self) -> Iterator[None]:
        """Take the signals that end or resize a launch, but those that `nohup` or a shell without job control ignores.

        Ctrl-Z is ignored: a stopped launcher looks like a dead one.
        """
        wanted = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)
        numbers = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, lambda number, _: self._signals.append(number)) for number in numbers}
        before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        reading, writing = os.pipe()
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)
        woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            self._links.watch(reading)
            yield
        finally:
            signal.set_wakeup_fd(woken)
            self._links.unwatch(reading)
            os.close(reading)
            os.close(writing)
            for number, handler in before.items():
                signal.signal(number, handler)


class _Node:
    """What is known of one host, node ``rank``: ``status`` is how its program ended, ``lost`` why that is not known."""

    def __init__(self, rank: int, link: Link) -> None:
        self.rank, self.link = rank, link
        self.status: int | None = None
        self.lost: str | None = None
        self.still_s = 0.0
        self.told: int | None = None
        self.recorded = False
        self.heard_wall_s = time.time()

    @property
    def ended(self) -> bool:
        """Whether nothing runs there any more, as far as can be known."""
        return self.status is not None or self.lost is not None

    @property
    def done(self) -> bool:
        """Whether nothing more is to come from there."""
        return self.lost is not None or (self.status is not None and self.recorded)

    def end(self) -> HostEnd:
        """Return what is known at last."""
        name, wall_s = self.link.name, self.heard_wall_s
        return HostEnd(self.rank, name, self.status, self.lost, self.told, wall_s, self.recorded, self.still_s)

    def lose(self, reason: str, still_s: float = 0.0) -> None:
        """Note why its end will not be known; ``still_s`` is how long the launcher had stood still."""
        self.lost, self.still_s = reason, still_s

    def why_over(self) -> str:
        """Return as a clause why the session is over: what ssh said last, else how ssh ended."""
        said = self.link.said.decode("utf-8", "replace").strip().splitlines()
        status = self.link.reap(_CLOSED_S)
        if status is not None and status < 0:
            return f"the ssh to it was killed by {signal.Signals(-status).name}"
        if said:
            return said[-1].strip().rstrip(".")
        return "its session ended without a word, as when ddplaunch there is killed"


class Standstill:
    """Notices that this process, or all of this machine, did nothing for a while: stopped, or asleep."""

    def __init__(self) -> None:
        """Begin now."""
        self._seen_s = _awake_s()
        self._ended_s, self._lasted_s = 0.0, 0.0

    def look(self) -> None:
        """Call this several times a second."""
        now = _awake_s()
        if now - self._seen_s > _STILL_S:
            self._ended_s, self._lasted_s = now, now - self._seen_s
        self._seen_s = now

    def recent_s(self) -> float:
        """Return how long the last one was, in seconds; 0 where there was none within the last minute."""
        return self._lasted_s if self._lasted_s and _awake_s() - self._ended_s < _RECENT_S else 0.0


def _awake_s() -> float:
    """Return a clock in seconds that goes on while the machine sleeps: clock_gettime(2)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def terminal_size() -> dict[str, int] | None:
    """Return rows and columns of this terminal, None where there is none."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(descriptor)
            return {"rows": size.lines, "columns": size.columns}
    return None
