"""Faults in one host's network, made with tc and ip inside its namespace.

Packets are lost on the way between two ports of the switch, where no sender notices: a queue that drops in front of a
sender's own interface tells its TCP so. Kernels without netem get a class that drops what a random number picks.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.hosts.namespaces import INTERFACE, Node, in_network
from tests.ssh.lab import Lab

_ANY = "32 0 0 4294963256,37 0 1 {above},6 0 0 4294967295,6 0 0 0"  # classic BPF: a random number above it matches
_FROM = "40 0 0 12,21 0 5 2048,32 0 0 26,21 0 3 {address}"  # IPv4 from this address, else behind the above


def lose(lab: Lab, host: Node, share: float) -> None:
    """Lose ``share`` of what is sent to and from ``host``, inside the switch."""
    own = f"v{lab.hosts.index(host)}"
    switch = _switch(lab)
    netem = f"root netem loss {share:.0%}"
    if in_network(switch, *f"tc qdisc replace dev {own} {netem}".split(), check=False).returncode == 0:
        in_network(host.pid, *f"tc qdisc replace dev {INTERFACE} {netem}".split())
        return
    address = int.from_bytes(socket.inet_aton(host.address), "big")
    lost = _ANY.format(above=int((1 - share) * 2**32))
    for port in (f"v{number}" for number in range(len(lab.hosts) + 1)):
        words = lost if port == own else f"{_FROM.format(address=address)},{lost}"
        code = f"{words.count(',') + 1},{words}"
        in_network(switch, *f"tc qdisc replace dev {port} root handle 1: htb default 10 r2q 1000000".split())
        for number in ("10", "66"):
            fast = f"tc class add dev {port} parent 1: classid 1:{number} htb rate 100gbit quantum 60000"
            in_network(switch, *fast.split())
        in_network(switch, *f"tc qdisc add dev {port} parent 1:66 pfifo limit 0".split())
        drops = f"tc filter add dev {port} parent 1: protocol all bpf bytecode"
        in_network(switch, *drops.split(), code, "flowid", "1:66")


def limit(host: Node, rate: str) -> None:
    """Let ``host`` send no more than ``rate``, as tc spells it."""
    words = f"tc qdisc replace dev {INTERFACE} root tbf rate {rate} burst 32kbit latency 400ms"
    in_network(host.pid, *words.split())


def unroute(lab: Lab, host: Node, besides: Node | None = None) -> None:
    """Take the ways between ``host`` and the other hosts away, ``besides`` one; the launcher still reaches it."""
    for other in lab.hosts:
        if other not in (host, besides):
            in_network(host.pid, "ip", "route", "add", "blackhole", other.address)
            in_network(host.pid, "ip", "-6", "route", "add", "blackhole", other.address6)


def _switch(lab: Lab) -> int:
    """Return the pid that holds the switch of this lab: it alone got this file as an argument."""
    name = str(lab.folder / "hosts.switch")
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text(errors="replace").split("\0")
        except OSError:
            continue
        if words[0] == "sh" and name in words:
            return int(path.parent.name)
    pytest.fail("the switch of this lab is gone")
