"""Begins sessions with many hosts, a window of them at a time, and waits for the greeting of each.

sshd drops connections that have not logged in yet when there are many of them (``MaxStartups``, 10:30:100 by default:
https://man.openbsd.org/sshd_config#MaxStartups); a jump host is the first to do so. A drop says nothing against the
host, only that fewer sessions should begin at once: the window halves, then grows by one for each window of sessions
that came through, as TCP's does (https://www.rfc-editor.org/rfc/rfc5681#section-3.1), and the host is tried again.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import Callable

from ddplaunch.hosts.session.links import Link, Links
from ddplaunch.hosts.ssh import was_dropped
from ddplaunch.values.finding import Finding, RefusedError, error

TRIES = 8
_SHRINK_EVERY_S = 0.5  # the drops of one burst count as one
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.25, 2.0
_WINDOW_LEAST, _WINDOW_PER_CPU = 64, 32
_SLOT_S = 2.0  # a host that is silent for so long may be dead, and stops taking a place in the window


def window_of(cpus: int) -> int:
    """Return how many sessions begin together on a machine with ``cpus``: each key exchange takes CPU time here too."""
    return max(_WINDOW_LEAST, _WINDOW_PER_CPU * cpus)


def delay_s(tries: int) -> float:
    """Return the seconds until a host's next try: longer after each, and random, so that hosts do not come together."""
    return random.uniform(0.5, 1.0) * min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** (tries - 1))


class FanOut:
    """Reaches hosts; each has ``deadline_s`` seconds from its own first try to its answer."""

    def __init__(self, links: Links, start: Callable[[str], Link], deadline_s: float, most: int = 0) -> None:
        """``start`` opens a session; ``most`` may begin at once, by default as many as suit this machine."""
        self._links, self._start, self._deadline_s = links, start, deadline_s
        self._most = most or window_of(len(os.sched_getaffinity(0)))
        self._window, self._shrunk_s, self._connecting = float(self._most), -math.inf, 0
        self._place = asyncio.Condition()

    @property
    def _free(self) -> int:
        """How many more sessions may begin now."""
        return max(0, max(1, int(self._window)) - self._connecting)

    async def reach(self, name: str) -> Link:
        """Return a host's last session: greeted, ended, or still silent. Others are reached at the same time.

        Raises FileNotFoundError where there is no ssh, RefusedError where this machine cannot start more sessions.
        """
        tries, until_s = 0, math.inf
        while True:
            link = await self._begin(name)
            link.tries = tries = tries + 1
            link.limit_s = self._deadline_s
            link.until_s = until_s = min(until_s, time.monotonic() + self._deadline_s)
            await self._give_up_place(link)
            if await link.begins(until_s) or not was_dropped(link.status, link.stderr_text):
                return link
            now = time.monotonic()
            self._dropped(now)
            pause_s = delay_s(tries)
            if tries == TRIES or now + pause_s >= until_s:
                return link
            link.close()
            await asyncio.sleep(pause_s)

    async def _begin(self, name: str) -> Link:
        """Start a session as soon as there is a place for one."""
        async with self._place:
            await self._place.wait_for(lambda: self._free)
            self._connecting += 1
        try:
            return self._start(name)
        except FileNotFoundError:
            raise
        except OSError as problem:
            raise RefusedError(_too_many(len(self._links.all), problem)) from problem

    async def _give_up_place(self, link: Link) -> None:
        """Let others begin once this host speaks, or was silent for ``_SLOT_S``; the window grows if it greets."""
        if await link.begins(min(link.until_s, time.monotonic() + _SLOT_S)):
            self._window = min(self._most, self._window + 1 / self._window)
        self._connecting -= 1
        async with self._place:
            self._place.notify(2)  # one host makes room for itself, and at times for one more

    def _dropped(self, now: float) -> None:
        """Halve the window, once for all drops of a burst."""
        if now - self._shrunk_s >= _SHRINK_EVERY_S:
            self._window, self._shrunk_s = max(1.0, self._window / 2), now


def _too_many(sessions: int, problem: OSError) -> Finding:
    return error(
        "hosts-too-many",
        f"after {sessions} sessions this machine starts no more: {problem.strerror}",
        why="each host takes an ssh client and four open files of this machine for as long as it runs",
        fix="`ulimit -Hu` and `ulimit -Hn` show the limits; raise them by `nproc` and `nofile` in "
        "`/etc/security/limits.conf`, or launch inside a Slurm allocation, where one `srun` reaches all hosts",
    )
