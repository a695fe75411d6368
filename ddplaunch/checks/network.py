"""Checks of ports, interfaces and InfiniBand of one host; refuses to ask whether the hosts find each other."""

from __future__ import annotations

from collections.abc import Iterator

from ddplaunch.checks.check import Check, declare
from ddplaunch.checks.interface_names import chosen_interfaces
from ddplaunch.checks.rendezvous import CHECKS as RENDEZVOUS_CHECKS
from ddplaunch.checks.user_variables import user_variables
from ddplaunch.finding import Finding, error, warning
from ddplaunch.launch.plan import Launch
from ddplaunch.probes.facts import InfinibandPort, NetworkFacts, PortFact

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


CHECKS: tuple[Check, ...] = (
    *(
        declare("network", check)
        for check in (port_taken, port_privileged, interface_missing, interface_down, infiniband_port_down)
    ),
    *RENDEZVOUS_CHECKS,
)
