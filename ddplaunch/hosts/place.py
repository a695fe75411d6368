"""One host while its part of a launch runs, and whether the launcher itself stood still; refuses to decide anything."""

from __future__ import annotations

import signal
import time

from ddplaunch.hosts.links import Link

_CLOSED_S = 0.5  # from the end of ssh's output to its own
_STILL_S = 10.0  # hosts end what they run after 15 s without a beat; one comes in 2 s, later on a busy machine
_RECENT_S = 60.0


class Place:
    """What is known of one host: ``status`` is how its program ended, ``lost`` why nobody knows."""

    def __init__(self, node: int, link: Link) -> None:
        """Nothing is known yet."""
        self.node, self.link = node, link
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

    def lose(self, reason: str, still_s: float = 0.0) -> None:
        """Note why nobody will know how it ended there; ``still_s`` is how long the launcher had stood still."""
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
