"""Checks of ports, interfaces and InfiniBand of one host; refuses to ask whether the hosts find each other.

Which interfaces a user named and how NCCL and gloo read such a name; refuses to say whether it is a good choice.

Checks of whether the nodes of a launch can find each other by name and address; refuses to look at devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from ddplaunch.checks.check import Check, declare
from ddplaunch.checks.variables import user_variables
from ddplaunch.launch.environment import gloo_interfaces
from ddplaunch.launch.launch import Launch
from ddplaunch.machine.facts import HostFacts, InfinibandPort, NetworkFacts, PortFact
from ddplaunch.values.finding import Finding, error, warning
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable

NCCL = "NCCL_SOCKET_IFNAME"
GLOO = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class Choice:
    """One naming of interfaces: the library that reads it, the value, and how to say and undo it."""

    library: str
    value: str
    typed: str
    removal: str
    where: str

    def matching(self, names: Sequence[str]) -> list[str]:
        """Return those of ``names`` that the value chooses; nothing where it only excludes.

        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        """
        return [name for name in names if any(self._fits(wanted, name) for wanted in self._wanted())]

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return what cannot be had: for NCCL all entries when none matches, for gloo each that is not there."""
        wanted = self._wanted()
        if self.library == "NCCL":
            return [] if self.matching(names) else wanted
        return [each for each in wanted if each not in names]

    def _wanted(self) -> list[str]:
        if self.library == "NCCL" and self.value.startswith("^"):
            return []
        bare = self.value.removeprefix("=") if self.library == "NCCL" else self.value
        return [entry.partition(":")[0].strip() for entry in bare.split(",") if entry.strip()]

    def _fits(self, wanted: str, name: str) -> bool:
        exact = self.library == "gloo" or self.value.startswith("=")
        return name == wanted if exact else name.startswith(wanted)


def chosen_interfaces(environment: dict[str, str], launch: Launch | None) -> Iterator[Choice]:
    """Yield what ``--socket-ifname`` or, failing that, the user's variables name for the library that will run.

    Without a launch both libraries count: nobody knows yet which of them is going to be used.
    """
    libraries = {NCCL: "NCCL", GLOO: "gloo"}
    if launch:
        libraries = {NCCL: "NCCL"} if launch.device.value == "cuda" else {GLOO: "gloo"}
        option = launch.options.socket_ifname
        if option is not None:
            typed = f"--socket-ifname is {option.value}"
            for library in libraries.values():
                value = option.value if library == "NCCL" else gloo_interfaces(option.value)
                if value is not None:
                    yield Choice(library, value, typed, "leave `--socket-ifname` away", str(option.source))
            return
    for setting in user_variables(environment, launch):
        if setting.name in libraries and setting.value.strip():
            typed = f"{setting.name} is {setting.value}"
            yield Choice(libraries[setting.name], setting.value, typed, setting.removal, setting.where)


PRIVILEGED_BELOW = 1024  # ip(7): net.ipv4.ip_unprivileged_port_start


def port_taken(master_port: PortFact, launch: Launch | None = None) -> Iterator[Finding]:
    """The port that was asked for is in use.

    Rank 0's host listens on it for the rendezvous and the workers' store; torchrun ends in EADDRINUSE at once or,
    with c10d, after about 24 s with the cause buried in a chained traceback.
    Remedy: on one node leave `--master-port` away, and a free port is found; on several name another one on all.
    """
    if master_port.free or _forbidden(master_port):
        return
    several = launch is not None and launch.topology.nnodes.value > 1
    yield error(
        "port-taken",
        f"port {master_port.port} is in use{_holder(master_port)}",
        why="the rendezvous has to listen on it and would end in EADDRINUSE",
        fix="name another port on every node, for instance `--master-port 29511`"
        if several
        else "leave `--master-port` and MASTER_PORT away, and a free port is found; or end the holder if it is yours",
        where="--master-port",
    )


def _holder(port: PortFact) -> str:
    if port.holder_pid is None:
        return f" by a process that this user cannot see{f' ({port.error})' if port.error else ''}"
    user = f" of {port.holder_user}" if port.holder_user else ""
    command = f": {port.holder_command}" if port.holder_command else ""
    return f" by pid {port.holder_pid}{user}{command}"


def _forbidden(port: PortFact) -> bool:
    """Whether the trial bind failed for want of rights: EACCES."""
    return not port.free and port.holder_pid is None and "ermission denied" in (port.error or "")


def port_privileged(master_port: PortFact) -> Iterator[Finding]:
    """The port that was asked for is reserved for root.

    Linux lets only privileged processes listen on ports below 1024 (`net.ipv4.ip_unprivileged_port_start`).
    Remedy: a port from 1024 to 65535, or none at all on one node.
    """
    if _forbidden(master_port):
        yield error(
            "port-privileged",
            f"port {master_port.port} may not be used by this user: {master_port.error}",
            why=f"ports below {PRIVILEGED_BELOW} are reserved for root",
            fix="leave `--master-port` away on one node, or name one from 1024 to 65535: `--master-port 29511`",
            where="--master-port",
        )


