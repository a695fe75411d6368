"""Both sides of a roll call: node 0 waits for all nodes and compares them; the others connect and get its verdict."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace

from ddplaunch.hosts.json_lines import LineReader
from ddplaunch.hosts.roll_call import rules
from ddplaunch.hosts.roll_call.messages import (
    LONGEST_LINE,
    PROTOCOL,
    Greeting,
    Hello,
    Secret,
    Status,
    Verdict,
    line_with,
    read_message,
    sealed,
    unsealed,
)
from ddplaunch.machine import network
from ddplaunch.planning.ranks.topology import endpoint
from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable

_TICK_S = 1.0
_FIRST_LINE_S = 10.0
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
Show = Callable[[Status], None]
Compare = Callable[[Mapping[int, Hello], Mapping[int, tuple[float, float]]], tuple[Finding, ...]]


@dataclass(frozen=True)
class Call:
    """A roll call: ``nodes`` nodes meet at ``address``:``port`` within ``timeout_s``.

    ``known`` maps node ranks to hosts where these are known beforehand, as from Slurm. ``secrets`` are those that this
    node can prove. Node 0 admits only nodes that prove the first one; without secrets, every node that fits.
    """

    nodes: int
    address: str
    port: int
    timeout_s: float
    known: Mapping[int, str]
    secrets: tuple[Secret, ...] = ()

    @property
    def secret(self) -> Secret | None:
        """The secret that node 0 wants proved."""
        return self.secrets[0] if self.secrets else None

    def greeting(self, nonce: str) -> bytes:
        """Return the line that node 0 sends to each new connection."""
        return line_with(Greeting(PROTOCOL, nonce, None if self.secret is None else self.secret.name))

    @property
    def place(self) -> str:
        """Address and port as one word."""
        return endpoint(self.address, self.port)


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice within half a minute that the other host is gone: power off, cable pulled (tcp(7))."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def hold(call: Call, me: Hello, rendezvous_id: str, run_id: str, compare: Compare, show: Show) -> Verdict:
    """Call the roll on node 0 and return the verdict, which all other nodes got too.

    ``compare`` judges the nodes once all have joined, given how far ahead each clock is. Raises OSError where the port
    cannot be bound. If a signal or an error ends this early, the waiting nodes are told.
    """
    with closing(asyncio.new_event_loop()) as loop:
        roll = _Roll(call, me, show)
        loop.set_exception_handler(lambda loop, context: None)  # no connection can be accepted until strangers are gone
        loop.run_until_complete(roll.open())
        try:
            verdict = loop.run_until_complete(roll.wait())
            if verdict is None:
                findings = compare(roll.joined, roll.clocks)
                go = not any(finding.severity is Severity.ERROR for finding in findings)
                apart = len({hello.machine for hello in roll.joined.values()}) == call.nodes  # else it names two runs
                fresh_id = f"{rendezvous_id}-{os.urandom(4).hex()}"
                verdict = Verdict(go, findings, fresh_id if go else None, run_id if apart else None)
        except BaseException as problem:
            cause = "was interrupted" if isinstance(problem, (KeyboardInterrupt, SystemExit)) else "failed"
            last = Verdict(False, (rules.ended_by(me.host, cause),))
            loop.run_until_complete(roll.close(last, patience_s=0.3))  # a user who pressed Ctrl-C should not wait long
            raise
        loop.run_until_complete(roll.close(verdict, patience_s=3.0))
        return verdict


class _Caller:
    """One connection; ``hello`` is its node's message, None as long as it may be a stranger.

    ``nonce`` is the fresh number sent to this caller alone.
    """

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.greeted_s, self.nonce = time.time(), os.urandom(16).hex()
        self.hello: Hello | None = None


class _Roll:
    """The nodes that have joined so far, on node 0.

    Callers may be strangers: a port scanner, the torchrun of another job, a connection that stays silent. Each gets
    limited time and one limited line.
    """

    def __init__(self, call: Call, me: Hello, show: Show) -> None:
        self.joined: dict[int, Hello] = {0: me}
        self.clocks: dict[int, tuple[float, float]] = {}
        self._call, self._show = call, show
        self._started = time.monotonic()
        self._callers: dict[_Caller, asyncio.Task[None]] = {}
        self._news, self._problem = asyncio.Event(), list[Finding]()
        self._hosts = dict(call.known)
        self._note: str | None = None
        self._turned_away = 0

    async def open(self) -> None:
        """Begin to listen. Raises OSError where the port cannot be bound."""
        server = network.bound(self._call.port)
        self._server = await asyncio.start_server(self._admit, sock=server, limit=LONGEST_LINE, backlog=4096)

    async def wait(self) -> Verdict | None:
        """Return None once all have joined, or the verdict that refuses the launch."""
        while len(self.joined) < self._call.nodes:
            left_s = self._call.timeout_s - self._waited_s()
            if left_s <= 0:
                absent, waited_s = self._missing(), self._waited_s()
                missing = rules.nodes_missing(self._call.nodes, absent, waited_s, self._call.place, self._turned_away)
                return Verdict(False, (missing,))
            self._show(self._status())
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(left_s, _TICK_S))
            self._news.clear()
            if self._problem:
                return Verdict(False, tuple(self._problem))
        self._show(self._status())
        return None

    async def close(self, verdict: Verdict, patience_s: float) -> None:
        """Stop listening, send the verdict to every node, and wait up to ``patience_s`` until they have closed.

        Nodes close first, so that TIME_WAIT stays on their side, and none of their torchruns connects to this port
        before node 0's torchrun listens there.
        """
        self._server.close()
        line = line_with(verdict)
        for caller, task in self._callers.items():
            if caller.hello is None:
                task.cancel()
            else:
                proof = "verdict", caller.nonce, caller.hello.nonce
                caller.writer.write(sealed(line, self._call.secret, *proof))
        waiting = set(self._callers.values())
        if waiting:
            _, waiting = await asyncio.wait(waiting, timeout=patience_s)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Greet a caller, take its hello, and keep a node's connection until it goes away."""
        caller, task = _Caller(writer), asyncio.current_task()
        assert task
        self._callers[caller] = task
        try:
            with suppress(OSError, ValueError, asyncio.TimeoutError):  # ValueError: a line that is too long
                keep_alive(writer.get_extra_info("socket"))
                writer.write(self._call.greeting(caller.nonce))
                line = await asyncio.wait_for(reader.readline(), _FIRST_LINE_S)
                self._take(caller, line)
                while caller.hello is not None and await reader.read(LONGEST_LINE):
                    pass
        finally:
            del self._callers[caller]
            self._left(caller)
            writer.close()

    def _take(self, caller: _Caller, line: bytes) -> None:
        """Let a node enter by its hello, or note why there can be no launch; a stranger's line changes nothing."""
        self._news.set()
        body = unsealed(line, self._call.secret, "hello", caller.nonce)
        if body is None:
            self._turned_away += 1
            self._note = "a caller without the secret of this launch was turned away"
            caller.writer.write(line_with(Verdict(False)))
            return
        hello = read_message(body, Hello)
        if hello is None or rules.is_stranger(self.joined[0], hello, self._call.nodes):
            return
        caller.hello = hello
        problem = rules.at_the_door(self.joined, hello)
        if problem is not None:
            self._problem.append(problem)
            return
        now = time.time()
        self.joined[hello.node_rank] = hello
        self._hosts[hello.node_rank] = hello.host
        self.clocks[hello.node_rank] = (hello.clock_s - (caller.greeted_s + now) / 2, (now - caller.greeted_s) / 2)
        self._note = None

    def _left(self, caller: _Caller) -> None:
        hello = caller.hello
        if hello is not None and self.joined.get(hello.node_rank) is hello:
            del self.joined[hello.node_rank]
            self._note = f"{hello.name} went away"
            self._news.set()

    def _missing(self) -> tuple[str, ...]:
        absent = (rank for rank in range(self._call.nodes) if rank not in self.joined)
        hosts = self._hosts
        return tuple(f"node {rank} ({hosts[rank]})" if rank in hosts else f"node {rank}" for rank in absent)

    def _status(self) -> Status:
        return Status(self._call.nodes, self._missing(), self._waited_s(), self._note, len(self.joined))

    def _waited_s(self) -> float:
        return time.monotonic() - self._started


