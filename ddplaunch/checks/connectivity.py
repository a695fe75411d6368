"""Checks of the network of one host: port, interfaces, InfiniBand, and the names and addresses where nodes meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ddplaunch.checks.check import Findings, checks_in
from ddplaunch.checks.known_variables import user_variables
from ddplaunch.checks.variables import nccl_chooses_infiniband
from ddplaunch.machine.facts import HostFacts, NetworkFacts, PortFact
from ddplaunch.planning.gpus import SHELL
from ddplaunch.planning.launch import Launch
from ddplaunch.planning.ranks.environment import gloo_interfaces
from ddplaunch.values.finding import error, warning
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Unavailable


@dataclass(frozen=True)
class _InterfaceChoice:
    """Network interfaces that the user named: the library that reads ``value``, how it was typed, how to undo it."""

    library: str
    value: str
    typed: str
    removal: str
    where: str

    def matching(self, names: Sequence[str]) -> list[str]:
        """Return the ``names`` that the value selects; none if it only excludes.

        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        """
        wanted = tuple(self._wanted())
        exact = self.library == "gloo" or self.value.startswith("=")
        return [name for name in names if (name in wanted if exact else name.startswith(wanted))]

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the entries that would fail: for NCCL all if none matches, for gloo each that does not exist."""
        if self.library == "NCCL":
            return [] if self.matching(names) else self._wanted()
        return [name for name in self._wanted() if name not in names]

    def _wanted(self) -> list[str]:
        if self.library == "NCCL" and self.value.startswith("^"):
            return []
        bare = self.value.removeprefix("=") if self.library == "NCCL" else self.value
        return [entry.partition(":")[0].strip() for entry in bare.split(",") if entry.strip()]


def _chosen_interfaces(environment: dict[str, str], launch: Launch | None) -> Iterator[_InterfaceChoice]:
    """Yield the interfaces of ``--socket-ifname``, or else of the user's variables, for the library of the launch.

    Without a launch, for both libraries.
    """
    libraries = ["gloo", "NCCL"] if launch is None else ["NCCL" if launch.device.value == "cuda" else "gloo"]
    option = launch.options.socket_ifname if launch else None
    settings = user_variables(environment, launch)
    for library in libraries:
        setting = settings.get(f"{library.upper()}_SOCKET_IFNAME")
        if option is not None:
            value = option.value if library == "NCCL" else gloo_interfaces(option.value)
            if value is not None:
                typed = f"--socket-ifname is {option.value}"
                yield _InterfaceChoice(library, value, typed, "leave `--socket-ifname` out", str(option.source))
        elif setting is not None and setting.value.strip():
            typed = f"{setting.name} is {setting.value}"
            yield _InterfaceChoice(library, setting.value, typed, setting.removal, setting.where)


_PRIVILEGED_BELOW = 1024  # ip(7): net.ipv4.ip_unprivileged_port_start


def port_taken(master_port: PortFact, launch: Launch | None = None) -> Findings:
    """The requested port is in use.

    Rank 0's host listens on it for the rendezvous and the workers' store. torchrun fails with EADDRINUSE: at once or,
    with c10d, after about 24 s and deep in a chained traceback. Remedy: on one node leave `--master-port` out, and
    ddplaunch finds a free port; on several nodes, name another port on all of them.
    """
    if master_port.free or _forbidden(master_port):
        return
    several = launch is not None and launch.topology.nnodes.value > 1
    port = launch.topology.master_port if launch else None
    exported = port is not None and port.source.kind == "environment"
    leave = "`unset MASTER_PORT`" if exported else "leave `--master-port` out"
    yield error(
        "port-taken",
        f"port {master_port.port} is in use{_holder(master_port)}",
        why="the rendezvous has to listen on it and would fail with EADDRINUSE",
        fix=f"name another port on every node, for example `--master-port {master_port.port ^ 11}`"  # up to 65535, too
        if several
        else f"{leave}, and a free port is found; or end the holder if it is yours",
        where=f"MASTER_PORT from {SHELL}" if exported else "--master-port",
    )


