"""Parses the lines that ``ddplaunch.examples.comm_test`` prints into measurements, with bounds on every number."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, cast, get_args

from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass

Test = Literal["all", "host", "pair"]
_LARGEST = 1e15  # of bytes per second or of microseconds (30 years)


@dataclass(frozen=True)
class GroupResult:
    """The measurement of one group of ranks: all ranks, those of a host, or those of a pair of hosts.

    ``bandwidth`` is bytes per second (nccl-tests' bus bandwidth), ``latency_us`` is for four bytes. Either may be None
    if it was not measured; ``problem`` then says why.
    """

    test: Test
    hosts: tuple[str, ...]
    ranks: int
    bandwidth: float | None = None
    latency_us: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Comm:
    """The whole test. ``ended``: all groups were tested, successfully or not.

    ``failure`` is the error that refused the run, or the diagnosis in its record.
    """

    backend: str = ""
    hosts: tuple[str, ...] = ()
    groups: tuple[GroupResult, ...] = ()
    ended: bool = False
    failure: Finding | None = None

    @property
    def inside(self) -> tuple[GroupResult, ...]:
        """The groups within one host."""
        return tuple(group for group in self.groups if len(group.hosts) == 1)

    @property
    def pairs(self) -> tuple[GroupResult, ...]:
        """The pairs of hosts."""
        return tuple(group for group in self.groups if group.test == "pair")


def comm_results(lines: Iterable[str]) -> Comm:
    """Return the results in the lines of rank 0's stdout; other output there, as of NCCL_DEBUG, is skipped."""
    comm = Comm()
    for line in lines:
        try:
            comm = _with_line(comm, json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return comm


def _with_line(comm: Comm, line: dict[str, Any]) -> Comm:
    if line["test"] == "begin":
        return Comm(str(line["backend"]), tuple(map(str, line["hosts"])))
    if line["test"] == "end":
        return replace(comm, ended=True)
    hosts = tuple(map(str, line["hosts"]))
    if line["test"] not in get_args(Test) or not hosts or not set(hosts) <= set(comm.hosts):
        raise ValueError("no group of these hosts")
    problem = None if line["problem"] is None else " ".join(str(line["problem"]).split())
    rate, latency = _number(line["bandwidth_bytes_per_s"]), _number(line["latency_us"])
    if problem is None and (rate is None or latency is None):
        raise ValueError("no measurement")
    group = GroupResult(cast(Test, line["test"]), hosts, int(line["ranks"]), rate, latency, problem)
    first = next((other for other in comm.groups if (other.test, other.hosts) == (group.test, group.hosts)), None)
    others = tuple(other for other in comm.groups if other is not first)
    return replace(comm, groups=(*others, group if first is None else _better(first, group)))


def _better(first: GroupResult, second: GroupResult) -> GroupResult:
    """Return the better values of a pair's two measurements; if the second failed, return that."""
    if second.problem is not None or first.bandwidth is None or second.bandwidth is None:
        return second
    latency = min(first.latency_us or _LARGEST, second.latency_us or _LARGEST)
    return replace(second, bandwidth=max(first.bandwidth, second.bandwidth), latency_us=latency)


def _number(value: Any) -> float | None:
    """Return a measured number, None for null. Raises ValueError for a value out of range, or NaN."""
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value <= _LARGEST:
        raise ValueError("not a measurement")
    return float(value)
