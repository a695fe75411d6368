"""Checks of whether the nodes of a launch can find each other by name and address; refuses to look at devices."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from ddplaunch.checks.check import Check, declare
from ddplaunch.finding import Finding, error, warning
from ddplaunch.launch.plan import Launch
from ddplaunch.probes.facts import HostFacts, NetworkFacts
from ddplaunch.values import Unavailable

#: Several tasks of these launchers share a host, each as a node of torchrun's: all there see their own host's address.
_RANKS_OF_TASKS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


def is_loopback(address: str) -> bool:
    """Whether ``address``, an IP address or a name, can only mean the host that reads it."""
    try:
        return ip_address(address.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return address.lower() in LOOPBACK_NAMES


def host_name_unresolvable(host: HostFacts, launch: Launch | None = None) -> Iterator[Finding]:
    """This host cannot resolve its own name.

    torchrun advertises `socket.getfqdn()` to the other nodes, and gloo binds what the own name resolves to. On one
    node neither matters; between nodes both fail unless an interface is named. https://github.com/pytorch/pytorch/issues/79388
    Remedy: a line for the name in /etc/hosts, or `--socket-ifname`.
    """
    if not isinstance(host.name_addresses, Unavailable) or (launch and not _depends_on_the_name(launch)):
        return
    yield (error if launch else warning)(
        "host-name-unresolvable",
        f"this host does not resolve its own name {host.name}: {host.name_addresses.reason}",
        why="gloo binds the address behind it and torchrun advertises it to the other nodes",
        fix=f"add a line `ADDRESS {host.name}` to /etc/hosts, with this host's address in the cluster; or name its "
        "interface with `--socket-ifname`",
        where=host.name,
    )


def host_name_loopback(host: HostFacts, launch: Launch) -> Iterator[Finding]:
    """This host's own name resolves to a loopback address only, and the launch has several nodes.

    Debian writes `127.0.1.1 NAME` into /etc/hosts. gloo binds that address, so the other nodes cannot connect.
    NCCL looks for interfaces itself and is not affected. https://github.com/pytorch/pytorch/issues/73656
    Remedy: the host's cluster address in /etc/hosts, or `--socket-ifname`.
    """
    addresses = host.name_addresses
    if isinstance(addresses, Unavailable) or not addresses or not all(is_loopback(each) for each in addresses):
        return
    if not _depends_on_the_name(launch):
        return
    yield (error if launch.device.value == "cpu" else warning)(
        "host-name-loopback",
        f"this host's own name {host.name} resolves to {', '.join(addresses)} only",
        why="gloo binds that address, where no other node can connect",
        fix=f"give {host.name} its address in the cluster in /etc/hosts, or name its interface with `--socket-ifname`",
        where=host.name,
    )


def _depends_on_the_name(launch: Launch) -> bool:
    """Several nodes, and gloo was told no interface; where a route decides one, the launch sets it."""
    named = any(variable.name == "GLOO_SOCKET_IFNAME" and variable.value for variable in launch.environment)
    return launch.topology.nnodes.value > 1 and not named


def master_addr_unroutable(network: NetworkFacts, launch: Launch) -> Iterator[Finding]:
    """The master address cannot be reached from this host.

    Every node connects to it. A wrong name, a missing DNS entry or a network that this host is not part of ends in a
    rendezvous timeout, silently and after minutes. Remedy: an address of rank 0's host that `ip route get` knows here.
    """
    address = launch.topology.master_addr
    route = network.route_to_master
    if address is None or launch.topology.nnodes.value == 1 or not isinstance(route, Unavailable):
        return
    yield error(
        "master-addr-unroutable",
        f"master address {address.value}: {route.reason}",
        why="every node connects to it, and one that cannot waits for a rendezvous timeout",
        fix="pass `--master-addr` an address of node 0 that this host reaches: `ip route get ADDRESS`, "
        "`getent hosts NAME`",
        where=str(address.source),
    )


def master_addr_is_loopback_for_several_nodes(launch: Launch) -> Iterator[Finding]:
    """The master address is a loopback address, but the launch has several nodes.

    To each host 127.0.0.1 is itself, so every node waits for the others at its own door until the rendezvous times
    out. Remedy: node 0's address in the cluster, the same on every node. If all "nodes" are agents on one machine,
    `--ignore master-addr-is-loopback-for-several-nodes`.
    """
    address = launch.topology.master_addr
    if address is None or launch.topology.nnodes.value == 1 or not is_loopback(address.value):
        return
    yield error(
        "master-addr-is-loopback-for-several-nodes",
        f"master address {address.value} for {launch.topology.nnodes.value} nodes",
        why="on every host it means that host, so the nodes wait for each other until the rendezvous times out",
        fix="pass `--master-addr` the cluster address of node 0, or, if all nodes are agents on this machine, "
        "`--ignore master-addr-is-loopback-for-several-nodes`",
        where=str(address.source),
    )


def node_rank_0_not_master(network: NetworkFacts, launch: Launch, host: HostFacts | None = None) -> Iterator[Finding]:
    """Node rank and master address contradict each other.

    The store runs in node 0's torchrun, and everybody connects to the master address; so the address has to be node
    0's. Swapped node ranks, or `$SLURM_NODEID` expanded on the wrong host, look like this.
    Remedy: `--node-rank 0` on the host that has the master address, other ranks elsewhere.
    """
    rank, address, route = launch.topology.node_rank, launch.topology.master_addr, network.route_to_master
    if rank is None or address is None or isinstance(route, Unavailable) or launch.topology.nnodes.value == 1:
        return
    if is_loopback(address.value) or route.is_local == (rank.value == 0):
        return
    if rank.value == 0:
        # A container's port may be published at its host's address, which the container does not have.
        yield (warning if host and host.container else error)(
            "node-rank-0-not-master",
            f"node rank 0 is here, but master address {address.value} belongs to another host",
            why="node 0 hosts the store, and the other nodes look for it at the master address",
            fix=f"pass `--master-addr {route.local_address}` on every node if this host is node 0, or its true "
            "`--node-rank` here",
            where=str(rank.source),
        )
    elif rank.source.detail not in _RANKS_OF_TASKS:
        yield warning(
            "node-rank-0-not-master",
            f"node rank {rank.value} is here, but master address {address.value} is this host's own",
            why="node 0 hosts the store; if it runs elsewhere, nobody answers at the master address",
            fix="pass `--node-rank 0` here, or node 0's address as `--master-addr`",
            where=str(rank.source),
        )


CHECKS: tuple[Check, ...] = tuple(
    declare("network", check)
    for check in (
        host_name_unresolvable,
        host_name_loopback,
        master_addr_unroutable,
        master_addr_is_loopback_for_several_nodes,
        node_rank_0_not_master,
    )
)
