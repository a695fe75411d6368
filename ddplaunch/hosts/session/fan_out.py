"""Begins sessions with many hosts, a window of them at a time, and returns each one's first answer.

sshd drops connections that have not logged in yet when there are many (``MaxStartups``, 10:30:100 by default:
https://man.openbsd.org/sshd_config#MaxStartups), which a jump host sees first. A drop is no verdict on the host, but a
sign to begin fewer at once: the window halves, then grows by one for each window of sessions that came through, as
TCP's does (https://www.rfc-editor.org/rfc/rfc5681#section-3.1), and the host is tried again.
"""

from __future__ import annotations

import heapq
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ddplaunch.hosts.json_lines import message_in
from ddplaunch.hosts.session.links import Event, Link, Links
from ddplaunch.hosts.ssh import was_dropped
from ddplaunch.values.finding import RefusedError, error

TRIES = 8
_PATIENCE_S = 0.5  # what a shell still wants to say after ssh's connection ended
_SHRINK_EVERY_S = 0.5  # the drops of one burst say the same
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.25, 2.0
_WINDOW_LEAST, _WINDOW_PER_CPU = 64, 32
_SLOT_S = 2.0  # a host that has not said a word by then may be dead, and holds up the others no longer


class Reached:
    """One host while it is asked, and what became of it: its answer, or None and ssh's status (None: still open)."""

    link: Link  # that of the last try

    def __init__(self, index: int, name: str) -> None:
        """Nothing has been asked."""
        self.index, self.name = index, name
        self.answer: dict[str, Any] | None = None
        self.status: int | None = None
        self.tries = 0
        self.settled = False
        self.tried_s = self.until_s = 0.0

    @property
    def said(self) -> str:
        """The text that ssh and the shell's start-up files wrote before the first message."""
        return (self.link.before + b"\n" + self.link.said).decode("utf-8", "replace")


class Window:
    """How many sessions may be under way to the first word of their host."""

    def __init__(self, most: int) -> None:
        """Begin with ``most``."""
        self._most, self._limit, self._shrunk_s = most, float(most), float("-inf")

    @property
    def limit(self) -> int:
        """The number now, 1 at least."""
        return max(1, int(self._limit))

    def dropped(self, now_s: float) -> None:
        """Halve it, once for all drops of a burst."""
        if now_s - self._shrunk_s >= _SHRINK_EVERY_S:
            self._limit, self._shrunk_s = max(1.0, self._limit / 2), now_s

    def joined(self) -> None:
        """Let it grow again."""
        self._limit = min(self._most, self._limit + 1 / self._limit)


def window_of(cpus: int) -> int:
    """Return how many sessions begin together on a machine with ``cpus``: a key exchange is work for this side too."""
    return max(_WINDOW_LEAST, _WINDOW_PER_CPU * cpus)


def delay_s(tries: int, index: int) -> float:
    """Return the seconds until a host's next try: longer each time, and other ones for each ``index`` of a host."""
    longest = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** (tries - 1))
    return longest * (0.5 + (index * 0.618034 + tries * 0.414214) % 1.0 / 2)


