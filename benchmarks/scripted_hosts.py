"""Scripted hosts for ``benchmarks.fan_out``: one process that plays all of them; knows nothing of the launcher's code.

For each host that the launcher starts ssh for, it gets the other ends of that session's pipes, speaks the protocol of
``ddplaunch.hosts.json_lines`` as a host would, and takes its time as hosts do. It notes when what arrived.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import random
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.scripted_answers import LINE, address_of, facts_of, record_of
from ddplaunch.hosts.json_lines import GREETING, json_line, message_in

DROPPED = b"kex_exchange_identification: Connection closed by remote host\n"


@dataclass(frozen=True)
class Script:
    """What the hosts do. Logarithms of latencies are normally distributed around these medians in seconds.

    ``slow`` of the hosts take three times as long to log in. ``train_s`` after the last start, host ``failing`` ends
    with status 1. ``gate``: all go through one sshd that drops a connection as MaxStartups 10:30:100 does.
    ``dropped``: the first connection of so many hosts is dropped in any case.
    """

    login_s: float = 0.4
    facts_s: float = 0.25
    start_s: float = 0.3
    end_s: float = 0.4
    spread: float = 0.35
    slow: float = 0.02
    round_trip_s: float = 0.002
    lines_per_s: float = 50.0
    train_s: float = 10.0
    gate: bool = False
    dropped: int = 0


@dataclass
class Seen:
    """What happened when, by the monotonic clock; and how often."""

    first_session_s: float = 0.0
    answered: list[float] = field(default_factory=list)
    launched: list[float] = field(default_factory=list)
    failed_s: float = 0.0
    told: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    dropped: int = 0
    sessions: int = 0


class Host:
    """One session as a host sees it."""

    def __init__(self, play: Hosts, index: int, descriptors: tuple[int, ...]) -> None:
        """``descriptors``: stdin, stdout and stderr of ssh, and where ssh's own status is written."""
        self.play, self.index = play, index
        self.incoming, self.outgoing, self.errors, self.status = descriptors
        self.pending, self.running, self.open = b"", False, True
        self.waiting: list[dict[str, Any]] = []
        self.up = False
        os.set_blocking(self.incoming, False)

    def log_in(self) -> None:
        """ssh is through: greet, and act on what the launcher has sent already."""
        self.up = True
        self.write(GREETING)
        for message in self.waiting:
            self.act(message)
        self.waiting.clear()

    def read(self) -> None:
        """Act on what has arrived, or leave with the launcher."""
        try:
            data = os.read(self.incoming, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self.close(0)
            return
        *lines, self.pending = (self.pending + data).split(b"\n")
        for line in lines:
            if self.up:
                self.act(message_in(line))
            else:
                self.waiting.append(message_in(line))

    def act(self, order: dict[str, Any]) -> None:
        """Answer one message, after the time that it takes."""
        play, script = self.play, self.play.script
        what = order.get("what")
        if what == "clock":
            play.after(script.round_trip_s, lambda: self.say({**order, "wall": time.time()}))
        elif what == "command":  # for the record
            self.write(record_of(self.index, play.statuses[self.index]))
            self.close(0)
        elif what == "launch":
            play.seen.launched.append(time.monotonic())
            self.running = True
            if self.index == 0:
                play.after(play.takes(script.start_s), self.print_line)
            if len(play.seen.launched) == play.count:
                play.after(script.train_s, play.fail)
        elif what is not None:
            self.answer(order)
        elif "signal" in order:
            play.seen.told.append(time.monotonic())
            if self.running:
                self.running = False
                play.after(play.takes(script.end_s), lambda: self.end(143))
        elif self.open:
            os.write(self.errors, b"\0")

    def answer(self, order: dict[str, Any]) -> None:
        """Facts take their time; where to meet and what is reached is a matter of round trips."""
        what, play = order["what"], self.play
        address = address_of(self.index)
        if what == "facts":
            play.after(
                play.takes(play.script.facts_s),
                lambda: self.tell_facts([path for path, _ in order["question"]["sources"]]),
            )
            return
        answers: dict[str, dict[str, Any]] = {
            "listen": {"listening": {"port": order.get("port") or 29500, "addresses": [address]}},
            "reach": {"reached": [[name, address, name] for (name,), _ in order.get("places", ())]},
        }
        play.after(2 * play.script.round_trip_s, lambda: self.say(answers[what]))

    def tell_facts(self, files: Sequence[str]) -> None:
        """Answer with the facts of a healthy node of eight GPUs."""
        self.say(facts_of(self.index, files))
        self.play.seen.answered.append(time.monotonic())

    def print_line(self) -> None:
        """Print as rank 0 of a training does."""
        if self.running:
            self.write(LINE)
            self.play.after(1 / self.play.script.lines_per_s, self.print_line)

    def end(self, status: int) -> None:
        """The program has ended, and the session with it."""
        self.running = False
        self.play.seen.ended.append(time.monotonic())
        self.play.statuses[self.index] = status
        self.close(status)

    def say(self, message: dict[str, Any]) -> None:
        """Write one message."""
        self.write(json_line(message))

    def write(self, data: bytes) -> None:
        """Write all of it: a pipe holds more than a host ever says at once."""
        if self.open:
            try:
                os.write(self.outgoing, data)
            except BrokenPipeError:
                self.close(255)

    def close(self, status: int, said: bytes = b"") -> None:
        """End ssh with ``status``."""
        if not self.open:
            return
        self.open = False
        self.play.selector.unregister(self.incoming)
        if said:
            os.write(self.errors, said)
        for descriptor in (self.incoming, self.outgoing, self.errors):
            os.close(descriptor)
        with contextlib.suppress(BrokenPipeError):  # the launcher has killed it
            os.write(self.status, f"{status}\n".encode())
        os.close(self.status)


class Hosts:
    """All hosts, until the launcher hangs up."""

    def __init__(self, control: socket.socket, count: int, script: Script, seed: int = 7) -> None:
        """New sessions arrive on ``control``."""
        self.control, self.count, self.script, self.seen = control, count, script, Seen()
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ, None)
        self.random = random.Random(seed)
        self.hosts: dict[int, Host] = {}
        self.statuses: dict[int, int] = {}
        self.logging_in = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()

    def takes(self, median_s: float) -> float:
        """Return how long something takes this time."""
        return self.random.lognormvariate(0, self.script.spread) * median_s

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._number), act))

    def serve(self) -> Seen:
        """Play until the launcher has ended; return what was seen."""
        while True:
            timeout_s = max(0.0, self._due[0][0] - time.monotonic()) if self._due else 1.0
            for key, _ in self.selector.select(timeout_s):
                if key.data is None:
                    if not self._begin():
                        return self.seen
                else:
                    key.data.read()
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()

    def _begin(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self.control, 64, 4)
        if not message:
            return False
        host = Host(self, int(message), tuple(descriptors))
        self.selector.register(host.incoming, selectors.EVENT_READ, host)
        self.seen.first_session_s = self.seen.first_session_s or time.monotonic()
        self.seen.sessions += 1
        first = host.index not in self.hosts
        self.hosts[host.index] = host
        if (first and self.seen.dropped < self.script.dropped) or (
            self.script.gate and self.random.random() < dropping(self.logging_in)
        ):
            self.seen.dropped += 1
            self.after(self.script.round_trip_s, lambda: host.close(255, DROPPED))
            return True
        self.logging_in += 1
        takes_s = self.takes(self.script.login_s) * (3 if self.random.random() < self.script.slow else 1)
        self.after(takes_s, lambda: self._logged_in(host))
        return True

    def _logged_in(self, host: Host) -> None:
        self.logging_in -= 1
        host.log_in()

    def fail(self) -> None:
        """Let one host's program end badly."""
        self.seen.failed_s = time.monotonic()
        self.hosts[self.count // 2].end(1)


def dropping(logging_in: int) -> float:
    """Return the chance that sshd drops one more: `MaxStartups 10:30:100` of sshd_config(5)."""
    return 0.0 if logging_in < 10 else min(1.0, 0.3 + 0.7 * (logging_in - 10) / 90)
