"""Interfaces, routes, names and ports: real sockets of this machine and made-up kernel files."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddplaunch.machine import network
from ddplaunch.machine.facts import InfinibandPort, Interface, Route
from ddplaunch.machine.network import ipv4_addresses, probe_infiniband, probe_interfaces, probe_port, probe_route
from ddplaunch.values.resolved import Unavailable
from tests.machine.cpu_trees import write


def test_made_up_interfaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "proc/net/dev", "Inter-|\n face |\n  eth0: 1 2\n  ib0: 1 2\n")
    write(tmp_path / "proc/net/if_inet6", "fd000000000000000000000000000002 04 40 00 82     eth0\n")
    write(tmp_path / "sys/class/net/eth0/speed", "100000\n")
    write(tmp_path / "sys/class/net/ib0/speed", "-1\n")
    monkeypatch.setattr(network, "_interface_flags", {"eth0": 0x1 | 0x40, "ib0": 0x1}.__getitem__)
    monkeypatch.setattr(network, "ipv4_addresses", lambda: [("eth0", "10.0.0.2"), ("eth0", "10.0.0.3")])
    assert probe_interfaces(tmp_path) == (
        Interface("eth0", True, False, ("10.0.0.2", "10.0.0.3", "fd00::2"), 100000),
        Interface("ib0", False, False, ()),
    )


def test_infiniband(tmp_path: Path) -> None:
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    write(port / "state", "4: ACTIVE\n")
    write(port / "link_layer", "InfiniBand\n")
    write(port.parent / "2/phys_state", "")
    write(port.parent / "README", "")
    unknown = InfinibandPort("mlx5_0", 2, "unknown", "unknown")
    assert probe_infiniband(tmp_path) == (InfinibandPort("mlx5_0", 1, "ACTIVE", "InfiniBand"), unknown)
    assert probe_infiniband(tmp_path / "none") == ()


def test_route_to_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    interfaces = probe_interfaces()
    for name in ("127.0.1.1", "localhost"):
        route = probe_route(name, ("127.0.1.1",), interfaces)
        assert isinstance(route, Route) and route.is_local and route.interface == "lo"
    monkeypatch.setattr(network, "_local_address", lambda address: address)
    for address, is_local in (("::1", True), ("fd00::1%eth0", True), ("fd00::2", False)):
        route = probe_route("me", (address,), (Interface("eth0", True, False, ("fd00::1",)),))
        assert isinstance(route, Route) and route.is_local is is_local
    monkeypatch.undo()
    for name, address in ipv4_addresses():
        route = probe_route("me", (address,), interfaces)
        assert isinstance(route, Route) and route.is_local, name
    # its own name stands for the only network of the host; where there are two, nobody knows
    assert probe_route("x", Unavailable("`x` does not resolve"), ()) == Unavailable("`x` does not resolve")
    assert probe_route("x", (), ()) == Unavailable("this host has no route to `x`: it has no address")
    lo, docker = Interface("lo", True, True, ("127.0.0.1",)), Interface("docker0", True, False, ("172.17.0.1",))
    down, one = Interface("eth1", False, False, ("10.9.0.1",)), Interface("eth0", True, False, ("10.0.0.5", "fd00::5"))
    alone = probe_route("node-1", ("127.0.1.1",), (lo, docker, down, one))
    assert alone == Route("node-1", "eth0", "10.0.0.5", True)
    both = probe_route("node-1", ("127.0.1.1",), (lo, one, Interface("ib0", True, False, ("10.1.0.5",))))
    assert both == Route("node-1", "lo", "127.0.0.1", True)


def test_hosts_file_answers_without_a_resolver(tmp_path: Path) -> None:
    write(tmp_path / "etc/hosts", "127.0.1.1 node-1.example Node-1 # node-2\n10.0.0.1\tnode-1\n")
    assert network.look_up("node-1", 0, tmp_path)() == ("127.0.1.1", "10.0.0.1")
    assert network.in_hosts_file("127.0.1.1 node-1 # node-2\n", "node-2") == ()
    for address in ("10.0.0.1", "fe80::1%lo", "::1"):
        assert network.look_up(address, 0)() == (address,), "not looked for"


def test_resolver_in_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "127.0.0.1" in str(network.look_up("localhost", 20, tmp_path)())
    unknown = network.look_up("a..b", 20, tmp_path)()
    assert isinstance(unknown, Unavailable) and "`a..b` does not resolve" in unknown.reason
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, flags, **__: [] if flags else time.sleep(600))
    late = network.look_up("node-9", 0.1, tmp_path)()
    assert late == Unavailable("`node-9` could not be resolved: no answer within 0.1 s")


HOLD = """
import socket, sys, time
s = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print(s.getsockname()[1], flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("address", ["127.0.0.1", "::"])
def test_a_taken_port_names_its_holder(address: str) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, address], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        line = holder.stdout.readline()
        if not line:
            pytest.skip(f"{address} cannot be bound here")
        fact = probe_port(int(line))
    finally:
        holder.kill()
        holder.communicate()
    assert (fact.free, fact.error, fact.holder_pid) == (False, "Address already in use", holder.pid)
    assert fact.holder_command is not None and fact.holder_command.startswith(sys.executable)
    assert fact.holder_user


@pytest.mark.root
def test_a_privileged_port_is_explained() -> None:
    code = "import os; os.setgid(65534); os.setuid(65534)\nfrom ddplaunch.machine.network import probe_port as p"
    run = [sys.executable, "-c", f"from ddplaunch.machine import network\n{code}\nprint(p(1).error)"]
    text = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True).stdout
    if "None" in text:
        pytest.skip("unprivileged ports start below 1 here")
    assert text.startswith("Permission denied: ports below ") and "CAP_NET_BIND_SERVICE" in text