def _holder(port: PortFact) -> str:
    if port.holder_pid is None:
        return f" by a process that this user cannot see{f' ({port.error})' if port.error else ''}"
    user = f" of {port.holder_user}" if port.holder_user else ""
    command = f": {port.holder_command}" if port.holder_command else ""
    return f" by pid {port.holder_pid}{user}{command}"


def _forbidden(port: PortFact) -> bool:
    """Whether the trial bind failed with EACCES."""
    return not port.free and port.holder_pid is None and "ermission denied" in (port.error or "")


def port_privileged(master_port: PortFact) -> Findings:
    """The requested port is reserved for root.

    Linux lets only privileged processes listen on ports below 1024 (`net.ipv4.ip_unprivileged_port_start`).
    Remedy: a port from 1024 to 65535, or none on one node.
    """
    if _forbidden(master_port):
        yield error(
            "port-privileged",
            f"port {master_port.port} may not be used by this user: {master_port.error}",
            why=f"ports below {_PRIVILEGED_BELOW} are reserved for root",
            fix="leave `--master-port` out on one node, or name one from 1024 to 65535: `--master-port 29511`",
            where="--master-port",
        )


def interface_missing(network: NetworkFacts, environment: dict[str, str], launch: Launch | None = None) -> Findings:
    """The chosen network interface does not exist on this host.

    NCCL takes a comma-separated list of prefixes (`=` makes them exact, `^` excludes) and fails with "no socket
    interface found" if nothing matches. gloo takes exact names and fails with "Unable to find interface" if one is
    missing. Remedy: a name from the finding, or no name: with several nodes ddplaunch then takes the interface on the
    route to rank 0.
    """
    names = [interface.name for interface in network.interfaces]
    for choice in _chosen_interfaces(environment, launch):
        if missing := choice.missing(names):
            present = ", ".join(names) or "none"
            yield error(
                "interface-missing",
                f"{choice.typed}, but this host has no interface {' or '.join(missing)}",
                why=f"{choice.library} finds no interface and fails at the first process group; the host has {present}",
                fix=f"{choice.removal}, or name one that exists: `--socket-ifname {_usable_name(network)}`",
                where=choice.where,
            )


def interface_down(network: NetworkFacts, environment: dict[str, str], launch: Launch | None = None) -> Findings:
    """The chosen network interface is down.

    Connections over it time out. Ranks on this host may still reach each other, but not those on other hosts.
    Remedy: bring it up, or choose another.
    """
    state = {interface.name: interface.up for interface in network.interfaces}
    several = launch is not None and launch.topology.nnodes.value > 1
    for choice in _chosen_interfaces(environment, launch):
        matching = choice.matching(list(state))
        if matching and not any(state[name] for name in matching):
            yield (error if several else warning)(
                "interface-down",
                f"{choice.typed}, but {' and '.join(matching)} {'is' if len(matching) == 1 else 'are'} down",
                why="other hosts cannot be reached over it, and connecting ends in a timeout",
                fix=f"`sudo ip link set {matching[0]} up`, or name another: `--socket-ifname {_usable_name(network)}`",
                where=choice.where,
            )


def _usable_name(network: NetworkFacts) -> str:
    """Return an interface that is up and has an address, loopback only if there is no other; else "eth0"."""
    usable = [interface for interface in network.interfaces if interface.up and interface.addresses]
    usable.sort(key=lambda interface: interface.loopback)
    return usable[0].name if usable else "eth0"


