"""Starts one program on every host and waits until all have ended; when one fails or is lost, it ends the others."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from ddplaunch.hosts.json_lines import OF_SSH, SILENCE_S
from ddplaunch.hosts.session.links import Event, Link, Links
from ddplaunch.hosts.ssh import why_lost
from ddplaunch.records.first_failure import steady_s
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import listed

_CLOSED_S = 0.5  # from the end of ssh's output to the end of ssh
_STILL_S = 55.0  # a beat is due every 2 s, and hosts end what they run after SILENCE_S without one
_RECENT_S = 60.0
_SETTLE_S = 1.0  # lets the others, which often fail as a consequence, end by themselves
_KILLED_S = 20.0  # from SIGKILL to the end of everything on a host
_TURN_S = 0.2
_QUIET_S = 2.0  # from Ctrl-C to the message about which hosts are still ending


@dataclass(frozen=True)
class HostEnd:
    """How the program ended on one host. ``lost`` explains why that is not known, None if the host reported it.

    ``told`` is the signal that the launcher sent to end it, None for none. ``heard_s`` is when the host was last heard,
    by ``steady_s``. ``still_s`` is how long this launcher itself had stood still before the host was lost, else 0.
    ``said`` is the end of the host's stderr, 64 KiB at most.
    """

    node: int
    name: str
    status: int | None
    lost: str | None = None
    told: int | None = None
    heard_s: float = 0.0
    still_s: float = 0.0
    said: bytes = b""

    @property
    def ended(self) -> bool:
        """Whether its program has ended or the host is lost."""
        return self.status is not None or self.lost is not None


class LaunchOnHosts:
    """The launch on all hosts; ``interrupted`` is the first signal to this launcher that ended it."""

    def __init__(
        self,
        links: Links,
        hosts: Sequence[Link],
        show: Callable[[int, Literal["out", "err"], bytes], None],
        grace_s: float,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``show`` gets the output of a node, ``say`` the launcher's own messages."""
        self._links, self._show, self._grace_s, self._say = links, show, grace_s, say
        self._known = {link: HostEnd(node, link.name, None, heard_s=steady_s()) for node, link in enumerate(hosts)}
        self._due: dict[Callable[[], None], float] = {}  # actions, and when each is due by time.monotonic
        self._signals: list[int] = []
        self._standstill = Standstill()
        self.interrupted: int | None = None

    def run(self, orders: Sequence[dict[str, Any]]) -> tuple[HostEnd, ...]:
        """Send each host its order, and return when all hosts have ended or are lost; call it within ``handling``."""
        for link, order in zip(self._known, orders, strict=True):
            link.hand_over("launch", **order)
        while self._running():
            arrived = self._links.wait(_TURN_S)
            self._standstill.look()
            for event in arrived:
                self._take(event)
            self._heed_signals()
            self._keep_time(time.monotonic())
        return tuple(self._known.values())

    def _note(self, link: Link, **news: Any) -> None:
        self._known[link] = replace(self._known[link], **news)

    def _take(self, event: Event) -> None:
        link, host_end = event.link, self._known.get(event.link)
        if host_end is None or host_end.ended:
            return
        if event.kind == "end":
            self._session_over(link)
            return
        if event.kind != "message":
            self._show(host_end.node, event.kind, event.body)

    def _session_over(self, link: Link) -> None:
        """Note how the program ended: ssh's status is the program's, or the host is lost."""
        status = link.reap(_CLOSED_S)
        if status is None or not 0 <= status < OF_SSH:
            self._lose(link, why_lost(status, link.said.decode("utf-8", "replace")))
            return
        self._over(link, status=status)
        if status:
            self._end_others_after(_SETTLE_S)

    def _lose(self, link: Link, why: str) -> None:
        self._over(link, lost=why, still_s=self._standstill.recent_s())
        self._end_others_after(0.0)

    def _over(self, link: Link, **how: Any) -> None:
        heard_s = steady_s() - (time.monotonic() - link.heard_s)
        self._note(link, said=link.said, heard_s=heard_s, **how)
        self._links.close(link)

    def _end_others_after(self, delay_s: float) -> None:
        at = time.monotonic() + delay_s
        self._due[self._end_others] = min(at, self._due.get(self._end_others, at))

    def _end_others(self) -> None:
        self._tell(signal.SIGTERM)

    def _keep_time(self, now: float) -> None:
        """Keep the sessions alive and run the actions that are due."""
        for link in self._links.keep_alive(self._running()):
            self._lose(link, f"nothing was heard of it for {SILENCE_S:.0f} s")
        for action, at in tuple(self._due.items()):
            if now >= at:
                del self._due[action]
                action()

    def _say_what_is_waited_for(self) -> None:
        waited_for = [link.name for link in self._running()]
        if waited_for and self._kill in self._due:
            hint = "; Ctrl-C again ends them at once" if self.interrupted == signal.SIGINT else ""
            self._say(f"the ranks on {listed(waited_for)} get {self._grace_s:.0f} s to end{hint}")

    def _running(self) -> list[Link]:
        return [link for link, host_end in self._known.items() if not host_end.ended]

    def _give_up(self) -> None:
        for link in self._running():
            self._over(link, lost=f"it did not end within {_KILLED_S:.0f} s after SIGKILL")

    def _tell(self, number: int) -> None:
        """Send signal ``number`` to every host that still runs; SIGKILL follows when the grace is over."""
        self._due.setdefault(self._kill, time.monotonic() + self._grace_s + 5.0)
        for link in self._running():
            if self._known[link].told is None:
                self._note(link, told=number)
                link.send({"signal": number})

    def _kill(self) -> None:
        self._due.setdefault(self._give_up, time.monotonic() + _KILLED_S)
        for link in self._running():
            self._note(link, told=signal.SIGKILL)
            link.send({"signal": signal.SIGKILL})

    def _heed_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if self.interrupted is None:
                self._say("")  # leave the line in which the terminal shows ^C
                self.interrupted = number
                self._due[self._say_what_is_waited_for] = time.monotonic() + _QUIET_S
                self._tell(number)
            elif number == signal.SIGINT:
                self._kill()

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """Handle the signals that end a launch, except those that `nohup` or a shell without job control ignores.

        Ctrl-Z is ignored: a stopped launcher looks like a dead one.
        """
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        numbers = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
        handlers = {number: signal.signal(number, lambda number, _: self._signals.append(number)) for number in numbers}
        handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


class Standstill:
    """Notices when this process, or the whole machine, did nothing for a while: stopped, or asleep."""

    def __init__(self) -> None:
        """Begin to watch now."""
        self._seen_s = _awake_s()
        self._ended_s, self._lasted_s = 0.0, 0.0

    def look(self) -> None:
        """Call this several times a second."""
        now = _awake_s()
        if now - self._seen_s > _STILL_S:
            self._ended_s, self._lasted_s = now, now - self._seen_s
        self._seen_s = now

    def recent_s(self) -> float:
        """Return how many seconds the last standstill took; 0 if none ended within the last minute."""
        return self._lasted_s if self._lasted_s and _awake_s() - self._ended_s < _RECENT_S else 0.0


def _awake_s() -> float:
    """Return seconds of a clock that also counts while the machine sleeps: clock_gettime(2)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def terminal_size() -> dict[str, int] | None:
    """Return rows and columns of this terminal, None where there is none."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(descriptor)
            return {"rows": size.lines, "columns": size.columns}
    return None
