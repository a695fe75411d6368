"""A port where nodes or hosts meet before torchrun starts, and the lines that arrive at it.

Callers may be strangers: a port scanner, the torchrun of another job, a connection that stays silent. Each gets limited
time and a limited line, and only a limited number of strangers is connected at once.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator

from ddplaunch.hosts.roll_call.messages import LONGEST_LINE, Hello

_FIRST_LINE_S = 10.0
_STRANGERS = 128  # most connections at once that have not yet sent a valid hello
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice within half a minute that the other host is gone: power off, cable pulled (tcp(7))."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Caller:
    """One connection; ``hello`` is its node's message, None as long as it may be a stranger.

    ``nonce`` is the fresh number sent to this caller alone, ``its_nonce`` the one that it sent.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Take over ``connection``."""
        self.connection = connection
        self.since = time.monotonic()
        self.greeted_s = time.time()
        self.nonce, self.its_nonce = os.urandom(16).hex(), ""
        self.hello: Hello | None = None
        self.open = True
        self.pending = b""

    def say(self, line: bytes) -> None:
        """Send a line; give up the connection if the line does not fit at once, since then its peer is not reading."""
        try:
            if self.connection.send(line) == len(line):
                return
        except OSError:
            pass
        self.open = False


class Door:
    """A port that greets every caller, until it is closed."""

    def __init__(self, server: socket.socket, greeting: Callable[[str], bytes]) -> None:
        """Take over a listening socket; ``greeting`` gets a fresh number for each caller."""
        self._server: socket.socket | None = server
        self._server.setblocking(False)
        self._greeting = greeting
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self.callers: list[Caller] = []

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._stop_listening()
        for caller in list(self.callers):
            self.drop(caller)
        self._selector.close()

    def lines(self, timeout_s: float) -> Iterator[tuple[Caller, bytes | None]]:
        """Yield the lines that arrive within ``timeout_s``, and None for each connection that ended."""
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._accept()
                continue
            yield from self._read(key.data)
        for caller in list(self.callers):
            too_late = caller.hello is None and time.monotonic() - caller.since > _FIRST_LINE_S
            if too_late or not caller.open:
                self.drop(caller)
                yield caller, None

    def drop(self, caller: Caller) -> None:
        """Close a connection."""
        if caller in self.callers:
            self.callers.remove(caller)
            self._selector.unregister(caller.connection)
            caller.connection.close()
            caller.open = False

    def close_after(self, last: Callable[[Caller], bytes], patience_s: float = 3.0) -> None:
        """Stop listening, send the ``last`` line to every node, and wait up to ``patience_s`` until they have closed.

        Nodes close first, so that TIME_WAIT stays on their side, and none of their torchruns connects to this port
        before node 0's torchrun listens there.
        """
        self._stop_listening()
        for caller in list(self.callers):
            if caller.hello is not None:
                caller.say(last(caller))
            if caller.hello is None or not caller.open:
                self.drop(caller)
        until = time.monotonic() + patience_s
        while self.callers and (left_s := until - time.monotonic()) > 0:
            for _ in self.lines(left_s):
                pass

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._selector.unregister(self._server)
            self._server.close()
            self._server = None

    def _accept(self) -> None:
        assert self._server is not None
        try:
            connection, _ = self._server.accept()
        except OSError as problem:
            if problem.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room()
            return
        connection.setblocking(False)
        keep_alive(connection)
        caller = Caller(connection)
        self.callers.append(caller)
        self._selector.register(connection, selectors.EVENT_READ, caller)
        caller.say(self._greeting(caller.nonce))
        if sum(each.hello is None for each in self.callers) > _STRANGERS:
            self._make_room()

    def _make_room(self) -> None:
        """Drop the stranger who has been silent longest; a node that is dropped this way tries again."""
        strangers = [caller for caller in self.callers if caller.hello is None]
        if strangers:
            self.drop(strangers[0])

    def _read(self, caller: Caller) -> Iterator[tuple[Caller, bytes | None]]:
        if caller not in self.callers:  # dropped earlier in the same round
            return
        try:
            data = caller.connection.recv(LONGEST_LINE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        caller.pending += data
        line, newline, rest = caller.pending.partition(b"\n")
        if not data or (not newline and len(line) > LONGEST_LINE):
            self.drop(caller)
            yield caller, None
        elif newline:
            caller.pending = rest[:LONGEST_LINE]
            yield caller, line
