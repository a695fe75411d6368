"""What ``ddplaunch.examples.comm_test`` prints, line by line, and what became of its run: read once, with bounds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, cast, get_args

from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass

Test = Literal["all", "host", "pair"]
_LARGEST = 1e15  # bytes per second, microseconds: 30 years of either


@dataclass(frozen=True)
class GroupResult:
    """One group of ranks: all of them, those of a host, or of a pair of hosts.

    ``bandwidth`` is bytes per second (nccl-tests' bus bandwidth), ``latency_us`` is of four bytes; both None where
    ``problem`` says why nothing, or not everything, was measured.
    """

    test: Test
    hosts: tuple[str, ...]
    ranks: int
    bandwidth: float | None = None
    latency_us: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class Comm:
    """The whole test. ``ended`` says that all groups were measured, well or not.

    ``failure`` is what its run says of a failure: the error that refused it, or the diagnosis of its record.
    """

    backend: str = ""
    hosts: tuple[str, ...] = ()
    groups: tuple[GroupResult, ...] = ()
    ended: bool = False
    failure: Finding | None = None

    @property
    def inside(self) -> tuple[GroupResult, ...]:
        """The ranks of each host alone."""
        return tuple(group for group in self.groups if len(group.hosts) == 1)

    @property
    def pairs(self) -> tuple[GroupResult, ...]:
        """The pairs of hosts."""
        return tuple(group for group in self.groups if group.test == "pair")


def comm_results(lines: Iterable[str]) -> Comm:
    """Return what the lines of rank 0's stdout say; what else is printed there, as by NCCL_DEBUG, is left out."""
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
    """Return what a pair reached in the better of two measurements; what fails at the second has failed."""
    if second.problem is not None or first.bandwidth is None or second.bandwidth is None:
        return second
    latency = min(first.latency_us or _LARGEST, second.latency_us or _LARGEST)
    return replace(second, bandwidth=max(first.bandwidth, second.bandwidth), latency_us=latency)


def _number(value: Any) -> float | None:
    """Return a measured number, None for none. Raises ValueError for what nobody measures; NaN is in no range."""
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 < value <= _LARGEST:
        raise ValueError("not a measurement")
    return float(value)
