"""Nodes of a private network on one machine, each with a name, addresses and processes of its own; needs root.

Every node is a process tree in its own network, UTS, mount and PID namespace; the bridge between them lives in a
namespace too. Nothing has a name outside, so two test processes cannot meet. The first process of each node ends when
a pipe from this one closes: whatever becomes of the tests, the kernel then takes the node down with all its processes.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.hosts.launching import clean_environment

OwnName = Literal["address", "loopback", "missing"]
INTERFACE = "fabric7"  # unlike anything that gloo or NCCL would pick by themselves
DECOY = "docker0"  # up, with the same address on every node: what a wrong guess takes

_INIT = """
set -e
read -r pid _ < /proc/self/stat
echo "$1" > /proc/sys/kernel/hostname
mount --bind "$2" /etc/hosts
mount -t proc proc /proc
ip link set lo up
echo "$pid"
cat > /dev/null
exit 0
"""


@dataclass(frozen=True)
class Node:
    """One host: ``pid`` is its first process, seen from outside. ``address6`` is a unique local IPv6 address."""

    name: str
    address: str
    address6: str
    pid: int

    def command(self, argv: Sequence[str], cwd: Path) -> list[str]:
        """Return the command that runs ``argv`` on this node, in ``cwd``."""
        return ["nsenter", "-t", str(self.pid), "-n", "-u", "-m", "-p", "--", "env", "-C", str(cwd), *argv]

    def start(self, argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        """Start ``argv`` on this node with stdout and stderr in one pipe."""
        return subprocess.Popen(
            self.command(argv, cwd),
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
        )

    def run(self, argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run ``argv`` on this node to its end, stdout and stderr apart; two minutes at most."""
        return subprocess.run(
            self.command(argv, cwd), env=dict(environment), capture_output=True, text=True, timeout=120, check=False
        )


def in_network(pid: int, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run ``words`` in the network of process ``pid`` alone: files and process ids stay this machine's."""
    inside = ["nsenter", "-t", str(pid), "-n", "--", *words]
    done = subprocess.run(inside, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0 or not check, f"{' '.join(words)}: {done.stderr}"
    return done


@contextmanager
def nodes(count: int, folder: Path, own_name: OwnName = "address") -> Iterator[tuple[Node, ...]]:
    """Bring up ``count`` connected nodes and take them down again, failures included.

    ``folder`` receives their /etc/hosts. ``own_name`` says what a node's own name resolves to: its address on the
    network, 127.0.1.1 as Debian writes it, or nothing. Raises AssertionError where the kernel refuses.
    """
    with ExitStack() as stack:
        switch = stack.enter_context(_namespaces("switch", _hosts_file(folder, "switch", ())))
        in_network(switch, "ip", "link", "add", "br0", "type", "bridge")
        in_network(switch, "ip", "link", "set", "br0", "up")
        made = []
        for number in range(count):
            name = f"alpha{number}"
            hosts = _hosts_file(folder, name, _hosts(number, count, own_name))
            pid = stack.enter_context(_namespaces(name, hosts))
            made.append(Node(name, _address(number), _address6(number), pid))
            _connect(switch, made[-1], f"v{number}")
        yield tuple(made)


def _address(number: int) -> str:
    return f"10.77.0.{number + 1}"


def _address6(number: int) -> str:
    return f"fd77::{number + 1}"


def _hosts(number: int, count: int, own_name: OwnName) -> tuple[str, ...]:
    """Name every node; the IPv4-mapped form too, or c10d complains of each connection that it cannot name."""
    lines = []
    for other in range(count):
        if other != number or own_name == "address":
            lines += [f"{_address(other)} alpha{other}", f"::ffff:{_address(other)} alpha{other}"]
        elif own_name == "loopback":
            lines.append(f"127.0.1.1 alpha{other}")
    return tuple(lines)


def _hosts_file(folder: Path, name: str, lines: tuple[str, ...]) -> Path:
    path = folder / f"hosts.{name}"
    path.write_text("\n".join(["127.0.0.1 localhost", "::1 localhost", *lines, ""]))
    return path


@contextmanager
def _namespaces(name: str, hosts: Path) -> Iterator[int]:
    """Hold new namespaces; yield their first process's pid. Closing its stdin ends it and everything inside."""
    spaces = ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    process = subprocess.Popen(
        ["unshare", *spaces, "sh", "-c", _INIT, "sh", name, str(hosts)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=clean_environment(),  # the name of the running test may have the words by which processes are found
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        answer = process.stdout.readline()
        if not answer:
            raise OSError(f"the namespaces of {name} could not be made: unshare ended with {process.wait()}")
        yield int(answer)
    finally:
        process.stdin.close()
        try:
            process.wait(timeout=90)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _connect(switch: int, node: Node, port: str) -> None:
    """Join a node to the bridge, and give it the decoy."""
    in_network(switch, "ip", "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", str(node.pid))
    in_network(switch, "ip", "link", "set", port, "master", "br0", "up")
    in_network(node.pid, "ip", "link", "add", DECOY, "type", "bridge")
    in_network(node.pid, "ip", "addr", "add", "172.17.0.1/16", "dev", DECOY)
    in_network(node.pid, "ip", "link", "set", DECOY, "up")
    in_network(node.pid, "ip", "addr", "add", f"{node.address}/24", "dev", INTERFACE)
    in_network(node.pid, "ip", "addr", "add", f"{node.address6}/64", "dev", INTERFACE, "nodad")
    in_network(node.pid, "ip", "link", "set", INTERFACE, "up")
