"""The network family: ports, interfaces, InfiniBand, names and addresses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddplaunch.checks.connectivity import CHECKS
from ddplaunch.machine.facts import HostFacts, InfinibandPort, Interface, PortFact, Route
from ddplaunch.machine.network import probe_port
from ddplaunch.planning.launch import Launch, Variable
from ddplaunch.planning.options import Options
from ddplaunch.values.finding import Severity
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from tests.checks.cases import NO_LAUNCH, NO_SCRIPT, found, outcome_of, silent_when_healthy
from tests.checks.healthy import FLAG, healthy_facts, healthy_launch, healthy_network, topology

CPU = Resolved("cpu", FLAG)
DOCKER0 = Interface("docker0", False, False, ("172.17.0.1",))
TAKEN = PortFact(29500, False, "Address already in use", 4242, "eve", "python train.py")
HERE = Route("10.0.0.5", "lo", "10.0.0.5", True)
THERE = Route("10.0.0.9", "eth0", "10.0.0.5", False)


def several(node_rank: int = 0, master: str = "10.0.0.5", **replace: Any) -> Launch:
    shape = topology(8, 2, node_rank=Resolved(node_rank, FLAG), master_addr=Resolved(master, FLAG))
    return healthy_launch(topology=shape, **replace)


def test_healthy() -> None:
    silent_when_healthy(CHECKS)


def test_port_taken_names_the_holder() -> None:
    finding = found(CHECKS, "port-taken", healthy_facts(master_port=TAKEN))
    assert finding and finding.severity is Severity.ERROR
    assert finding.what == "port 29500 is in use by pid 4242 of eve: python train.py"
    assert "a free port is found" in finding.fix
    over_nodes = found(CHECKS, "port-taken", healthy_facts(master_port=TAKEN), several())
    assert over_nodes and "on every node" in over_nodes.fix


def test_port_taken_says_who_named_the_port() -> None:
    port = Resolved(29500, Source("environment", "MASTER_PORT"))
    launch = healthy_launch(topology=replace(topology(8), master_port=port))
    finding = found(CHECKS, "port-taken", healthy_facts(master_port=TAKEN), launch)
    assert finding and finding.where == ("MASTER_PORT from the shell's environment",)
    assert finding.fix.startswith("`unset MASTER_PORT`, and a free port is found")
    by_flag = found(CHECKS, "port-taken", healthy_facts(master_port=TAKEN))
    assert by_flag and by_flag.where == ("--master-port",) and "MASTER_PORT" not in by_flag.fix


def test_port_taken_by_somebody_invisible() -> None:
    facts = healthy_facts(master_port=PortFact(29500, False, "Address already in use"))
    finding = found(CHECKS, "port-taken", facts, NO_LAUNCH, NO_SCRIPT)
    assert finding and "cannot see" in finding.what


def test_port_taken_on_a_real_socket() -> None:
    import os
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        finding = found(CHECKS, "port-taken", healthy_facts(master_port=probe_port(port)))
        assert finding and f"pid {os.getpid()}" in finding.what
    assert found(CHECKS, "port-taken", healthy_facts(master_port=probe_port(port))) is None


def test_port_privileged() -> None:
    denied = healthy_facts(master_port=PortFact(80, False, "Permission denied: ports below 1024 need root"))
    finding = found(CHECKS, "port-privileged", denied)
    assert finding and "port 80" in finding.what
    assert found(CHECKS, "port-taken", denied) is None
    for port in (TAKEN, PortFact(80, True)):
        assert found(CHECKS, "port-privileged", healthy_facts(master_port=port)) is None
    assert outcome_of(CHECKS, "port-privileged").status == "skipped"


@pytest.mark.parametrize(
    ("name", "value", "missing"),
    [
        ("NCCL_SOCKET_IFNAME", "ib0", True),
        ("NCCL_SOCKET_IFNAME", "=eth", True),
        ("NCCL_SOCKET_IFNAME", "=eth0", False),
        ("NCCL_SOCKET_IFNAME", "eth", False),
        ("NCCL_SOCKET_IFNAME", "ib,eth", False),
        ("NCCL_SOCKET_IFNAME", "eth0:12345", False),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", False),
        ("GLOO_SOCKET_IFNAME", "eth", True),
        ("GLOO_SOCKET_IFNAME", "eth0,ib0", True),
        ("GLOO_SOCKET_IFNAME", "eth0", False),
    ],
)
def test_interface_missing_reads_names_as_the_library_does(name: str, value: str, missing: bool) -> None:
    facts = healthy_facts(environment={name: value})
    launch = healthy_launch() if name.startswith("NCCL") else healthy_launch(device=CPU)
    for chosen, script in ((launch, None), (NO_LAUNCH, NO_SCRIPT)):
        finding = found(CHECKS, "interface-missing", facts, chosen, script)
        assert (finding is not None) is missing
        if finding:
            assert f"{name} is {value}" in finding.what and "lo, eth0" in finding.why
            assert "`--socket-ifname eth0`" in finding.fix


def test_interface_missing_by_option_and_for_the_library_that_runs() -> None:
    option = Options(socket_ifname=Resolved("ib0", Source("flag", "--socket-ifname")))
    finding = found(CHECKS, "interface-missing", launch=healthy_launch(options=option))
    assert finding and finding.what == "--socket-ifname is ib0, but this host has no interface ib0"
    unused = healthy_facts(environment={"GLOO_SOCKET_IFNAME": "ib0"})
    assert found(CHECKS, "interface-missing", unused, healthy_launch()) is None


def test_interface_down() -> None:
    network = healthy_network(interfaces=(*healthy_network().interfaces, DOCKER0))
    facts = healthy_facts(network=network, environment={"NCCL_SOCKET_IFNAME": "docker"})
    finding = found(CHECKS, "interface-down", facts)
    assert finding and finding.severity is Severity.WARNING and "docker0 is down" in finding.what
    over_nodes = found(CHECKS, "interface-down", facts, several())
    assert over_nodes and over_nodes.severity is Severity.ERROR
    up = healthy_facts(network=network, environment={"NCCL_SOCKET_IFNAME": "docker,eth"})
    assert found(CHECKS, "interface-down", up) is None


ACTIVE, DOWN = InfinibandPort("mlx5_0", 1, "ACTIVE", "InfiniBand"), InfinibandPort("mlx5_1", 1, "DOWN", "InfiniBand")
ROCE_DOWN = InfinibandPort("mlx5_2", 1, "DOWN", "Ethernet")


@pytest.mark.parametrize(
    ("ports", "words"),
    [
        ((ACTIVE, DOWN), "mlx5_1:1 is DOWN; 1 of 2 ports active"),
        ((DOWN,), "0 of 1 ports active"),
        ((ACTIVE, ROCE_DOWN), None),
        ((ACTIVE,), None),
        ((), None),
    ],
)
def test_infiniband_port_down(ports: tuple[InfinibandPort, ...], words: str | None) -> None:
    facts = healthy_facts(network=healthy_network(infiniband=ports))
    for launch, script in ((several(), None), (NO_LAUNCH, NO_SCRIPT)):
        finding = found(CHECKS, "infiniband-port-down", facts, launch, script)
        assert (finding is None) if words is None else (finding is not None and words in finding.what)


def test_infiniband_port_down_is_silent_where_the_fabric_is_not_used() -> None:
    network = healthy_network(infiniband=(ACTIVE, DOWN))
    facts = healthy_facts(network=network)
    assert found(CHECKS, "infiniband-port-down", facts, healthy_launch()) is None
    assert found(CHECKS, "infiniband-port-down", facts, several(device=CPU)) is None
    off = healthy_facts(network=network, environment={"NCCL_IB_DISABLE": "1"})
    assert found(CHECKS, "infiniband-port-down", off, several()) is None


def named(*addresses: str) -> HostFacts:
    return HostFacts("gpu-node-1", addresses, "6.8.0", None, "ada")


NAMELESS = HostFacts("gpu-node-1", Unavailable("Name or service not known"), "6.8.0", None, "ada")
GLOO_NAMED = (Variable("GLOO_SOCKET_IFNAME", "eth0", Source("detected"), "on the route"),)


def test_host_name_unresolvable() -> None:
    facts = healthy_facts(host=NAMELESS)
    in_doctor = found(CHECKS, "host-name-unresolvable", facts, NO_LAUNCH, NO_SCRIPT)
    assert in_doctor and in_doctor.severity is Severity.WARNING and "Name or service not known" in in_doctor.what
    over_nodes = found(CHECKS, "host-name-unresolvable", facts, several())
    assert over_nodes and over_nodes.severity is Severity.ERROR
    assert found(CHECKS, "host-name-unresolvable", facts, healthy_launch()) is None
    assert found(CHECKS, "host-name-unresolvable", facts, several(environment=GLOO_NAMED)) is None


def test_host_name_loopback() -> None:
    facts = healthy_facts(host=named("127.0.1.1"))
    finding = found(CHECKS, "host-name-loopback", facts, several(device=CPU))
    assert finding and finding.severity is Severity.ERROR and "127.0.1.1" in finding.what
    with_nccl = found(CHECKS, "host-name-loopback", facts, several())
    assert with_nccl and with_nccl.severity is Severity.WARNING
    assert found(CHECKS, "host-name-loopback", facts, several(device=CPU, environment=GLOO_NAMED)) is None
    assert found(CHECKS, "host-name-loopback", facts, healthy_launch()) is None
    assert found(CHECKS, "host-name-loopback", healthy_facts(host=named("127.0.1.1", "10.0.0.5")), several()) is None


def routed(route: Route | Unavailable) -> Any:
    return healthy_facts(network=healthy_network(route_to_master=route))


def test_master_addr_unroutable() -> None:
    facts = routed(Unavailable("this host has no route to `10.0.0.9`: Network is unreachable"))
    finding = found(CHECKS, "master-addr-unroutable", facts, several(1, "10.0.0.9"))
    assert finding and "Network is unreachable" in finding.what and finding.severity is Severity.ERROR
    in_pod = replace(facts, host=replace(facts.host, container="kubernetes"))
    assert found(CHECKS, "master-addr-unroutable", in_pod, several(1, "10.0.0.9")) is None
    assert found(CHECKS, "master-addr-unroutable", routed(THERE), several(1, "10.0.0.9")) is None
    assert found(CHECKS, "master-addr-unroutable") is None


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "127.0.1.1", "::1", "[::1]"])
def test_master_addr_is_loopback(address: str) -> None:
    code = "master-addr-is-loopback-for-several-nodes"
    finding = found(CHECKS, code, launch=several(0, address))
    assert finding and finding.what == f"master address {address} for 2 nodes"
    one = healthy_launch(topology=topology(8, master_addr=Resolved(address, FLAG)))
    assert found(CHECKS, code, launch=one) is None


def test_master_addr_of_another_host_is_no_loopback() -> None:
    for address in ("10.0.0.5", "node-1", "fe80::1%eth0"):
        assert found(CHECKS, "master-addr-is-loopback-for-several-nodes", launch=several(0, address)) is None


def test_node_rank_0_not_master() -> None:
    code = "node-rank-0-not-master"
    finding = found(CHECKS, code, routed(THERE), several(0, "10.0.0.9"))
    assert finding and finding.severity is Severity.ERROR and "`--master-addr 10.0.0.5`" in finding.fix
    swapped = found(CHECKS, code, routed(HERE), several(1, "10.0.0.5"))
    assert swapped and swapped.severity is Severity.WARNING and "this is node rank 1" in swapped.what
    assert found(CHECKS, code, routed(HERE), several(0, "10.0.0.5")) is None
    assert found(CHECKS, code, routed(THERE), several(1, "10.0.0.9")) is None
    assert found(CHECKS, code, routed(HERE), several(1, "127.0.0.1")) is None
    launch = several(1, "10.0.0.5")
    by_task = replace(launch.topology, node_rank=Resolved(1, Source("Slurm", "SLURM_PROCID")))
    assert found(CHECKS, code, routed(HERE), replace(launch, topology=by_task)) is None


def test_node_rank_0_in_a_container_may_have_a_published_port() -> None:
    container = HostFacts("c0ffee", ("172.17.0.2",), "6.8.0", "docker", "root")
    facts = healthy_facts(host=container, network=healthy_network(route_to_master=THERE))
    finding = found(CHECKS, "node-rank-0-not-master", facts, several(0, "10.0.0.9"))
    assert finding and finding.severity is Severity.WARNING