def infiniband_port_down(network: NetworkFacts, environment: dict[str, str], launch: Launch | None = None) -> Findings:
    """An InfiniBand port is not active.

    NCCL spreads its traffic over the active ports, so each inactive one costs bandwidth; if all are down, NCCL uses TCP
    sockets. Usual causes are a pulled cable and a missing subnet manager. Remedy: `ibstat` on the host; or
    `--env NCCL_IB_DISABLE=1` if the fabric should not be used.
    """
    disabled = user_variables(environment, launch).get("NCCL_IB_DISABLE")
    if (launch and not nccl_chooses_infiniband(launch)) or (disabled and disabled.on):
        return
    active = [port for port in network.infiniband if port.state == "ACTIVE"]
    down = [port for port in network.infiniband if port.state not in ("ACTIVE", "unknown")]
    if any(port.link_layer == "InfiniBand" for port in active):  # Ethernet ports of RoCE cards are then unused
        down = [port for port in down if port.link_layer == "InfiniBand"]
    elif active:
        return
    if down:
        states = ", ".join(f"{port.device}:{port.port} is {port.state}" for port in down)
        yield warning(
            "infiniband-port-down",
            f"InfiniBand {states}; {len(active)} of {len(network.infiniband)} ports active",
            why="NCCL loses that port's share of the bandwidth" if active else "NCCL uses TCP sockets between nodes",
            fix=f"look at the cable and the subnet manager with `ibstat {down[0].device}`"
            + ("" if active else ", or pass `--env NCCL_IB_DISABLE=1` if the fabric should not be used"),
        )


# Set by launchers that may start several torchrun nodes on one host, where each sees the master address as its own.
_RANKS_OF_TASKS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOOPBACK_NAMES = "localhost localhost.localdomain ip6-localhost ip6-loopback ::1"


def _is_loopback(address: str) -> bool:
    """Whether ``address``, an IP address or a name, always means the local host."""
    return address.startswith("127.") or address.strip("[]").partition("%")[0].lower() in _LOOPBACK_NAMES.split()


def host_name_unresolvable(host: HostFacts, launch: Launch | None = None) -> Findings:
    """This host cannot resolve its own name.

    torchrun advertises `socket.getfqdn()` to the other nodes, and gloo binds the address of the host's own name. On one
    node neither matters; between nodes both fail unless an interface is chosen.
    https://github.com/pytorch/pytorch/issues/79388
    Remedy: a line for the name in /etc/hosts, or `--socket-ifname`.
    """
    if not isinstance(host.name_addresses, Unavailable) or (launch and not _depends_on_the_name(launch)):
        return
    yield (error if launch else warning)(
        "host-name-unresolvable",
        f"this host does not resolve its own name {host.name}: {host.name_addresses.reason}",
        why="gloo binds the address of that name, and torchrun advertises the name to the other nodes",
        fix=f"add a line `ADDRESS {host.name}` to /etc/hosts, with this host's address in the cluster; or name its "
        "interface with `--socket-ifname`",
        where=host.name,
    )


def host_name_loopback(host: HostFacts, launch: Launch) -> Findings:
    """This host's own name resolves to a loopback address only, and the launch has several nodes.

    Debian writes `127.0.1.1 NAME` into /etc/hosts. gloo binds that address, so the other nodes cannot connect. NCCL
    looks for interfaces itself and is not affected. https://github.com/pytorch/pytorch/issues/73656
    Remedy: the host's cluster address in /etc/hosts, or `--socket-ifname`.
    """
    addresses = host.name_addresses
    if isinstance(addresses, Unavailable) or not addresses or not _depends_on_the_name(launch):
        return
    if not all(_is_loopback(address) for address in addresses):
        return
    yield (error if launch.device.value == "cpu" else warning)(
        "host-name-loopback",
        f"this host's own name {host.name} resolves to {', '.join(addresses)} only",
        why="gloo binds that address, where no other node can connect",
        fix=f"give {host.name} its address in the cluster in /etc/hosts, or name its interface with `--socket-ifname`",
        where=host.name,
    )


