"""A host's answers before a launch: its facts and sources, an address to meet at, the addresses that it reaches."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import threading
import time
from dataclasses import field
from pathlib import Path
from typing import Any

from ddplaunch.machine import network
from ddplaunch.machine.facts import ProbeRequest
from ddplaunch.values import codec
from ddplaunch.values.frozen import dataclass

_PORTS = range(29500, 30500)  # below Linux's ephemeral ports (from 32768), which outgoing connections use
_REACH_S = 1.5  # for one address
_AT_ONCE = 64  # addresses, of which 1,000 that answer nothing take 24 s; and callers
_CLOSES_S = 0.5
_LARGE = 8000  # bytes: packets of the size that ranks will send


@dataclass(frozen=True)
class Question:
    """The question to every host. ``cwd`` is the directory there, ``env`` the variables passed from here.

    ``sources`` are the script's files in ``cwd`` to compare, each with its digest where this machine has the file.
    """

    request: ProbeRequest
    python: str
    cwd: str | None = None
    script: str | None = None
    sources: tuple[tuple[str, str | None], ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    deadline_s: float = 20.0


@dataclass(frozen=True)
class Listening:
    """The port at which a host listens for the others, and its addresses; or why it cannot listen on ``port``."""

    port: int
    addresses: tuple[str, ...] = ()
    problem: str | None = None


class Answers:
    """A host's answers before a launch, and the port at which it meets the others meanwhile."""

    def __init__(self) -> None:
        """Begin without a meeting."""
        self._meeting: socket.socket | None = None

    def to(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to ``order``. Raises whatever goes wrong."""
        what = order["what"]
        if what == "clock":
            return {**order, "wall": time.time()}
        if what == "reach":
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(_AT_ONCE) as pool:
                routes = pool.map(lambda place: reached(place[0], place[1], order["nonce"]), order["places"])
                return {"reached": [route for of_place in routes for route in of_place]}
        self.close_meeting()
        if what == "facts":
            return facts(codec.from_plain(order["question"], Question))
        if what == "listen":
            return {"listening": codec.plain(self._listen(order))}
        raise ValueError(f"this host's ddplaunch cannot answer `{what}`")

    def _listen(self, order: dict[str, Any]) -> Listening:
        """Open a meeting on the requested port, or on a free one; return the port and this host's addresses."""
        try:
            self._meeting = _listening(order["port"])
        except OSError as error:
            return Listening(order["port"] or 0, problem=error.strerror or str(error))
        for _ in range(_AT_ONCE):  # callers that large packets do not reach keep nobody waiting
            threading.Thread(target=_greet, args=(self._meeting, order["nonce"].encode()), daemon=True).start()
        interfaces = [interface for interface in network.probe_interfaces() if interface.up and not interface.loopback]
        interfaces.sort(key=lambda interface: -(interface.speed_mbps or 0))
        addresses = [
            address
            for interface in interfaces
            for address in interface.addresses
            if not address.lower().startswith("fe80")
        ]
        addresses.sort(key=lambda address: ":" in address)
        return Listening(self._meeting.getsockname()[1], tuple(addresses))

    def close_meeting(self) -> None:
        """Give the port back."""
        if self._meeting is not None:
            with contextlib.suppress(OSError):
                self._meeting.shutdown(socket.SHUT_RDWR)  # this ends accept(2)
            self._meeting.close()
            self._meeting = None


def _greet(server: socket.socket, nonce: bytes) -> None:
    """Send the nonce to every caller, in packets as large as this host sends, until the port is closed."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with contextlib.suppress(OSError), connection:
            connection.settimeout(_CLOSES_S)
            connection.sendall(nonce.ljust(_LARGE))
            connection.recv(1)  # wait until the other side closes, so that TIME_WAIT stays there


def facts(question: Question) -> dict[str, Any]:
    """Return this host's ``HostReport`` as JSON: its facts, and whatever else a launch over several hosts compares.

    The process changes to ``cwd`` and keeps ``env``, so that programs started later run in what was examined.
    """
    from ddplaunch import __version__
    from ddplaunch.machine.gather import gather
    from ddplaunch.machine.software import probe_plugin
    from ddplaunch.planning.hosts_plan import HostReport
    from ddplaunch.values.resolved import known

    os.environ.update(question.env)
    folder = os.path.dirname(sys.executable)  # noqa: PTH120 - torchrun and other programs of this environment
    if folder not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PATH", ""))))
    problem = _enter(question.cwd)
    files = [] if problem else [path for path, _ in question.sources]
    report = HostReport(
        name=socket.gethostname(),
        facts=gather(question.request),
        ddplaunch=__version__,
        plugin=known(probe_plugin(), None),
        cwd=question.cwd or "",
        cwd_problem=problem,
        sources=tuple((path, digest_of_file(Path(path)) or "missing") for path in files),
        machine=machine(),
    )
    return {"report": codec.plain(report)}


def _enter(directory: str | None) -> str | None:
    if directory is None:
        return None
    try:
        os.chdir(directory)
        os.environ["PWD"] = directory
    except OSError as error:
        return error.strerror or str(error)
    return None


def digest_of_file(path: Path) -> str | None:
    """Return a digest of a file's text, None where it cannot be read."""
    from ddplaunch.script.source import digest_of

    try:
        return digest_of(path.read_text("utf-8", "surrogateescape")) if path.is_file() else None
    except OSError:
        return None


def machine() -> str:
    """Return a text that is the same for two names of one machine, and differs between machines."""
    parts = []
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid", "/proc/self/ns/net"):
        try:
            parts.append(str(Path(path).readlink()) if "/ns/" in path else Path(path).read_text().strip())
        except OSError:
            parts.append(socket.gethostname())
    return " ".join(parts)


def _listening(port: int | None) -> socket.socket:
    problem = OSError("no port is free")
    for candidate in (
        [port] if port is not None else [*random.sample(_PORTS, 20), 0]
    ):  # so that simultaneous launches differ
        try:
            return network.bound(candidate, backlog=1024)
        except OSError as error:
            problem = error
    raise problem


def reached(addresses: list[str], port: int, nonce: str) -> list[tuple[str, str, str]]:
    """Return each address at which the meeting answers, with this host's and the peer's address on that connection.

    An answer without the nonce does not count: docker0 has the same address on every host.
    """
    routes = []
    for address in addresses:
        try:
            with socket.create_connection((address, port), timeout=_REACH_S) as link:
                if link.makefile("rb").read(_LARGE).strip() == nonce.encode():
                    routes.append((address, link.getsockname()[0], link.getpeername()[0]))
        except OSError:
            continue
    return routes
