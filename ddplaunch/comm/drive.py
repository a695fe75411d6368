"""Runs the test of `doctor --comm` over open sessions: each host alone, then pairs of hosts, round by round.

Every host runs ``ddplaunch.agent.comm_host`` as the one program of its session, which ends with the session, as a
launch does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.comm.checks import time_text
from ddplaunch.comm.groups import Comm, HostGroup, Measured, next_round
from ddplaunch.hosts.session.fan_out import body_of
from ddplaunch.hosts.session.frames import SILENCE_S, Kind
from ddplaunch.hosts.session.links import Event, Link, Links
from ddplaunch.values.variable_names import LAUNCH, RUN_ID

_MODULE = "ddplaunch.agent.comm_host"
DEADLINE_S = {"cpu": 20.0, "cuda": 60.0}  # for each step; CUDA and NCCL take seconds to start
_START_S = 90.0  # to import torch, from a file system that everybody reads at once
_MARGIN_S = 10.0  # until a host has said that its deadline ended a step
_MEASURE_S = 0.1  # of the deadline, for the sizes of the bandwidth
_TURN_S = 0.2
_LINE = 1 << 16
_WORDS = 500
_MEASURED = frozenset({"bandwidth", "size", "latency_us"})
_NUMBERS = ("bandwidth", "size", "segments", "resent", "all_segments", "all_resent")
_LARGEST = 1e15  # bytes per second, microseconds, segments: 30 years of either


class Member:
    """One host that takes part. ``lost`` says why it does so no more; ``where`` is where its ranks can be met."""

    def __init__(self, link: Link, python: str, alone: int, paired: int) -> None:
        """``alone`` and ``paired`` are how many ranks it runs alone and in a pair, in the interpreter ``python``."""
        self.link, self.python, self.alone, self.paired = link, python, alone, paired
        self.where: dict[str, Any] | None = None
        self.store = 0
        self.lost: str | None = None
        self.errors = b""
        self._line = b""

    @property
    def name(self) -> str:
        """The host's name."""
        return self.link.name

    def lines(self, data: bytes) -> list[dict[str, Any]]:
        """Return the whole lines that ``data`` completes. Raises ValueError for one that is no JSON."""
        *lines, self._line = (self._line + data).split(b"\n")
        self._line = self._line[-_LINE:]
        return [json.loads(line, parse_constant=_no_number) for line in lines]