def _depends_on_the_name(launch: Launch) -> bool:
    """Whether gloo has to look up the host's own name: several nodes, and no GLOO_SOCKET_IFNAME in the launch."""
    named = any(variable.name == "GLOO_SOCKET_IFNAME" and variable.value for variable in launch.environment)
    return launch.topology.nnodes.value > 1 and not named


def master_addr_unroutable(network: NetworkFacts, launch: Launch, host: HostFacts | None = None) -> Findings:
    """The master address cannot be reached from this host.

    Every node connects to it. A wrong name, a missing DNS entry or a missing route shows only after minutes, as a
    rendezvous timeout. On Kubernetes this is not checked: a pod's name resolves only once that pod has started, and the
    other pods wait for it. Remedy: an address of rank 0's host for which `ip route get` finds a route.
    """
    address = launch.topology.master_addr
    route = network.route_to_master
    if address is None or launch.topology.nnodes.value == 1 or not isinstance(route, Unavailable):
        return
    if host is not None and host.container == "kubernetes":
        return
    yield error(
        "master-addr-unroutable",
        f"master address {address.value}: {route.reason}",
        why="every node connects to it; a node that cannot reach it waits until the rendezvous times out",
        fix="pass `--master-addr` an address of node 0 that this host reaches: `ip route get ADDRESS`, "
        "`getent hosts NAME`",
        where=str(address.source),
    )


def master_addr_is_loopback_for_several_nodes(launch: Launch) -> Findings:
    """The master address is a loopback address, but the launch has several nodes.

    127.0.0.1 is a different machine on every host, so every node waits for the others at its own address until the
    rendezvous times out. Remedy: node 0's address in the cluster, the same on every node. If all "nodes" are agents on
    one machine, `--ignore master-addr-is-loopback-for-several-nodes`.
    """
    address = launch.topology.master_addr
    if address is None or launch.topology.nnodes.value == 1 or not _is_loopback(address.value):
        return
    yield error(
        "master-addr-is-loopback-for-several-nodes",
        f"master address {address.value} for {launch.topology.nnodes.value} nodes",
        why="on every host it means that host, so the nodes wait for each other until the rendezvous times out",
        fix="pass `--master-addr` the cluster address of node 0, or, if all nodes are agents on this machine, "
        "`--ignore master-addr-is-loopback-for-several-nodes`",
        where=str(address.source),
    )


def node_rank_0_not_master(network: NetworkFacts, launch: Launch, host: HostFacts | None = None) -> Findings:
    """Node rank and master address contradict each other.

    The store runs in node 0's torchrun and all nodes connect to the master address, so the address has to be node 0's.
    Usual causes are swapped node ranks, and `$SLURM_NODEID` expanded on the wrong host. Remedy: `--node-rank 0` on the
    host with the master address, other ranks elsewhere.
    """
    rank, address, route = launch.topology.node_rank, launch.topology.master_addr, network.route_to_master
    if rank is None or address is None or isinstance(route, Unavailable) or launch.topology.nnodes.value == 1:
        return
    if _is_loopback(address.value) or route.is_local == (rank.value == 0):
        return
    if rank.value == 0:
        # The port of a container may be published at the address of its host, which the container does not see.
        yield (warning if host and host.container else error)(
            "node-rank-0-not-master",
            f"this is node rank 0, but master address {address.value} belongs to another host",
            why="node 0 hosts the store, and the other nodes look for it at the master address",
            fix=f"pass `--master-addr {route.local_address}` on every node if this host is node 0, or the right "
            "`--node-rank` here",
            where=str(rank.source),
        )
    elif rank.source.detail not in _RANKS_OF_TASKS:
        yield warning(
            "node-rank-0-not-master",
            f"this is node rank {rank.value}, but master address {address.value} is this host's own",
            why="node 0 hosts the store; if it runs elsewhere, nobody answers at the master address",
            fix="pass `--node-rank 0` here, or node 0's address as `--master-addr`",
            where=str(rank.source),
        )


CHECKS = checks_in(globals(), "network")
