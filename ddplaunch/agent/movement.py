"""What ranks use over a while, and which of them stand still; pure, refuses to look at /proc or at the clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from ddplaunch.frozen import dataclass

#: Below this share of a core a rank computes nothing: watchdog threads, polls with pauses and monitors stay below it.
IDLE_SHARE = 0.05
#: Below this rate it reads and writes nothing; gloo and NCCL do not count here, they wait in sockets without bytes.
IDLE_BYTES_PER_S = 32 << 10


@dataclass(frozen=True)
class Usage:
    """What each rank and what it started has used until ``at_s`` (time.monotonic()): CPU seconds, and bytes."""

    at_s: float
    cpu_s: Mapping[int, float]
    io_bytes: Mapping[int, int]


class Movement:
    """The samples of the last ``window_s`` seconds, at most some dozens."""

    def __init__(self, window_s: float) -> None:
        """Know nothing yet."""
        self.window_s = window_s
        self._samples: deque[Usage] = deque()

    @property
    def every_s(self) -> float:
        """How often to take a sample."""
        return min(15.0, max(0.1, self.window_s / 20))

    def add(self, usage: Usage) -> None:
        """Take a sample; ranks that came or went since make all earlier ones worthless."""
        if self._samples and self._samples[-1].cpu_s.keys() != usage.cpu_s.keys():
            self._samples.clear()
        self._samples.append(usage)
        while len(self._samples) > 2 and self._samples[1].at_s <= usage.at_s - self.window_s:
            self._samples.popleft()

    def shares(self) -> dict[int, float] | None:
        """Return how much of a core each rank used over the window, None before the window is full.

        One that reads or writes a lot counts as using a core.
        """
        if not self._samples:
            return None
        first, last = self._samples[0], self._samples[-1]
        seconds = last.at_s - first.at_s
        if seconds < self.window_s * 0.95:
            return None
        shares = {}
        for rank, used_s in last.cpu_s.items():
            share = max(0.0, used_s - first.cpu_s[rank]) / seconds
            rate = (last.io_bytes.get(rank, 0) - first.io_bytes.get(rank, 0)) / seconds
            shares[rank] = max(share, 1.0) if rate > IDLE_BYTES_PER_S else share
        return shares


def idle(shares: Mapping[int, float]) -> frozenset[int]:
    """Return the ranks that stand still."""
    return frozenset(rank for rank, share in shares.items() if share < IDLE_SHARE)
