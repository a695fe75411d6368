"""How many ranks run on how many nodes, and where the nodes meet: from options and environment to a ``Topology``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddplaunch.planning.flag import COUNT, NodeRange, host_and_port
from ddplaunch.planning.launch import Topology
from ddplaunch.values.finding import usage
from ddplaunch.values.resolved import DEFAULT, Resolved, Source, value_of

_PORT_MAX = 65535


def resolve_topology(
    processes: Resolved[int],
    nodes: Resolved[NodeRange] | None,
    node_rank: Resolved[int] | None,
    master_addr: Resolved[str] | None,
    master_port: Resolved[int] | None,
    environ: Mapping[str, str],
) -> Topology:
    """Return the topology for the options and the environment; ``processes`` is the number of ranks per node.

    MASTER_ADDR, MASTER_PORT and NODE_RANK of the environment count, though torchrun ignores them: guides tell people to
    export them. Raises UsageError if several nodes lack an address or a rank, or a value is out of range.
    """
    fewest, most = value_of(nodes, NodeRange(1, 1))
    nnodes = Resolved(most, nodes.source if nodes else DEFAULT)
    place = meeting_place(master_addr, environ)
    port = master_port or place.get("master_port") or _integer(environ, "MASTER_PORT")
    if port is not None and not 0 <= port.value <= _PORT_MAX:
        raise usage(
            f"port {port.value} does not exist",
            why=f"TCP ports are 1 to {_PORT_MAX}; 0 asks for a free one",
            fix="`--master-port 29500`",
            where=str(port.source),
        )
    if most == 1:
        if node_rank is not None and node_rank.value != 0:
            raise usage(
                f"`--node-rank {node_rank.value}` without `--nnodes`",
                why="with one node there is only node rank 0",
                fix=f"add `--nnodes {max(node_rank.value + 1, 2)}`, or leave `--node-rank` out",
            )
        return Topology(nnodes, processes, 1, master_port=port if port and port.value else None)
    addr = place.get("master_addr")
    node_rank = node_rank or _integer(environ, "NODE_RANK")
    _require_several_node_options(nnodes, addr, node_rank)
    if port is None or port.value == 0:
        port = Resolved(29500, Source("default", "torchrun's own; every node must agree on one"))
    return Topology(nnodes, processes, fewest, node_rank, addr, port)


def meeting_place(typed: Resolved[str] | None, environ: Mapping[str, str]) -> dict[str, Resolved[Any]]:
    """Return ``master_addr`` and ``master_port`` as ``typed``, or else MASTER_ADDR of the environment, says them."""
    address = typed or _text(environ, "MASTER_ADDR")
    return host_and_port(address) if address else {}


def endpoint(address: str, port: int) -> str:
    """Return address and port as one word, an IPv6 address in brackets.

    https://datatracker.ietf.org/doc/html/rfc3986
    """
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _require_several_node_options(
    nnodes: Resolved[int], addr: Resolved[str] | None, node_rank: Resolved[int] | None
) -> None:
    if addr is None:
        raise usage(
            f"{nnodes.value} nodes need `--master-addr`",
            why="every node has to reach the same rendezvous address",
            fix="add `--master-addr ADDRESS` (of the node with `--node-rank 0`) on every node",
            code="master-addr-missing",
        )
    if node_rank is None:
        raise usage(
            f"{nnodes.value} nodes, but this one has no rank",
            why="the same command runs on each node and differs in `--node-rank` alone",
            fix="add `--node-rank 0` on the node of `--master-addr`, 1 on the next one, and so on",
            code="node-rank-missing",
        )
    if not 0 <= node_rank.value < nnodes.value:
        raise usage(
            f"node rank {node_rank.value} of {nnodes.value} nodes does not exist",
            why="node ranks count from 0",
            fix=f"`--node-rank` 0 to {nnodes.value - 1}",
            where=str(node_rank.source),
        )


def _text(environ: Mapping[str, str], name: str) -> Resolved[str] | None:
    value = environ.get(name, "").strip()
    return Resolved(value, Source("environment", name)) if value else None


def _integer(environ: Mapping[str, str], name: str) -> Resolved[int] | None:
    text = _text(environ, name)
    if text is None:
        return None
    if not COUNT.match(text.value):
        raise usage(
            f"{name}={text.value} in the environment is not a whole number",
            why=f"{name} is read where the flag is not given",
            fix=f"`unset {name}`",
            where="the shell's environment",
        )
    return Resolved(int(text.value), text.source)
