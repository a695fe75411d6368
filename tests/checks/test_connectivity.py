"""The network family: ports, interfaces, InfiniBand, names and addresses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ddplaunch.machine.facts import HostFacts, InfinibandPort, Interface, PortFact, Route
from ddplaunch.planning.launch import Launch, Variable
from ddplaunch.planning.options import Options
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from tests.checks.cases import NO_LAUNCH, fires, judged, silent
from tests.checks.healthy import FLAG, healthy_launch, healthy_network, topology

CPU = Resolved("cpu", FLAG)
ON_CPU = healthy_launch(device=CPU)
TAKEN = PortFact(29500, False, "Address already in use", 4242, "eve", "python train.py")
DENIED = PortFact(80, False, "Permission denied: ports below 1024 need root")
BY_VARIABLE = healthy_launch(
    topology=replace(topology(8), master_port=Resolved(29500, Source("environment", "MASTER_PORT")))
)
HERE = Route("10.0.0.5", "lo", "10.0.0.5", True)
THERE = Route("10.0.0.9", "eth0", "10.0.0.5", False)
NOWHERE = Unavailable("this host has no route to `10.0.0.9`: Network is unreachable")
WITH_DOCKER = healthy_network(
    interfaces=(*healthy_network().interfaces, Interface("docker0", False, False, ("172.17.0.1",)))
)


def several(node_rank: int = 0, master: str = "10.0.0.5", **replace: Any) -> Launch:
    shape = topology(8, 2, node_rank=Resolved(node_rank, FLAG), master_addr=Resolved(master, FLAG))
    return healthy_launch(topology=shape, **replace)


BY_TASK = several(1)
BY_TASK = replace(BY_TASK, topology=replace(BY_TASK.topology, node_rank=Resolved(1, Source("Slurm", "SLURM_PROCID"))))
BY_OPTION = healthy_launch(options=Options(socket_ifname=Resolved("ib0", Source("flag", "--socket-ifname"))))


def naming(value: str, library: str = "NCCL") -> dict[str, Any]:
    return {"environment": {f"{library}_SOCKET_IFNAME": value}}


def ports(*infiniband: InfinibandPort, **environment: str) -> dict[str, Any]:
    return {"network": healthy_network(infiniband=infiniband), "environment": environment}


def routed(route: Route | Unavailable) -> dict[str, Any]:
    return {"network": healthy_network(route_to_master=route)}


def named(*addresses: str, container: str | None = None) -> dict[str, Any]:
    return {"host": HostFacts("gpu-node-1", addresses, "6.8.0", container, "ada")}


ACTIVE, DOWN = InfinibandPort("mlx5_0", 1, "ACTIVE", "InfiniBand"), InfinibandPort("mlx5_1", 1, "DOWN", "InfiniBand")
ROCE_DOWN = InfinibandPort("mlx5_2", 1, "DOWN", "Ethernet")
NAMELESS = HostFacts("gpu-node-1", Unavailable("Name or service not known"), "6.8.0", None, "ada")
GLOO_NAMED = (Variable("GLOO_SOCKET_IFNAME", "eth0", Source("detected"), "on the route"),)
UNNAMED = (replace(GLOO_NAMED[0], value=""),)
#: Names of pods come late, and a container may have a published port.
POD, DOCKER = named("10.0.0.5", container="kubernetes"), named("172.17.0.2", container="docker")
AWAY = several(0, "10.0.0.9")
FOR_SEVERAL = "master-addr-is-loopback-for-several-nodes"

CASES = (
    fires("port-taken", "29500 is in use by pid 4242 of eve: python train … a free port", master_port=TAKEN),
    fires("port-taken", "by pid 4242\n", master_port=replace(TAKEN, holder_user=None, holder_command=None)),
    fires("port-taken", "on every node", launch=several(), master_port=TAKEN),
    fires("port-taken", "`unset MASTER_PORT`, and a free port", launch=BY_VARIABLE, master_port=TAKEN),
    fires("port-taken", "cannot see", launch=NO_LAUNCH, master_port=PortFact(29500, False, "Address already in use")),
    silent("port-taken", master_port=DENIED),
    fires("port-privileged", "port 80", master_port=DENIED),
    silent("port-privileged", master_port=PortFact(80, True)),
    *(
        fires("interface-missing", f"{lib}_SOCKET_IFNAME is {value} … lo, eth0 … `--socket-ifname eth0`", **more)
        for lib, value, one in (
            ("NCCL", "ib0", healthy_launch()),
            ("NCCL", "=eth", healthy_launch()),
            ("GLOO", "eth", ON_CPU),
            ("GLOO", "eth0,ib0", ON_CPU),
        )
        for more in ({"launch": one, **naming(value, lib)}, {"launch": NO_LAUNCH, **naming(value, lib)})
    ),
    *(
        silent("interface-missing", "as NCCL reads it", **naming(value))
        for value in ("=eth0", "eth", "ib,eth", "eth0:12345", "^docker,lo")
    ),
    silent("interface-missing", launch=ON_CPU, **naming("eth0", "GLOO")),
    silent("interface-missing", "NCCL does not read it", **naming("ib0", "GLOO")),
    fires("interface-missing", "--socket-ifname is ib0, but this host has no interface ib0", launch=BY_OPTION),
    fires("interface-down", "docker0 is down", "warning", network=WITH_DOCKER, **naming("docker")),
    fires("interface-down", "docker0 is down", launch=several(), network=WITH_DOCKER, **naming("docker")),
    silent("interface-down", network=WITH_DOCKER, **naming("docker,eth")),
    *(
        fires("infiniband-port-down", words, "warning", launch=launch, **facts)
        for launch in (several(), NO_LAUNCH)
        for words, facts in (
            ("mlx5_1:1 is DOWN; 1 of 2 ports active", ports(ACTIVE, DOWN)),
            ("0 of 1 ports active", ports(DOWN)),
        )
    ),
    *(
        silent("infiniband-port-down", launch=launch, **ports(*infiniband))
        for launch in (several(), NO_LAUNCH)
        for infiniband in ((ACTIVE, ROCE_DOWN), (ACTIVE,), ())
    ),
    silent("infiniband-port-down", "no NCCL", launch=several(device=CPU), **ports(ACTIVE, DOWN)),
    silent("infiniband-port-down", "off", launch=several(), **ports(ACTIVE, DOWN, NCCL_IB_DISABLE="1")),
    fires("host-name-unresolvable", "Name or service not known", "warning", launch=NO_LAUNCH, host=NAMELESS),
    fires("host-name-unresolvable", "gpu-node-1", launch=several(), host=NAMELESS),
    silent("host-name-unresolvable", "one node", host=NAMELESS),
    fires("host-name-loopback", "127.0.1.1", launch=several(device=CPU), **named("127.0.1.1")),
    fires("host-name-loopback", "127.0.1.1", "warning", launch=several(), **named("127.0.1.1")),
    fires("host-name-loopback", "127.0.1.1", launch=several(device=CPU, environment=UNNAMED), **named("127.0.1.1")),
    silent("host-name-loopback", launch=several(device=CPU, environment=GLOO_NAMED), **named("127.0.1.1")),
    silent("host-name-loopback", launch=several(), **named("127.0.1.1", "10.0.0.5")),
    silent("host-name-loopback", "host-name-unresolvable says it", launch=several(), host=NAMELESS),
    fires("master-addr-unroutable", "Network is unreachable", launch=several(1, "10.0.0.9"), **routed(NOWHERE)),
    silent("master-addr-unroutable", launch=several(1, "10.0.0.9"), **routed(NOWHERE), **POD),
    silent("master-addr-unroutable", launch=several(1, "10.0.0.9"), **routed(THERE)),
    *(
        fires(FOR_SEVERAL, f"master address {address} for 2 nodes", launch=several(0, address))
        for address in ("127.0.0.1", "localhost", "127.0.1.1", "::1", "[::1]")
    ),
    silent(FOR_SEVERAL, launch=healthy_launch(topology=topology(8, master_addr=Resolved("::1", FLAG)))),
    *(silent(FOR_SEVERAL, launch=several(0, address)) for address in ("10.0.0.5", "node-1", "fe80::1%eth0")),
    fires("node-rank-0-not-master", "`--master-addr 10.0.0.5`", launch=AWAY, **routed(THERE)),
    fires("node-rank-0-not-master", "this is node rank 1", "warning", launch=several(1), **routed(HERE)),
    fires("node-rank-0-not-master", "10.0.0.9", "warning", launch=AWAY, **routed(THERE), **DOCKER),
    silent("node-rank-0-not-master", launch=several(), **routed(HERE)),
    silent("node-rank-0-not-master", "master-addr-unroutable says it", launch=AWAY, **routed(NOWHERE)),
    silent("node-rank-0-not-master", launch=several(1, "127.0.0.1"), **routed(HERE)),
    silent("node-rank-0-not-master", launch=BY_TASK, **routed(HERE)),
)
test_fires_with_words_and_stays_silent_without = judged(*CASES)