_CONNECT_S = 3.0
_GREETING_S = 5.0
_LOOK_UP_S = 5.0
_LEAST_S = 1.0  # an attempt cut shorter than this by the timeout tells less than the one before it
_PAUSE_S = 0.2


class _NotThere(Exception):
    """Node 0 could not be reached; the text says why, as a clause."""


def answer(call: Call, hello: Callable[[], Hello], show: Show) -> Verdict:
    """Answer node 0's call and return its verdict, or this node's own once the time is over.

    ``hello`` is called for each attempt, because its message contains the current time.
    """
    started = time.monotonic()
    attempts, reason = 0, "it was not tried"
    while (left_s := call.timeout_s - (time.monotonic() - started)) > 0:
        try:
            return _attempt(call, hello, show, started, left_s)
        except _NotThere as problem:
            if not attempts or left_s >= _LEAST_S:
                reason = str(problem)
        attempts += 1
        waited = time.monotonic() - started
        show(Status(call.nodes, ("node 0",), waited, reason))
        time.sleep(max(0.0, min(_PAUSE_S, call.timeout_s - waited)))
    missing = rules.node_0_missing(call.place, reason, time.monotonic() - started)
    return Verdict(False, (missing,), heard=False)


def _attempt(call: Call, hello: Callable[[], Hello], show: Show, started: float, left_s: float) -> Verdict:
    with _connected(call, left_s) as connection:
        lines = LineReader(connection.fileno(), 16 * LONGEST_LINE)
        line = lines.next(time.monotonic() + min(_GREETING_S, left_s))
        first = None if line is None else read_message(line, Greeting)
        if first is None:
            raise _NotThere(f"no roll call at {call.place}, but another program or a launch without one")
        secret = next((candidate for candidate in call.secrets if candidate.name == first.secret), None)
        nonce = os.urandom(16).hex()
        try:
            connection.sendall(sealed(line_with(replace(hello(), nonce=nonce)), secret, "hello", first.nonce))
        except OSError as problem:
            raise _NotThere(f"the connection to {call.place} broke: {_text(problem)}") from problem
        if first.protocol != PROTOCOL:
            return Verdict(False, (rules.other_protocol("node 0", first.protocol),))
        if secret is None and (first.secret is not None or call.secrets):
            return Verdict(False, (rules.no_shared_secret(call.place),), heard=False)
        return _verdict(call, lines, show, started, lambda line: unsealed(line, secret, "verdict", first.nonce, nonce))


