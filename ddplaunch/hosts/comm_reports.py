"""What the ranks of one step said, put together to what their group measured; refuses to judge it."""

from __future__ import annotations

import time
from typing import Any

from ddplaunch.checks.comm_groups import Group, Measured
from ddplaunch.checks.comm_words import time_text

_COUNTS = ("segments", "resent", "all_segments", "all_resent")


class Reports:
    """The lines of one group's ranks. ``ended`` are the hosts on which no rank of it is left, or that are lost."""

    def __init__(self, number: int, hosts: tuple[str, ...], ranks: int) -> None:
        """``number`` is the round, ``ranks`` those of all ``hosts``."""
        self._number, self._hosts, self._ranks = number, hosts, ranks
        self._said: dict[int, dict[str, Any]] = {}
        self._lost: dict[str, str] = {}
        self._begun_s = time.monotonic()
        self._ended_s: float | None = None
        self.ended: set[str] = set()

    @property
    def done(self) -> bool:
        """Whether nothing more will be said."""
        return len(self.ended) == len(self._hosts)

    @property
    def waiting_in_vain(self) -> tuple[str, ...]:
        """The hosts whose ranks still wait for one that has failed or is lost."""
        broken = self._lost or any("problem" in each for each in self._said.values())
        return tuple(host for host in self._hosts if host not in self.ended) if broken and self.ended else ()

    def add(self, line: dict[str, Any]) -> None:
        """Note what a rank said; later lines tell more than earlier ones."""
        self._said.setdefault(int(line["rank"]), {}).update(line)

    def end(self, host: str) -> None:
        """Note that all ranks of ``host`` are gone."""
        self.ended.add(host)
        self._ended_s = time.monotonic()

    def lose(self, host: str, reason: str) -> None:
        """Note that ``host`` will say nothing more."""
        self._lost[host] = reason
        self.end(host)

    def group(self, deadline_s: float) -> Group:
        """Return what was measured, or why nothing was."""
        seconds = (self._ended_s or time.monotonic()) - self._begun_s
        said = [self._said.get(rank, {}) for rank in range(self._ranks)]
        counted = {name: sum(int(each.get(name, 0)) for each in said) for name in _COUNTS}
        if all("bandwidth" in each and "problem" not in each for each in said):
            measured = Measured(
                bandwidth=float(said[0]["bandwidth"]),
                size_bytes=int(said[0]["size"]),
                latency_us=max(float(each["latency_us"][0]) for each in said),
                latency_most_us=max(float(each["latency_us"][1]) for each in said),
                segments=counted["segments"],
                resent=counted["resent"],
            )
            return Group(self._hosts, self._number, self._ranks, measured, seconds=seconds)
        segments, again = counted["all_segments"], counted["all_resent"]
        problem = self._problem(said, deadline_s)
        if again:
            problem += f"; TCP sent {again} of {segments} segments again"
        return Group(
            self._hosts, self._number, self._ranks, None, problem, seconds=seconds, segments=segments, resent=again
        )

    def _problem(self, said: list[dict[str, Any]], deadline_s: float) -> str:
        for host, reason in self._lost.items():
            return f"{host} was lost: {reason}"
        problems = [str(each["problem"]) for each in said if "problem" in each]
        # a rank that could not connect knows more than those that waited for it
        unconnected = [text for text in problems if text.startswith("ConnectionError: no TCP")]
        if unconnected or (problems and not any("late" in each for each in said)):
            return (unconnected or problems)[0].removeprefix("ConnectionError: ")
        within = f"within {deadline_s:.0f} s"
        if all("latency_us" in each for each in said):
            median_us = max(float(each["latency_us"][0]) for each in said)
            return f"all-reduces of 4 bytes took {time_text(median_us)}, larger ones did not end {within}"
        if any("joined" in each for each in said):
            return f"an all-reduce of 4 bytes did not end {within}"
        return f"the ranks did not form a group {within}"
