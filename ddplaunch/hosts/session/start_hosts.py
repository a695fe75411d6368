"""Starts one program on every host and waits until all have ended; when one fails or is lost, it ends the others."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from ddplaunch.hosts.json_lines import OF_SSH
from ddplaunch.hosts.session.links import Link, Links
from ddplaunch.hosts.ssh import why_lost
from ddplaunch.records.first_failure import steady_s
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import listed

_SETTLE_S = 1.0  # lets the others, which often fail as a consequence, end by themselves
_KILLED_S = 20.0  # from SIGKILL to the end of everything on a host
_TURN_S = 0.2
_QUIET_S = 2.0  # from Ctrl-C to the message about which hosts are still ending


@dataclass(frozen=True)
class HostEnd:
    """How the program ended on one host. ``lost`` explains why that is not known, None if the host reported it.

    ``told`` is the signal that the launcher sent to end it, None for none. ``heard_s`` is when the host was last heard,
    by ``steady_s``, ``silence`` from when to when nothing was heard of it for the last time. ``said`` is the end of the
    host's stderr, 64 KiB at most.
    """

    node: int
    name: str
    status: int | None
    lost: str | None = None
    told: int | None = None
    heard_s: float = 0.0
    silence: tuple[float, float] = 0.0, 0.0
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
        host_timeout_s: float,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``show`` gets the output of a node, ``say`` the launcher's own messages.

        A host of which nothing is heard for ``host_timeout_s`` is lost.
        """
        self._links, self._show, self._grace_s, self._say = links, show, grace_s, say
        self._host_timeout_s = host_timeout_s
        self._known = {link: HostEnd(node, link.name, None, heard_s=steady_s()) for node, link in enumerate(hosts)}
        self._signals: list[int] = []
        self.interrupted: int | None = None

    def run(self, orders: Sequence[dict[str, Any]]) -> tuple[HostEnd, ...]:
        """Send each host its order, and return when all hosts have ended or are lost; call it within ``handling``."""
        return self._links.run(self._run(orders))

    async def _run(self, orders: Sequence[dict[str, Any]]) -> tuple[HostEnd, ...]:
        self._later = asyncio.get_running_loop().call_later
        for link, order in zip(self._known, orders, strict=True):
            link.hand_over("launch", self._take, **order, host_timeout_s=self._host_timeout_s)
        while self._running():
            await self._links.arrival(_TURN_S)
            for link in self._links.keep_alive(self._running(), self._host_timeout_s):
                self._lose(link, f"nothing was heard of it for {self._host_timeout_s:.0f} s (`--host-timeout`)")
            while self._signals:
                self._heed(self._signals.pop(0))
        return tuple(self._known.values())

    def _take(self, link: Link, kind: Literal["out", "err", "end"], data: bytes) -> None:
        """Show output. At the end of a session ssh's status is the program's, or the host is lost."""
        if kind != "end":
            self._show(self._known[link].node, kind, data)
        elif link.status is None or not 0 <= link.status < OF_SSH:
            self._lose(link, why_lost(link.status, link.stderr_text))
        else:
            self._end(link, status=link.status)
            if link.status:
                self._later(_SETTLE_S, self._tell, signal.SIGTERM)

    def _lose(self, link: Link, why: str) -> None:
        self._end(link, lost=why)
        self._later(0.0, self._tell, signal.SIGTERM)  # not before all hosts have their order

    def _end(self, link: Link, **how: Any) -> None:
        heard_s = steady_s() - (time.monotonic() - link.heard_s)
        self._known[link] = replace(
            self._known[link], said=link.stderr_end, heard_s=heard_s, silence=link.silence, **how
        )
        link.close()

    def _running(self) -> list[Link]:
        return [link for link, host_end in self._known.items() if not host_end.ended]

    def _tell(self, number: int) -> None:
        """Send a signal to every host that still runs and got none; SIGKILL follows when the grace is over."""
        self._later(self._grace_s + 5.0, self._kill)
        for link in self._running():
            if self._known[link].told is None:
                self._send(link, number)

    def _kill(self) -> None:
        self._later(_KILLED_S, self._give_up)
        for link in self._running():
            self._send(link, signal.SIGKILL)

    def _send(self, link: Link, number: int) -> None:
        self._known[link] = replace(self._known[link], told=number)
        link.send({"signal": number})

    def _give_up(self) -> None:
        for link in self._running():
            self._end(link, lost=f"it did not end within {_KILLED_S:.0f} s after SIGKILL")

    def _heed(self, number: int) -> None:
        """End the run by the first signal, and at once by Ctrl-C after it."""
        if self.interrupted is None:
            self._say("")  # leave the line in which the terminal shows ^C
            self.interrupted = number
            self._later(_QUIET_S, self._say_what_is_waited_for)
            self._tell(number)
        elif number == signal.SIGINT:
            self._kill()

    def _say_what_is_waited_for(self) -> None:
        waited_for = [link.name for link in self._running() if self._known[link].told != signal.SIGKILL]
        if waited_for:
            hint = "; Ctrl-C again ends them at once" if self.interrupted == signal.SIGINT else ""
            self._say(f"the ranks on {listed(waited_for)} get {self._grace_s:.0f} s to end{hint}")

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """Handle the signals that end a launch, except those that `nohup` or a shell without job control ignores.

        Ctrl-Z is ignored: a stopped launcher looks like a dead one.
        """
        with contextlib.ExitStack() as restored:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if (handler := signal.getsignal(number)) is not signal.SIG_IGN:
                    signal.signal(number, lambda number, _: self._signals.append(number))
                    restored.callback(signal.signal, number, handler)
            restored.callback(signal.signal, signal.SIGTSTP, signal.signal(signal.SIGTSTP, signal.SIG_IGN))
            yield