def _verdict(
    call: Call, lines: LineReader, show: Show, started: float, proved: Callable[[bytes], bytes | None]
) -> Verdict:
    """Wait without limit for a verdict that is ``proved``, and return it: from here only node 0's timeout counts."""
    while True:
        line = lines.next(time.monotonic() + _TICK_S)
        if line is not None:
            body = proved(line)
            verdict = read_message(line if body is None else body, Verdict)
            if verdict is not None and body is not None:
                return verdict
            if verdict is not None and not verdict.go:
                return Verdict(False, (rules.no_shared_secret(call.place),), heard=False)
        elif lines.ended:
            raise _NotThere(f"node 0 at {call.place} went away")
        show(Status(call.nodes, ("the other nodes",), time.monotonic() - started, "node 0 says which"))


def _connected(call: Call, left_s: float) -> socket.socket:
    host = call.address.strip().removeprefix("[").removesuffix("]")
    addresses = network.look_up(host, min(_LOOK_UP_S, left_s))()
    if isinstance(addresses, Unavailable):
        raise _NotThere(f"the name {addresses.reason}")
    reason = "no address"
    for address in addresses:
        try:
            connection = socket.create_connection((address, call.port), timeout=min(_CONNECT_S, left_s))
            keep_alive(connection)
        except OSError as problem:
            reason = _text(problem)
            continue
        if connection.getsockname() != connection.getpeername():
            return connection
        connection.close()  # TCP can connect to itself where nothing listens
        reason = "connection refused"
    raise _NotThere(f"no answer from {call.place}: {reason}")


def _text(problem: OSError) -> str:
    if isinstance(problem, TimeoutError):
        return "nothing came back, as with a firewall or a host that is down"
    return (problem.strerror or str(problem)).lower()