def interface_missing(
    network: NetworkFacts, environment: dict[str, str], launch: Launch | None = None
) -> Iterator[Finding]:
    """The network interface that was named does not exist on this host.

    NCCL takes a comma list of prefixes (`=` makes it exact, `^` excludes) and fails with "no socket interface found"
    if nothing matches. gloo takes exact names and fails with "Unable to find interface" if one is missing.
    Remedy: a name from the finding, or none: over several nodes ddplaunch takes the interface on the route to rank 0.
    """
    names = [interface.name for interface in network.interfaces]
    for choice in chosen_interfaces(environment, launch):
        if missing := choice.missing(names):
            there = ", ".join(names) or "none"
            yield error(
                "interface-missing",
                f"{choice.typed}, but this host has no interface {' or '.join(missing)}",
                why=f"{choice.library} finds no interface to talk over and fails at the first process group; "
                f"the host has {there}",
                fix=f"{choice.removal}, or name one that exists: `--socket-ifname {_example(network)}`",
                where=choice.where,
            )


def interface_down(
    network: NetworkFacts, environment: dict[str, str], launch: Launch | None = None
) -> Iterator[Finding]:
    """The network interface that was named is down.

    Connections over it time out. Ranks of one host may still reach each other, ranks of other hosts do not.
    Remedy: bring it up, or name another.
    """
    state = {interface.name: interface.up for interface in network.interfaces}
    several = launch is not None and launch.topology.nnodes.value > 1
    for choice in chosen_interfaces(environment, launch):
        matching = choice.matching(list(state))
        if matching and not any(state[name] for name in matching):
            yield (error if several else warning)(
                "interface-down",
                f"{choice.typed}, but {' and '.join(matching)} {'is' if len(matching) == 1 else 'are'} down",
                why="other hosts cannot be reached over it, and connecting ends in a timeout",
                fix=f"`sudo ip link set {matching[0]} up`, or name another: `--socket-ifname {_example(network)}`",
                where=choice.where,
            )


def _example(network: NetworkFacts) -> str:
    """Return an interface that would do: up, with an address, and not the loopback if there is another."""
    usable = [each for each in network.interfaces if each.up and each.addresses]
    usable.sort(key=lambda each: each.loopback)
    return usable[0].name if usable else "eth0"


def infiniband_port_down(
    network: NetworkFacts, environment: dict[str, str], launch: Launch | None = None
) -> Iterator[Finding]:
    """An InfiniBand port is not active.

    NCCL spreads its traffic over the active ports, so a dead one costs its share of the bandwidth; where all are down
    it uses TCP sockets. A pulled cable and a missing subnet manager look like this.
    Remedy: `ibstat` on the host; or `--no-nccl-ib` if the fabric is not meant to be used.
    """
    if (launch and _infiniband_unwanted(launch)) or _disabled(environment, launch):
        return
    active = [port for port in network.infiniband if port.state == "ACTIVE"]
    links = {port.link_layer for port in active}
    # Beside an active fabric an idle Ethernet port is only an unused socket of a card that can do RoCE.
    down = [
        port
        for port in network.infiniband
        if port.state not in ("ACTIVE", "unknown")
        and (not active or (port.link_layer in links and port.link_layer == "InfiniBand"))
    ]
    if down:
        yield warning(
            "infiniband-port-down",
            f"InfiniBand {_ports(down)}; {len(active)} of {len(network.infiniband)} ports active",
            why="NCCL loses that port's share of the bandwidth" if active else "NCCL uses TCP sockets between nodes",
            fix=f"look at the cable and the subnet manager with `ibstat {down[0].device}`"
            + ("" if active else ", or pass `--no-nccl-ib` if the fabric is not meant to be used"),
        )


def _ports(ports: list[InfinibandPort]) -> str:
    return ", ".join(f"{port.device}:{port.port} is {port.state}" for port in ports)


def _infiniband_unwanted(launch: Launch) -> bool:
    return launch.device.value == "cpu" or launch.topology.nnodes.value == 1 or launch.options.nccl_ib is not None


def _disabled(environment: dict[str, str], launch: Launch | None) -> bool:
    settings = {setting.name: setting.value for setting in user_variables(environment, launch)}
    return settings.get("NCCL_IB_DISABLE", "0") not in ("", "0")


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


CHECKS: tuple[Check, ...] = (
    declare("network", port_taken),
    declare("network", port_privileged),
    declare("network", interface_missing),
    declare("network", interface_down),
    declare("network", infiniband_port_down),
    declare("network", host_name_unresolvable),
    declare("network", host_name_loopback),
    declare("network", master_addr_unroutable),
    declare("network", master_addr_is_loopback_for_several_nodes),
    declare("network", node_rank_0_not_master),
)
