"""This host's network: interfaces, InfiniBand ports, the route to a master, whether a port is free, name resolution.

Nothing is sent except the resolver's requests, which run in a child with a deadline, as a DNS server may not answer.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ddplaunch.machine import deadline, files
from ddplaunch.machine.facts import InfinibandPort, Interface, PortFact, Route
from ddplaunch.values.resolved import Unavailable

_SIOCGIFCONF, _SIOCGIFFLAGS = 0x8912, 0x8913  # linux/sockios.h
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40  # linux/if.h
#: Prefixes of interfaces for containers and virtual machines; they lead to no other host.
_BRIDGES = ("docker", "br-", "virbr", "cni", "flannel", "cali", "veth", "podman", "lxc", "lxd")
_IFREQ_BYTES = 40 if struct.calcsize("P") == 8 else 32


def probe_interfaces(root: Path = Path("/")) -> tuple[Interface, ...]:
    """Return this network namespace's interfaces in the kernel's order; ``up`` means that it carries traffic.

    /proc/net and ioctls follow the process's namespace; /sys, which may be mounted from another, is only read for the
    speed (Mbit/s).
    """
    addresses: dict[str, list[str]] = {}
    for name, address in [*ipv4_addresses(), *_ipv6_addresses(root)]:
        addresses.setdefault(name, []).append(address)
    interfaces = []
    for line in (files.read(f"{root}/proc/net/dev") or "").splitlines()[2:]:
        name = line.partition(":")[0].strip()
        flags = _interface_flags(name)
        speed = files.number(f"{root}/sys/class/net/{name}/speed")
        interfaces.append(
            Interface(
                name=name,
                up=bool(flags & _IFF_UP and flags & _IFF_RUNNING),
                loopback=bool(flags & _IFF_LOOPBACK),
                addresses=tuple(dict.fromkeys(addresses.get(name, ()))),
                speed_mbps=speed if speed is not None and speed > 0 else None,
            )
        )
    return tuple(interfaces)


def _interface_flags(name: str) -> int:
    """Return the IFF_ flags of an interface (netdevice(7)), or 0 if it is gone."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            reply = fcntl.ioctl(handle, _SIOCGIFFLAGS, struct.pack("16s24x", name.encode()))
        except OSError:
            return 0
    return int(struct.unpack_from("H", reply, 16)[0])


def ipv4_addresses() -> list[tuple[str, str]]:
    """Return (interface, address) for every IPv4 address; a label such as ``eth0:1`` belongs to ``eth0``."""
    import fcntl

    room = array.array("B", bytes(_IFREQ_BYTES * 256))
    start, length = room.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        reply = fcntl.ioctl(handle, _SIOCGIFCONF, struct.pack("iP", length, start))
    used = struct.unpack("iP", reply)[0]
    data = room.tobytes()
    addresses = []
    for offset in range(0, used, _IFREQ_BYTES):
        label = data[offset : offset + 16].partition(b"\0")[0].decode()
        addresses.append((label.partition(":")[0], socket.inet_ntoa(data[offset + 20 : offset + 24])))
    return addresses


def _ipv6_addresses(root: Path) -> list[tuple[str, str]]:
    addresses = []
    for line in (files.read(f"{root}/proc/net/if_inet6") or "").splitlines():
        fields = line.split()
        addresses.append((fields[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))))
    return addresses


def probe_infiniband(root: Path = Path("/")) -> tuple[InfinibandPort, ...]:
    """Return the ports of InfiniBand and RoCE adapters; of a state like "4: ACTIVE", only the word is kept."""
    base = f"{root}/sys/class/infiniband"
    return tuple(
        InfinibandPort(
            device=device,
            port=int(port),
            state=(files.read(f"{base}/{device}/ports/{port}/state") or "unknown").rpartition(": ")[2],
            link_layer=files.read(f"{base}/{device}/ports/{port}/link_layer") or "unknown",
        )
        for device in files.names(base)
        for port in files.names(f"{base}/{device}/ports")
        if port.isdigit()
    )


def probe_route(
    destination: str, addresses: tuple[str, ...] | Unavailable, interfaces: tuple[Interface, ...]
) -> Route | Unavailable:
    """Return the kernel's route to the first reachable one of ``addresses``, to which ``destination`` resolves.

    Connecting a UDP socket only looks up the route and sends nothing (connect(2)). This host may resolve its own name
    to 127.0.1.1 while others resolve it to its network address: if the host has only one network, that one is returned.
    """
    if isinstance(addresses, Unavailable):
        return addresses
    reason = "it has no address"
    for address in addresses:
        try:
            local = _local_address(address)
        except OSError as error:
            reason = error.strerror or str(error)
            continue
        # a host name may resolve to loopback (as on Debian), but does not mean it
        means_loopback = destination.startswith(("127.", "localhost", "ip6-l")) or ":" in destination
        if local.startswith("127.") and not means_loopback and (network := _only_network(interfaces)):
            return Route(destination, *network, True)
        own_addresses = {own_address for interface in interfaces for own_address in interface.addresses}
        bare = address.partition("%")[0]
        # 127.0.1.1 and similar addresses are local without being listed
        loopback = "lo" if local.startswith("127.") else None
        holder = next((interface.name for interface in interfaces if local in interface.addresses), loopback)
        is_local = bare in own_addresses or bare == "::1" or bare.startswith("127.")
        return Route(destination, holder, local, is_local)
    return Unavailable(f"this host has no route to `{destination}`: {reason}")


