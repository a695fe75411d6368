"""Whether a TCP port can be bound here, and who holds it if not; refuses to end or contact the holder."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from ddplaunch.probes import files
from ddplaunch.probes.facts import PortFact

_LISTEN, _TIME_WAIT = "0A", "06"  # include/net/tcp_states.h
_COMMAND_CHARS = 200


def probe_port(port: int, root: Path = Path("/")) -> PortFact:
    """Return whether a store could listen on ``port`` on all addresses; if not, whose it is as far as /proc tells.

    Binds as torch's TCPStore does (torch/csrc/distributed/c10d/socket.cpp): IPv6 for both families, else IPv4,
    SO_REUSEADDR set, so connections in TIME_WAIT do not count. The port is free again on return.
    """
    if not 0 <= port <= 65535:
        return PortFact(port, free=False, error="a port is a number from 0 to 65535")
    error = _bind_error(socket.AF_INET6, "::", port) or _bind_error(socket.AF_INET, "0.0.0.0", port)
    if error is None:
        return PortFact(port, free=True)
    if error.errno == errno.EACCES:
        first = files.number(f"{root}/proc/sys/net/ipv4/ip_unprivileged_port_start") or 1024
        text = f"{error.strerror}: ports below {first} need root or CAP_NET_BIND_SERVICE"
        return PortFact(port, free=False, error=text)
    pid = _holder(port, root)
    user, command = _describe(pid, root) if pid is not None else (None, None)
    return PortFact(port, False, error.strerror or str(error), pid, user, command)


def _bind_error(family: socket.AddressFamily, address: str, port: int) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            trial.bind((address, port))
    except OSError as error:
        missing = error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT)
        if family == socket.AF_INET6 and missing:  # a kernel without IPv6
            return None
        return error
    return None


def _holder(port: int, root: Path) -> int | None:
    inodes = _inodes(port, root)
    if not inodes:
        return None
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for name in files.names(f"{root}/proc"):
        if name.isdigit() and _holds(f"{root}/proc/{name}/fd", wanted):
            return int(name)
    return None


def _inodes(port: int, root: Path) -> set[str]:
    """Return the inodes of sockets on the local port: listeners, else those of outgoing connections."""
    listening, other = set(), set()
    for table in ("tcp", "tcp6"):
        for line in (files.read(f"{root}/proc/net/{table}") or "").splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or int(fields[1].rpartition(":")[2], 16) != port or fields[9] == "0":
                continue
            if fields[3] == _LISTEN:
                listening.add(fields[9])
            elif fields[3] != _TIME_WAIT:
                other.add(fields[9])
    return listening or other


def _holds(folder: str, wanted: set[str]) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(_target(entry.path) in wanted for entry in entries)
    except OSError:  # another user's process, or one that just ended
        return False


def _target(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115  a Path for each of many thousand links is slow
    except OSError:
        return ""


def _describe(pid: int, root: Path) -> tuple[str | None, str | None]:
    try:
        uid = (root / f"proc/{pid}").stat().st_uid
    except OSError:
        return None, None
    command = (files.read(f"{root}/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
    command = command or files.read(f"{root}/proc/{pid}/comm") or ""
    return files.user_name(uid, str(root)), command[:_COMMAND_CHARS] or None
