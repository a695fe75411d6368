"""Faults in one host's network, made with tc and ip inside its namespace.

Packets are lost on the way between two ports of the switch, where no sender notices: a queue that drops in front of a
sender's own interface tells its TCP so. Kernels without netem get a class that drops what a random number picks.
"""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from tests.hosts.namespaces import INTERFACE, Node
from tests.ssh.lab import Lab

_ANY = "32 0 0 4294963256,37 0 1 {above},6 0 0 4294967295,6 0 0 0"  # classic BPF: a random number above it matches
_FROM = "40 0 0 12,21 0 5 2048,32 0 0 26,21 0 3 {address}"  # IPv4 from this address, else behind the above


def lose(lab: Lab, host: Node, share: float) -> None:
    """Lose ``share`` of what is sent to and from ``host``, inside the switch."""
    own = f"v{lab.hosts.index(host)}"
    ports = [f"v{number}" for number in range(len(lab.hosts) + 1)]
    switch = _switch(lab)
    if _tc(switch, "qdisc", "replace", "dev", own, "root", "netem", "loss", f"{share:.0%}").returncode == 0:
        _checked(host.pid, "qdisc", "replace", "dev", INTERFACE, "root", "netem", "loss", f"{share:.0%}")
        return
    address = int.from_bytes(socket.inet_aton(host.address), "big")
    lost = _ANY.format(above=int((1 - share) * 2**32))
    for port in ports:
        words = lost if port == own else f"{_FROM.format(address=address)},{lost}"
        _checked(switch, *f"qdisc replace dev {port} root handle 1: htb default 10 r2q 1000000".split())
        for number in ("10", "66"):
            _checked(switch, *f"class add dev {port} parent 1: classid 1:{number}".split(), *_FAST)
        _checked(switch, *f"qdisc add dev {port} parent 1:66 pfifo limit 0".split())
        code = f"{words.count(',') + 1},{words}"
        _checked(switch, *f"filter add dev {port} parent 1: protocol all bpf bytecode".split(), code, "flowid", "1:66")


_FAST = ("htb", "rate", "100gbit", "quantum", "60000")


def limit(host: Node, rate: str) -> None:
    """Let ``host`` send no more than ``rate``, as tc spells it."""
    _checked(
        host.pid, "qdisc", "replace", "dev", INTERFACE, "root", *f"tbf rate {rate} burst 32kbit latency 400ms".split()
    )


def unroute(lab: Lab, host: Node) -> None:
    """Take the ways between ``host`` and the other hosts away; the launcher still reaches it."""
    for other in lab.hosts:
        if other is not host:
            for words in (
                ("route", "add", "blackhole", other.address),
                ("-6", "route", "add", "blackhole", other.address6),
            ):
                subprocess.run([*_inside(host.pid), "ip", *words], check=True, capture_output=True, timeout=20)


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


def _inside(pid: int) -> list[str]:
    return ["nsenter", "-t", str(pid), "-n", "--"]


def _tc(pid: int, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_inside(pid), "tc", *words], capture_output=True, text=True, timeout=20, check=False)


def _checked(pid: int, *words: str) -> None:
    done = _tc(pid, *words)
    assert done.returncode == 0, f"tc {' '.join(words)}: {done.stderr}"
