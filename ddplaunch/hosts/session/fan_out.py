"""Begins sessions with many hosts, a window of them at a time, and waits for the greeting of each.

sshd drops connections that have not logged in yet when there are many of them (``MaxStartups``, 10:30:100 by default:
https://man.openbsd.org/sshd_config#MaxStartups); a jump host is the first to do so. A drop says nothing against the
host, only that fewer sessions should begin at once: the window halves, then grows by one for each window of sessions
that came through, as TCP's does (https://www.rfc-editor.org/rfc/rfc5681#section-3.1), and the host is tried again.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence

from ddplaunch.hosts.session.links import Event, Link, Links
from ddplaunch.hosts.ssh import failure, was_dropped
from ddplaunch.values.finding import Finding, RefusedError, error

TRIES = 8
_PATIENCE_S = 0.5  # for what a shell still prints after ssh's connection ended
_SHRINK_EVERY_S = 0.5  # the drops of one burst count as one
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.25, 2.0
_WINDOW_LEAST, _WINDOW_PER_CPU = 64, 32
_SLOT_S = 2.0  # a host that is silent for so long may be dead, and stops taking a place in the window


class Reached:
    """One host and the result for it: greeted, or ssh's status (None while ssh still runs)."""

    link: Link  # of the last try

    def __init__(self, index: int, name: str) -> None:
        """Begin without any try."""
        self.index, self.name = index, name
        self.status: int | None = None
        self.tries = 0
        self.connecting = self.settled = False
        self.greeted = False  # ddplaunch runs at the other end and waits for a question
        self.next_try_s, self.tried_s, self.until_s = 0.0, 0.0, math.inf

    @property
    def said(self) -> str:
        """The text that ssh and the shell's start-up files wrote before the first message."""
        return (self.link.before + b"\n" + self.link.said).decode("utf-8", "replace")

    def failure(self, python: str) -> Finding:
        """Return the finding for this host's missing greeting or answer; ``python`` is its interpreter."""
        if self.greeted and self.link.over:
            self.status = self.link.reap(_PATIENCE_S)
        return failure(self.name, python, self.status, self.said, self.tries)


def window_of(cpus: int) -> int:
    """Return how many sessions begin together on a machine with ``cpus``: each key exchange takes CPU time here too."""
    return max(_WINDOW_LEAST, _WINDOW_PER_CPU * cpus)


def delay_s(tries: int, index: int) -> float:
    """Return the seconds until a host's next try: longer after each, and spread over hosts by ``index``."""
    longest = min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** (tries - 1))
    return longest * (0.5 + (index * 0.618034 + tries * 0.414214) % 1.0 / 2)


class FanOut:
    """Reaches hosts; each has ``deadline_s`` seconds from its own first try."""

    def __init__(self, links: Links, start: Callable[[str], Link], deadline_s: float, most: int = 0) -> None:
        """``start`` opens a session; ``most`` may begin at once, by default as many as suit this machine."""
        self._links, self._start, self._deadline_s = links, start, deadline_s
        self._most = most or window_of(len(os.sched_getaffinity(0)))
        self._window, self._shrunk_s = float(self._most), -math.inf
        self._by_link: dict[Link, Reached] = {}
        self._waiting: list[Reached] = []

    def reach(self, names: Sequence[str]) -> tuple[Reached, ...]:
        """Return the result for each host, in the order of ``names``. Raises OSError where there is no ssh, and
        RefusedError where this machine cannot start more sessions.
        """
        hosts = [Reached(index, name) for index, name in enumerate(names)]
        self._waiting = list(hosts)
        while self._waiting:
            self._begin(time.monotonic())
            for event in self._links.wait(self._wait_s(time.monotonic())):
                self._take(event)
            self._keep_time(time.monotonic())
            self._waiting = [host for host in self._waiting if not host.settled]
        return tuple(hosts)

    @property
    def _free(self) -> int:
        """How many more sessions may wait for their host's first word."""
        return max(0, max(1, int(self._window)) - sum(host.connecting for host in self._waiting))

    def _begin(self, now: float) -> None:
        due = [host for host in self._waiting if host.next_try_s <= now]
        for host in due[: self._free]:
            try:
                host.link = self._start(host.name)
            except FileNotFoundError:
                raise
            except OSError as problem:
                raise RefusedError(_too_many(len(self._by_link), problem)) from problem
            host.tried_s = time.monotonic()  # starting many takes a while
            if not host.tries:
                host.until_s = host.tried_s + self._deadline_s
            host.tries, host.next_try_s, host.connecting = host.tries + 1, math.inf, True
            self._by_link[host.link] = host

    def _wait_s(self, now: float) -> float:
        """Return the seconds until something is due."""
        times = [host.until_s for host in self._waiting]
        times += [host.tried_s + _SLOT_S for host in self._waiting if host.connecting]
        times += [host.next_try_s for host in self._waiting] if self._free else []
        return max(0.0, min(times) - now)

    def _take(self, event: Event) -> None:
        host = self._by_link.get(event.link)
        if event.kind == "end" and host is not None and event.link is host.link:
            self._session_over(host)

    def _session_over(self, host: Reached) -> None:
        host.connecting = False
        status = host.link.reap(_PATIENCE_S)
        now = time.monotonic()
        if not host.link.greeted and was_dropped(status, host.said):
            self._dropped(now)
            next_try_s = now + delay_s(host.tries, host.index)
            if host.tries < TRIES and next_try_s < host.until_s:
                self._links.close(host.link)
                host.next_try_s = next_try_s
                return
        self._settle(host, status)

    def _settle(self, host: Reached, status: int | None, *, greeted: bool = False) -> None:
        host.status, host.greeted, host.settled, host.connecting = status, greeted, True, False

    def _dropped(self, now: float) -> None:
        """Halve the window, once for all drops of a burst."""
        if now - self._shrunk_s >= _SHRINK_EVERY_S:
            self._window, self._shrunk_s = max(1.0, self._window / 2), now

    def _joined(self, host: Reached) -> None:
        """Let the window grow again."""
        if host.connecting:
            host.connecting = False
            self._window = min(self._most, self._window + 1 / self._window)

    def _keep_time(self, now: float) -> None:
        for host in self._waiting:
            if host.tries and host.link.greeted and not host.settled:
                self._joined(host)
                self._settle(host, None, greeted=True)
            if now - host.tried_s > _SLOT_S:
                host.connecting = False
            if not host.settled and host.until_s <= now:
                self._settle(host, None)


def _too_many(sessions: int, problem: OSError) -> Finding:
    return error(
        "hosts-too-many",
        f"after {sessions} sessions this machine starts no more: {problem.strerror}",
        why="each host takes an ssh client and four open files of this machine for as long as it runs",
        fix="`ulimit -Hu` and `ulimit -Hn` show the limits; raise them by `nproc` and `nofile` in "
        "`/etc/security/limits.conf`, or launch inside a Slurm allocation, where one `srun` reaches all hosts",
    )
