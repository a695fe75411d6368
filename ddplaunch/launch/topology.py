"""How many ranks on how many nodes, read from ``4``, ``auto``, ``2x4``, ``--nnodes``; refuses to count GPUs itself."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ddplaunch.launch.launch import Topology
from ddplaunch.launch.options import Options
from ddplaunch.values.finding import usage
from ddplaunch.values.resolved import DEFAULT, Resolved, Source

_NODES_BY_PROCESSES = re.compile(r"([0-9]{1,19})x([0-9]{1,19}|auto)\Z")
_NODES = re.compile(r"([0-9]{1,19})(?::([0-9]{1,19}))?\Z")
_COUNT = re.compile(r"[0-9]{1,19}\Z")  # more digits fit no count; int() takes other scripts' digits too
PORT_MAX = 65535


def split_nproc(options: Options) -> tuple[int | None, str]:
    """Return (nodes or None, processes per node as text) of the positional argument; "auto" when not said.

    Raises UsageError unless it is a positive integer, ``auto`` or ``NxM``.
    """
    if options.nproc is None:
        return None, "auto"
    text = options.nproc.value.strip()
    if match := _NODES_BY_PROCESSES.match(text):
        nodes, processes = int(match[1]), match[2]
        if nodes > 0 and (processes == "auto" or int(processes) > 0):
            return nodes, processes
    elif text == "auto" or (_COUNT.match(text) and int(text) > 0):
        return None, text
    raise usage(
        f"`{options.nproc.value}` is not a number of processes",
        why="NPROC is processes per node: a positive integer, `auto` (every visible GPU) or `NxM` (N nodes of M)",
        fix="`ddplaunch run 4 -- train.py`",
        where=str(options.nproc.source),
    )


def node_range(options: Options) -> tuple[Resolved[int], int]:
    """Return (largest number of nodes, smallest) from ``--nnodes`` and ``NxM``.

    Raises UsageError for malformed or contradicting values.
    """
    by_positional, _ = split_nproc(options)
    if options.nnodes is None:
        if by_positional is None:
            return Resolved(1, DEFAULT), 1
        source = options.nproc.source if options.nproc else DEFAULT
        return Resolved(by_positional, source), by_positional
    match = _NODES.match(options.nnodes.value.strip())
    low = int(match[1]) if match else 0
    high = int(match[2]) if match and match[2] else low
    if not 0 < low <= high:
        raise usage(
            f"`--nnodes {options.nnodes.value}` is not a number of nodes",
            why="it is a positive integer, or MIN:MAX for an elastic launch",
            fix="`--nnodes 2` or `--nnodes 2:4`",
            where=str(options.nnodes.source),
        )
    if by_positional is not None and by_positional != high:
        raise usage(
            f"`{options.nproc.value if options.nproc else ''}` says {by_positional} nodes, `--nnodes` says {high}",
            why="both set the number of nodes",
            fix=f"`ddplaunch run {by_positional}x{split_nproc(options)[1]} …` without `--nnodes`",
        )
    return Resolved(high, options.nnodes.source), low


def resolve_topology(options: Options, environ: Mapping[str, str], processes: Resolved[int]) -> Topology:
    """Decide nodes, node rank, master address and port.

    ``processes`` is the number of ranks on this node. MASTER_ADDR, MASTER_PORT and NODE_RANK of the environment
    count, though torchrun ignores them: guides tell people to export them. Raises UsageError where several nodes
    lack an address or a rank, or a value is out of range.
    """
    nnodes, low = node_range(options)
    port = options.master_port or _integer(environ, "MASTER_PORT", 0, PORT_MAX)
    if port is not None and not 0 <= port.value <= PORT_MAX:
        raise usage(
            f"port {port.value} does not exist",
            why=f"TCP ports are 1 to {PORT_MAX}; 0 asks for a free one",
            fix="`--master-port 29500`, or leave it out",
            where=str(port.source),
        )
    if nnodes.value == 1 and low == 1:
        _refuse_several_node_options(options)
        return Topology(nnodes, processes, 1, master_port=port if port and port.value else None)
    addr = options.master_addr or _text(environ, "MASTER_ADDR")
    node_rank = options.node_rank or _integer(environ, "NODE_RANK", 0, 10**6)
    _require_several_node_options(nnodes, addr, node_rank)
    if port is None or port.value == 0:
        port = Resolved(29500, Source("default", "torchrun's own; every node must agree on one"))
    return Topology(nnodes, processes, low, node_rank, addr, port)


def bare(address: str) -> str:
    """Return an address without the brackets that an IPv6 address has in a URL, as others than torchrun want it."""
    return address[1:-1] if address.startswith("[") and address.endswith("]") else address


def endpoint(address: str, port: int) -> str:
    """Return address and port as one word, an IPv6 address in brackets: https://datatracker.ietf.org/doc/html/rfc3986."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _refuse_several_node_options(options: Options) -> None:
    if options.node_rank is not None and options.node_rank.value != 0:
        raise usage(
            f"`--node-rank {options.node_rank.value}` without `--nnodes`",
            why="with one node there is only node rank 0",
            fix=f"add `--nnodes {max(options.node_rank.value + 1, 2)}`, or leave `--node-rank` out",
        )


def _require_several_node_options(
    nnodes: Resolved[int], addr: Resolved[str] | None, node_rank: Resolved[int] | None
) -> None:
    if addr is None or not addr.value.strip():
        raise usage(
            f"{nnodes.value} nodes, but nobody said which one is rank 0's",
            why="every node has to reach the same rendezvous address",
            fix="add `--master-addr ADDRESS` (of the node with `--node-rank 0`) on every node",
            code="master-addr-missing",
        )
    if "%" in addr.value:
        raise usage(
            f"master address `{addr.value}` means something on one link only",
            why="torchrun takes no address with an interface behind `%`",
            fix="name node 0 by another address, which `ip -brief address` shows there",
            where=str(addr.source),
            code="master-addr-link-local",
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


def _integer(environ: Mapping[str, str], name: str, low: int, high: int) -> Resolved[int] | None:
    text = _text(environ, name)
    if text is None:
        return None
    if not _COUNT.match(text.value) or not low <= int(text.value) <= high:
        raise usage(
            f"{name}={text.value} in the environment is not a number from {low} to {high}",
            why=f"{name} is read where the flag is not given",
            fix=f"`unset {name}`",
            where="environment",
        )
    return Resolved(int(text.value), text.source)