class CommTest:
    """One test over all members."""

    def __init__(
        self,
        links: Links,
        members: Sequence[Member],
        device: str,
        run_id: str,
        deadline_s: float,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``device`` is cuda (NCCL) or cpu (gloo); ``deadline_s`` bounds each step. The ranks get ``environment``."""
        self._links, self._device, self._run_id, self.deadline_s = links, device, run_id, deadline_s
        self._hosts = {member.link: member for member in members}
        own = {RUN_ID: run_id, LAUNCH: "", "PYTHONSAFEPATH": "1"}
        self._environment = {"OMP_NUM_THREADS": "1", **(environment or {}), **own}
        self._step = 0
        self._running: dict[str, Reports] = {}  # by host

    def run(self) -> Comm:
        """Run all steps, and end what was started. It takes the deadline for each of four steps, and the start."""
        self._start()
        groups = self._round(0, [(host,) for host in self._alive() if host.alone > 1])
        number = 0
        while pairs := next_round([host.name for host in self._alive()], groups):
            number += 1
            by_name = {host.name: host for host in self._alive()}
            groups += self._round(number, [tuple(by_name[name] for name in pair) for pair in pairs])
        for host in self._alive():
            host.link.send(Kind.LEAVE)
        hosts = self._hosts.values()
        return Comm(
            backend="nccl" if self._device == "cuda" else "gloo",
            hosts=tuple(host.name for host in hosts),
            groups=tuple(groups),
            untested=tuple((host.name, host.lost) for host in hosts if host.lost is not None),
            deadline_s=self.deadline_s,
        )

    def _alive(self) -> list[Member]:
        return [host for host in self._hosts.values() if host.lost is None]

    def _start(self) -> None:
        for host in self._hosts.values():
            order = {"module": _MODULE, "python": host.python, "environment": self._environment}
            host.link.launch({**order, "run_id": self._run_id, "grace_s": 0.0, "launch": {}})
        until = time.monotonic() + _START_S
        while any(host.where is None for host in self._alive()) and time.monotonic() < until:
            self._turn()
        for host in self._alive():
            if host.where is None:
                host.lost = f"torch was not imported within {_START_S:.0f} s"

    def _round(self, number: int, groups: Sequence[tuple[Member, ...]]) -> list[HostGroup]:
        """Run all groups at once and return what became of them."""
        self._step += 1
        begun = time.monotonic()
        running = [self._begin(number, hosts) for hosts in groups]
        until = begun + self.deadline_s + _MARGIN_S
        while not all(reports.done for reports in running) and time.monotonic() < until:
            self._turn()
        for host in self._alive():
            reports = self._running.get(host.name)
            if reports is not None and host.name not in reports.ended:
                host.lost = f"it did not end a step within {_MARGIN_S:.0f} s after its deadline"
        self._running = {}
        return [reports.group(self.deadline_s) for reports in running]

    def _begin(self, number: int, hosts: tuple[Member, ...]) -> Reports:
        counts = [host.paired if number else host.alone for host in hosts]
        reports = Reports(number, tuple(host.name for host in hosts), sum(counts))
        first, leader = 0, hosts[0]
        for host, count in zip(hosts, counts, strict=True):
            self._running[host.name] = reports
            order = {
                "step": self._step,
                "first": first,
                "local": count,
                "world": sum(counts),
                "device": self._device,
                "deadline_s": self.deadline_s,
                "measure_s": _MEASURE_S * self.deadline_s,
                "alone": len(hosts) == 1,
                "leader": None if host is leader else {**(leader.where or {}), "store": leader.store},
            }
            host.link.send(Kind.TELL, order)
            first += count
        return reports

    def _turn(self) -> None:
        """Take what has arrived, and give up hosts of which nothing is heard."""
        for event in self._links.wait(_TURN_S):
            host_of = self._hosts.get(event.link)
            if host_of is not None and host_of.lost is None:
                self._take(host_of, event)
        for link in self._links.keep_alive([host.link for host in self._alive()]):
            self._lose(self._hosts[link], f"nothing was heard of it for {SILENCE_S:.0f} s")

    def _lose(self, host: Member, reason: str) -> None:
        host.lost = reason
        reports = self._running.get(host.name)
        if reports is not None:
            reports.lose(host.name, reason)
            self._stop_waiting(reports)

    def _stop_waiting(self, reports: Reports) -> None:
        """End the ranks that wait for others that are gone: their deadline would tell no more."""
        for host in self._alive():
            if host.name in reports.waiting_in_vain:
                host.link.send(Kind.TELL, {"stop": self._step})

    def _take(self, host: Member, event: Event) -> None:
        if event.kind is None:
            self._lose(host, event.link.last_words or "its ssh session ended")
        elif event.kind is Kind.ERR:
            host.errors = (host.errors + event.body)[-_LINE:]
        elif event.kind is Kind.ENDED:
            body, lines = body_of(event), host.errors.decode("utf-8", "replace").strip().splitlines()
            problem = body.get("problem") or (lines[-1] if lines else "it said nothing")
            self._lose(host, f"the test's program there ended with status {body.get('status')}: {problem}")
        elif event.kind is Kind.OUT:
            try:
                for line in host.lines(event.body):
                    self._note(host, line)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                self._lose(host, "it said what is no line of the test")

    def _note(self, host: Member, line: dict[str, Any]) -> None:
        if "problem" in line and "step" not in line:
            self._lose(host, _in_a_line(line["problem"]))
        elif "hello" in line:
            host.where, host.store = dict(line["hello"]), int(line["store"])
        elif line.get("step") == self._step and (reports := self._running.get(host.name)) is not None:
            if "ended" in line:
                host.store = int(line["store"])
                reports.end(host.name)
                self._stop_waiting(reports)
            else:
                reports.add(line)


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
        """Note what a rank said; later ones tell more. Raises ValueError for what nobody measures."""
        _check(line, self._ranks)
        self._said.setdefault(line["rank"], {}).update(line)

    def end(self, host: str) -> None:
        """Note that all ranks of ``host`` are gone."""
        self.ended.add(host)
        self._ended_s = time.monotonic()

    def lose(self, host: str, reason: str) -> None:
        """Note that ``host`` will say nothing more."""
        self._lost[host] = reason
        self.end(host)

    def group(self, deadline_s: float) -> HostGroup:
        """Return what was measured, or why nothing was."""
        seconds = (self._ended_s or time.monotonic()) - self._begun_s
        said = [self._said.get(rank, {}) for rank in range(self._ranks)]
        if all(each.keys() >= _MEASURED and "problem" not in each for each in said):
            measured, problem, counts = _measured(said), "", ("segments", "resent")
        else:
            measured, problem, counts = None, self._problem(said, deadline_s), ("all_segments", "all_resent")
        segments, again = (sum(int(each.get(name, 0)) for each in said) for name in counts)
        if again and measured is None:
            problem += f"; TCP sent {again} of {segments} segments again"
        return HostGroup(self._hosts, self._number, self._ranks, measured, problem, seconds, segments, again)

    def _problem(self, said: list[dict[str, Any]], deadline_s: float) -> str:
        for host, reason in self._lost.items():
            return f"{host} was lost: {reason}"
        problems = [_in_a_line(each["problem"]) for each in said if "problem" in each]
        # a rank that could not connect knows more than those that waited for it
        unconnected = [text for text in problems if text.startswith("ConnectionError: no TCP")]
        if unconnected or (problems and not any("late" in each for each in said)):
            return (unconnected or problems)[0].removeprefix("ConnectionError: ")
        if all("bandwidth" in each for each in said):
            return "a rank did not say all that it measured"
        within = f"within {deadline_s:.0f} s"
        if all("latency_us" in each for each in said):
            median_us = max(float(each["latency_us"][0]) for each in said)
            return f"all-reduces of 4 bytes took {time_text(median_us)}, larger ones did not end {within}"
        if any("joined" in each for each in said):
            return f"an all-reduce of 4 bytes did not end {within}"
        for each in said:
            if each.get("unanswered"):  # a packet filter that drops says nothing else
                return f"the ranks did not form a group {within}; {_in_a_line(each['unanswered'])}"
        return f"the ranks did not form a group {within}"


def _check(line: Mapping[str, Any], ranks: int) -> None:
    """Raise ValueError or TypeError unless one of so many ``ranks`` may have said this of its measurements."""
    latencies = line.get("latency_us", [0, 0])
    if type(line["rank"]) is not int or not 0 <= line["rank"] < ranks or len(latencies) != len(("median", "most")):
        raise ValueError("no line of a rank")
    for number in (*latencies, *(line[name] for name in _NUMBERS if name in line)):
        if type(number) not in (int, float) or not 0 <= number <= _LARGEST:  # NaN is neither
            raise ValueError("no number of a measurement")


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _in_a_line(text: object) -> str:
    """Return what a host says of itself as one line of bounded length."""
    return " ".join(str(text).split())[:_WORDS]


def _measured(said: Sequence[Mapping[str, Any]]) -> Measured:
    return Measured(
        bandwidth=max(1.0, float(said[0]["bandwidth"])),  # it divides
        size_bytes=int(said[0]["size"]),
        latency_us=max(float(each["latency_us"][0]) for each in said),
        latency_most_us=max(float(each["latency_us"][1]) for each in said),
    )
