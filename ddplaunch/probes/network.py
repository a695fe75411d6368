"""Network interfaces, InfiniBand ports and the route to a master; refuses to send a single packet."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Callable
from pathlib import Path

from ddplaunch.probes import files
from ddplaunch.probes.facts import InfinibandPort, Interface, Route
from ddplaunch.values import Unavailable

_SIOCGIFCONF, _SIOCGIFFLAGS = 0x8912, 0x8913  # linux/sockios.h
_IFF_UP, _IFF_LOOPBACK, _IFF_RUNNING = 0x1, 0x8, 0x40  # linux/if.h
#: Of containers and virtual machines; no other host is behind them.
_BRIDGES = ("docker", "br-", "virbr", "cni", "flannel", "cali", "veth", "podman", "lxc", "lxd")
_IFREQ_BYTES = 40 if struct.calcsize("P") == 8 else 32


def probe_interfaces(
    root: Path = Path("/"),
    flags_of: Callable[[str], int] | None = None,
    ipv4: Callable[[], list[tuple[str, str]]] | None = None,
) -> tuple[Interface, ...]:
    """Return this network namespace's interfaces in the kernel's order; ``up`` means that it carries traffic.

    /proc/net and ioctls follow the process's namespace; a /sys mounted elsewhere may not, so only the speed
    (Mbit/s) is read there.
    """
    addresses: dict[str, list[str]] = {}
    for name, address in [*(ipv4 or ipv4_addresses)(), *_ipv6_addresses(root)]:
        addresses.setdefault(name, []).append(address)
    found = []
    for line in (files.read(f"{root}/proc/net/dev") or "").splitlines()[2:]:
        name = line.partition(":")[0].strip()
        flags = (flags_of or interface_flags)(name)
        speed = files.number(f"{root}/sys/class/net/{name}/speed")
        found.append(
            Interface(
                name=name,
                up=bool(flags & _IFF_UP and flags & _IFF_RUNNING),
                loopback=bool(flags & _IFF_LOOPBACK),
                addresses=tuple(dict.fromkeys(addresses.get(name, ()))),
                speed_mbps=speed if speed is not None and speed > 0 else None,
            )
        )
    return tuple(found)


def interface_flags(name: str) -> int:
    """Return the IFF_ flags of an interface (netdevice(7)), 0 if it is gone."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        try:
            answer = fcntl.ioctl(handle, _SIOCGIFFLAGS, struct.pack("16s24x", name.encode()))
        except OSError:
            return 0
    return int(struct.unpack_from("H", answer, 16)[0])


def ipv4_addresses() -> list[tuple[str, str]]:
    """Return (interface, address) for every IPv4 address; a label such as ``eth0:1`` counts for ``eth0``."""
    room = array.array("B", bytes(_IFREQ_BYTES * 256))
    start, length = room.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        answer = fcntl.ioctl(handle, _SIOCGIFCONF, struct.pack("iP", length, start))
    used = struct.unpack("iP", answer)[0]
    data = room.tobytes()
    found = []
    for offset in range(0, used, _IFREQ_BYTES):
        label = data[offset : offset + 16].partition(b"\0")[0].decode()
        found.append((label.partition(":")[0], socket.inet_ntoa(data[offset + 20 : offset + 24])))
    return found


def _ipv6_addresses(root: Path) -> list[tuple[str, str]]:
    found = []
    for line in (files.read(f"{root}/proc/net/if_inet6") or "").splitlines():
        fields = line.split()
        found.append((fields[5], socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0]))))
    return found


def probe_infiniband(root: Path = Path("/")) -> tuple[InfinibandPort, ...]:
    """Return the ports of InfiniBand and RoCE adapters; state is the word of "4: ACTIVE"."""
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
    """Return how the kernel would reach the first reachable of ``addresses``, which ``destination`` resolves to.

    Connecting a UDP socket only looks up the route; nothing is sent (connect(2)). A name that means 127.0.1.1 to this
    host means its network to others: where there is only one, it is taken.
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
        if local.startswith("127.") and not _means_loopback(destination) and (alone := _only_network(interfaces)):
            return Route(destination, *alone, True)
        own = {known for interface in interfaces for known in interface.addresses}
        bare = address.partition("%")[0]
        holder = next((each.name for each in interfaces if local in each.addresses), None)
        is_local = bare in own or bare == "::1" or bare.startswith("127.")
        return Route(destination, holder or _loopback(local, interfaces), local, is_local)
    return Unavailable(f"this host has no route to `{destination}`: {reason}")


def _means_loopback(destination: str) -> bool:
    """Whether somebody wrote loopback, and did not name a host that means it to itself alone, as Debian has it."""
    return destination.startswith(("127.", "localhost", "ip6-l")) or ":" in destination


def _only_network(interfaces: tuple[Interface, ...]) -> tuple[str, str] | None:
    """Return interface and address of the one network by which others can reach this host; None unless it is one."""
    found = [
        (each.name, address)
        for each in interfaces
        if each.up and not each.loopback and not each.name.startswith(_BRIDGES)
        for address in each.addresses[:1]
        if not address.startswith("fe80:")
    ]
    return found[0] if len(found) == 1 else None


def _local_address(address: str) -> str:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as handle:
        handle.connect((address, 9))
        return str(handle.getsockname()[0]).partition("%")[0]


def _loopback(local: str, interfaces: tuple[Interface, ...]) -> str | None:
    """Return the loopback interface for 127.0.1.1 and the like, which are local without being listed."""
    if not local.startswith("127."):
        return None
    return next((each.name for each in interfaces if each.loopback), None)