def _only_network(interfaces: tuple[Interface, ...]) -> tuple[str, str] | None:
    """Return interface and address of this host's only network that others can reach; else None."""
    networks = [
        (interface.name, address)
        for interface in interfaces
        if interface.up and not interface.loopback and not interface.name.startswith(_BRIDGES)
        for address in interface.addresses[:1]
        if not address.startswith("fe80:")
    ]
    return networks[0] if len(networks) == 1 else None


def _local_address(address: str) -> str:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as handle:
        handle.connect((address, 9))
        return str(handle.getsockname()[0]).partition("%")[0]


_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT)


def probe_port(port: int, root: Path = Path("/")) -> PortFact:
    """Return whether a store could listen on ``port`` on all addresses; if not, also the holder, if /proc shows it.

    Connections in TIME_WAIT do not count. The port is free again on return.
    """
    try:
        bound(port).close()
        return PortFact(port, free=True)
    except OSError as problem:
        error = problem
    if error.errno == errno.EACCES:
        first = files.number(f"{root}/proc/sys/net/ipv4/ip_unprivileged_port_start") or 1024
        text = f"{error.strerror}: ports below {first} need root or CAP_NET_BIND_SERVICE"
        return PortFact(port, free=False, error=text)
    from ddplaunch.machine.processes.orphans import command_text  # these are rarely needed
    from ddplaunch.machine.processes.process_table import read_process

    text, pid = error.strerror or str(error), _holder(port)
    holder = None if pid is None else read_process(pid)
    if holder is None:
        return PortFact(port, False, text, pid)
    return PortFact(port, False, text, pid, files.user_name(holder.uid, str(root)), command_text(holder))


def bound(port: int, backlog: int | None = None) -> socket.socket:
    """Return a socket bound to ``port`` on all addresses like torch's TCPStore: IPv6 for both families, else IPv4.

    Listens if ``backlog`` is given. Raises OSError if the port is not available. torch/csrc/distributed/c10d/socket.cpp
    """
    problem = OSError()
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        with ExitStack() as stack:
            try:
                server = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                server.bind((address, port))
                if backlog is not None:
                    server.listen(backlog)
                stack.pop_all()
                return server
            except OSError as error:
                problem = error
                if error.errno not in _NO_IPV6:
                    break
    raise problem


def _holder(port: int) -> int | None:
    """Return the pid of a process that listens on the port, else of one with a connection from it."""
    import psutil  # 17 ms, paid only if the port is taken

    try:
        sockets = [
            conn for conn in psutil.net_connections("tcp") if conn.pid and conn.laddr and conn.laddr.port == port
        ]
    except (psutil.Error, OSError):
        return None
    sockets.sort(key=lambda conn: conn.status != psutil.CONN_LISTEN)
    return sockets[0].pid if sockets else None


def look_up(name: str, deadline_s: float, root: Path = Path("/")) -> Callable[[], tuple[str, ...] | Unavailable]:
    """Begin to resolve ``name``, and return a function that waits for the answer at most ``deadline_s`` seconds.

    It returns the addresses in the resolver's order, or why there are none. An IP address or a name in /etc/hosts needs
    no resolver.
    """
    _, numeric = _ask(os.fsencode(name), socket.AI_NUMERICHOST)  # as bytes: with text it imports idna
    addresses_at_hand = (name,) if numeric else in_hosts_file(files.read(f"{root}/etc/hosts") or "", name)
    if addresses_at_hand:
        return lambda: addresses_at_hand
    child = deadline.start(lambda: _ask(name))

    def finish() -> tuple[str, ...] | Unavailable:
        result = deadline.collect([child], deadline_s)[0]
        if result.error is not None:
            return Unavailable(f"`{name}` could not be resolved: {result.error}")
        error, addresses = result.value
        return tuple(addresses) if error is None else Unavailable(f"`{name}` does not resolve: {error}")

    return finish


def in_hosts_file(text: str, name: str) -> tuple[str, ...]:
    """Return the addresses of ``name`` in hosts(5) text, in order, each once."""
    addresses: dict[str, None] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if name.lower() in (word.lower() for word in words[1:]):
            addresses[words[0]] = None
    return tuple(addresses)


def _ask(name: str | bytes, flags: int = 0) -> tuple[str | None, tuple[str, ...]]:
    try:
        infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as error:
        return (getattr(error, "strerror", None) or str(error), ())
    return (None, tuple(dict.fromkeys(str(info[4][0]) for info in infos)))
