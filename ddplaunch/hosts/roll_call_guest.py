"""The other nodes' side of a roll call: find node 0, say who is here, wait for its verdict; refuses to speak first."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable
from dataclasses import replace

from ddplaunch.hosts import roll_call_rules as rules
from ddplaunch.hosts.roll_call_door import keep_alive
from ddplaunch.hosts.roll_call_host import Call
from ddplaunch.hosts.roll_call_words import (
    LONGEST_LINE,
    PROTOCOL,
    Hello,
    Status,
    Verdict,
    greeted,
    hello_line,
    read_status,
    read_verdict,
)
from ddplaunch.probes import deadline

_CONNECT_S = 3.0
_GREETING_S = 5.0
_LOOK_UP_S = 5.0
_LEAST_S = 1.0  # an attempt that the end of the whole time cuts shorter tells less than the one before it
_PAUSES_S = (0.05, 0.1, 0.2, 0.3)
_TICK_S = 1.0
Show = Callable[[Status], None]


class _NotThere(Exception):
    """Node 0 could not be talked to; the text says why, as a clause."""


def answer(call: Call, hello: Callable[[], Hello], show: Show) -> Verdict:
    """Answer node 0's call and return its verdict; refuses on its own when the time is over before that.

    ``hello`` is asked anew for each attempt, because it tells the time.
    """
    started = time.monotonic()
    attempts, reason = 0, "it was not tried"
    while (left := call.timeout_s - (time.monotonic() - started)) > 0:
        try:
            return _attempt(call, hello, show, started, left)
        except _NotThere as problem:
            if not attempts or left >= _LEAST_S:
                reason = str(problem)
        pause = _PAUSES_S[min(attempts, len(_PAUSES_S) - 1)]
        attempts += 1
        waited = time.monotonic() - started
        show(Status(call.nodes, ("node 0",), waited, reason))
        time.sleep(max(0.0, min(pause, call.timeout_s - waited)))
    missing = rules.node_0_missing(call.place, reason, time.monotonic() - started)
    return Verdict(False, (missing,), heard=False)


def _attempt(call: Call, hello: Callable[[], Hello], show: Show, started: float, left_s: float) -> Verdict:
    with _connected(call, left_s) as connection:
        lines = _Lines(connection)
        line = lines.next(time.monotonic() + min(_GREETING_S, left_s))
        protocol = None if line is None else greeted(line)
        if protocol is None:
            raise _NotThere(f"what listens at {call.place} is no roll call: another program, or a launch without one")
        try:
            connection.sendall(hello_line(hello()))
        except OSError as problem:
            raise _NotThere(f"the connection to {call.place} broke: {_text(problem)}") from problem
        if protocol != PROTOCOL:
            return Verdict(False, (rules.other_protocol("node 0", protocol),))
        return _verdict(call, lines, show, started)


def _verdict(call: Call, lines: _Lines, show: Show, started: float) -> Verdict:
    """Return the verdict. Once this node has joined, only node 0's time counts."""
    status: Status | None = None
    while True:
        line = lines.next(time.monotonic() + _TICK_S)
        waited = time.monotonic() - started
        if line is not None:
            verdict = read_verdict(line)
            if verdict is not None:
                return verdict
            status = read_status(line, waited) or status
        elif lines.ended:
            raise _NotThere(f"node 0 at {call.place} went away")
        if status is not None:
            show(replace(status, waited_s=waited))


class _Lines:
    """Lines of a connection, with a deadline for each."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pending = b""
        self.ended = False

    def next(self, until: float) -> bytes | None:
        """Return the next line; None when the time is over, or with ``ended`` set when no more will come."""
        while b"\n" not in self._pending:
            left = until - time.monotonic()
            if left <= 0 or self.ended:
                return None
            self._connection.settimeout(left)
            try:
                data = self._connection.recv(LONGEST_LINE)
            except TimeoutError:
                return None
            except OSError:
                data = b""
            self.ended = not data or len(self._pending) > 16 * LONGEST_LINE
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line


def _connected(call: Call, left_s: float) -> socket.socket:
    problem: OSError | None = None
    for family, address in _addresses(call.address, call.port, min(_LOOK_UP_S, left_s)):
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(min(_CONNECT_S, left_s))
            connection.connect(address)
            keep_alive(connection)
        except OSError as error:
            connection.close()
            problem = error
        else:
            if connection.getsockname() == connection.getpeername():  # TCP connects to itself where nobody listens
                connection.close()
                problem = ConnectionRefusedError(111, "Connection refused")
                continue
            return connection
    reason = "no address" if problem is None else _text(problem)
    raise _NotThere(f"no answer from {call.place}: {reason}") from problem


def _addresses(host: str, port: int, within_s: float) -> list[tuple[socket.AddressFamily, tuple[str | int, ...]]]:
    """Look ``host`` up, a name in a child process: a silent DNS server must not keep Ctrl-C waiting."""
    host = host.strip().removeprefix("[").removesuffix("]")

    def look() -> list[tuple[int, tuple[str | int, ...]]]:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(int(family), (*address,)) for family, _, _, _, address in found]

    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        try:
            (told,) = deadline.collect([deadline.start(look)], time.monotonic() + within_s)
        except OSError as problem:  # no process to look it up in
            raise _NotThere(f"the name `{host}` cannot be looked up: {_text(problem)}") from problem
        if told.late:
            raise _NotThere(f"the name `{host}` was not resolved within {within_s:.0f} s") from None
        if told.error is not None:
            raise _NotThere(
                f"the name `{host}` cannot be resolved: {told.error.partition('] ')[2] or told.error}"
            ) from None
        found = told.value
    else:
        found = look()
    return [(socket.AddressFamily(family), tuple(address)) for family, address in found]


def _text(problem: OSError) -> str:
    if isinstance(problem, TimeoutError):
        return "nothing came back, as with a firewall or a host that is down"
    return (problem.strerror or str(problem)).lower()