class FanOut:
    """Asks each host one thing, and each has ``deadline_s`` seconds from its own first try."""

    def __init__(
        self, links: Links, start: Callable[[str], Link], order: dict[str, Any], deadline_s: float, most: int = 0
    ) -> None:
        """``start`` opens a session; ``most`` at once, by default what suits this machine."""
        self._links, self._start, self._order, self._deadline_s = links, start, order, deadline_s
        self._window = Window(most or window_of(len(os.sched_getaffinity(0))))
        self._connecting: set[Reached] = set()
        self._by_link: dict[Link, Reached] = {}
        self._again: list[tuple[float, int, Reached]] = []  # a heap, by when it is due
        self._deadlines: deque[Reached] = deque()  # in order, since all have the same time
        self._left = 0

    def ask(self, names: Sequence[str]) -> tuple[Reached, ...]:
        """Return what became of each host, in their order. Raises OSError where there is no ssh, and RefusedError
        where this machine lets no more of them be started.
        """
        hosts = [Reached(index, name) for index, name in enumerate(names)]
        fresh = deque(hosts)
        self._left = len(hosts)
        while self._left:
            now = time.monotonic()
            self._begin(fresh, now)
            for event in self._links.wait(self._wait_s(fresh, now)):
                self._take(event)
            self._count_joined(time.monotonic())
            self._end_overdue(time.monotonic())
        return tuple(hosts)

    def _begin(self, fresh: deque[Reached], now: float) -> None:
        while len(self._connecting) < self._window.limit:
            if self._again and self._again[0][0] <= now:
                host = heapq.heappop(self._again)[2]
                if host.settled:
                    continue
            elif fresh:
                host = fresh.popleft()
                host.until_s = time.monotonic() + self._deadline_s
                self._deadlines.append(host)
            else:
                return
            self._open(host)

    def _open(self, host: Reached) -> None:
        try:
            host.link = self._start(host.name)
        except FileNotFoundError:
            raise
        except OSError as problem:
            refused = error(
                "hosts-too-many",
                f"after {len(self._by_link)} sessions this machine starts no more: {problem.strerror}",
                why="each host takes an ssh client and four open files of this machine for as long as it runs",
                fix="`ulimit -Hu` and `ulimit -Hn` show the limits; raise them by `nproc` and `nofile` in "
                "`/etc/security/limits.conf`, or launch inside a Slurm allocation, where one `srun` reaches all hosts",
            )
            raise RefusedError(refused) from problem
        host.tries, host.tried_s = host.tries + 1, time.monotonic()
        self._by_link[host.link] = host
        self._connecting.add(host)
        host.link.send(self._order)

    def _wait_s(self, fresh: deque[Reached], now: float) -> float:
        """Return how long nothing is due."""
        times = [self._deadlines[0].until_s] if self._deadlines else []
        if len(self._connecting) < self._window.limit:
            if fresh:
                return 0.0
            times += [at for at, _, _ in self._again[:1]]
        elif fresh or self._again:
            times.append(min(host.tried_s for host in self._connecting) + _SLOT_S)
        return max(0.0, min(times, default=now + self._deadline_s) - now)

    def _take(self, event: Event) -> None:
        host = self._by_link.get(event.link)
        if host is None or host.settled or event.link is not host.link:
            return
        if event.kind == "message":
            self._joined(host)
            self._settle(host, message_in(event.body), None)
        elif event.kind == "end":
            self._session_over(host, event.link)

    def _session_over(self, host: Reached, link: Link) -> None:
        self._connecting.discard(host)
        status = link.reap(_PATIENCE_S)
        now = time.monotonic()
        if not link.greeted and was_dropped(status, host.said):
            self._window.dropped(now)
            at = now + delay_s(host.tries, host.index)
            if host.tries < TRIES and at < host.until_s:
                self._links.close(link)
                heapq.heappush(self._again, (at, host.index, host))
                return
        self._settle(host, None, status)

    def _settle(self, host: Reached, answer: dict[str, Any] | None, status: int | None) -> None:
        host.answer, host.status, host.settled = answer, status, True
        self._connecting.discard(host)
        self._left -= 1

    def _count_joined(self, now: float) -> None:
        for host in tuple(self._connecting):
            if host.link.greeted:
                self._joined(host)
            elif now - host.tried_s > _SLOT_S:
                self._connecting.discard(host)

    def _joined(self, host: Reached) -> None:
        if host in self._connecting:
            self._connecting.discard(host)
            self._window.joined()

    def _end_overdue(self, now: float) -> None:
        while self._deadlines and (self._deadlines[0].settled or self._deadlines[0].until_s <= now):
            host = self._deadlines.popleft()
            if not host.settled:
                self._settle(host, None, None)
