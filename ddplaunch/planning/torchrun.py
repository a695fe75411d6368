"""The torchrun command line of a launch, as a list of words."""

from __future__ import annotations

from collections.abc import Sequence

from ddplaunch.planning.flag import split_words
from ddplaunch.planning.launch import Target, Topology
from ddplaunch.planning.ranks.topology import endpoint
from ddplaunch.values.finding import usage
from ddplaunch.values.resolved import Resolved, Unavailable, value_of
from ddplaunch.values.words import nearest

#: Options that ddplaunch sets itself, and from what; with ``--torchrun-arg`` torchrun would get them a second time.
_OURS = {
    "--nnodes": "--nnodes",
    "--nproc-per-node": "NPROC",
    "--node-rank": "--node-rank",
    "--master-addr": "--master-addr",
    "--master-port": "--master-port",
    "--max-restarts": "--max-restarts",
    "--rdzv-backend": "--nnodes and --master-addr",
    "--rdzv-endpoint": "--master-addr and --master-port",
    "--rdzv-id": "--run-id",
    "--standalone": "NPROC without --nnodes",
    "--module": "`-m` after `--`",
    "--no-python": "an executable after `--`",
    "-m": "`-m` after `--`",
}

_CONF = "--rdzv-conf="


def torchrun_argv(
    python: tuple[str, ...],
    topology: Topology,
    target: Target | None,
    rendezvous_id: str,
    local_address: str | None = None,
    restarts: int = 0,
    extra: tuple[str, ...] = (),
    capture: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return the argument vector: interpreter, ``-m torch.distributed.run``, options, ``--``, target.

    ``local_address`` is this node's address on the route to rank 0, ``extra`` are the user's own options for torchrun,
    ``capture`` those for the plug-in and the shutdown timeout.

    The ``--`` keeps argparse from taking the script's own ``--r=16`` for an abbreviation of a torchrun option
    (https://github.com/pytorch/pytorch/issues/120601).
    """
    argv = [
        *python,
        "-m",
        "torch.distributed.run",
        f"--nnodes={_nodes(topology)}",
        f"--nproc-per-node={topology.nproc_per_node.value}",
        *_joined(_rendezvous(topology, rendezvous_id, local_address, restarts), list(extra)),
        f"--max-restarts={restarts}",
        *capture,
    ]
    return (*argv, *_target(target))


def _nodes(topology: Topology) -> str:
    high = topology.nnodes.value
    return str(high) if topology.min_nodes == high else f"{topology.min_nodes}:{high}"


def _rendezvous(topology: Topology, identity: str, local_address: str | None, restarts: int) -> list[str]:
    """Return torchrun's options for the rendezvous.

    One node: c10d on a port that the kernel chooses at bind time, so simultaneous launches never collide. Several
    nodes, or a given port: static, because only then is that port the ranks' MASTER_PORT, and ``--node-rank`` decides
    which ranks a node gets. Elastic launches and restarts: c10d, since static supports neither. ``is_host`` is set
    explicitly: c10d's own guess compares host names and is wrong on a host whose name resolves to 127.0.1.1
    (https://github.com/pytorch/pytorch/issues/73656).
    """
    port = value_of(topology.master_port, 0)
    static = topology.min_nodes == topology.nnodes.value and not restarts
    if topology.master_addr is None or topology.node_rank is None:
        addr, rank, local_address, static = "localhost", 0, "localhost", static and port > 0
    else:
        addr, rank = topology.master_addr.value, topology.node_rank.value
    if static:
        return [
            "--rdzv-backend=static",
            f"--rdzv-id={identity}",
            f"--node-rank={rank}",
            f"--master-addr={addr}",
            f"--master-port={port}",
        ]
    return [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint(addr, port)}",
        f"--rdzv-id={identity}",
        f"--rdzv-conf=is_host={int(rank == 0)}",
        *([f"--local-addr={local_address}"] if local_address else []),
    ]


def _joined(ours: list[str], extra: list[str]) -> list[str]:
    """Return ``ours`` and ``extra``, with the user's ``--rdzv-conf`` joined to ours: torchrun uses only the last."""
    conf_words = [word for word in ours if word.startswith(_CONF)]
    for position, word in enumerate(extra):
        name, equals, value = word.partition("=")
        if conf_words and name.replace("_", "-") == "--rdzv-conf":
            value = value if equals or position + 1 == len(extra) else extra.pop(position + 1)
            ours.remove(conf_words[0])
            conf_words = [f"{conf_words[0]},{value}"]
            ours.append(conf_words[0])
            extra[position] = ""
    return [*ours, *filter(None, extra)]


def shared_id(topology: Topology, target: Target | None) -> str:
    """Return a rendezvous id that is the same on every node, because each node derives it from the same command.

    torchrun's default is the word "none", with which two jobs on one port merge.
    """
    import hashlib  # loads OpenSSL, which a launch on one node does not need

    endpoint = [value_of(topology.master_addr, ""), str(value_of(topology.master_port, 0))]
    words = [*endpoint, _nodes(topology), str(topology.nproc_per_node.value), *_target(target)]
    digest = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()
    return f"ddplaunch-{digest[:12]}"


def _target(target: Target | None) -> tuple[str, ...]:
    if target is None:
        return ()
    if target.before:
        module = ("-m",) if target.kind == "module" else ()
        return ("--no-python", "--", *target.before, *module, target.name, *target.args)
    option = {"script": (), "module": ("--module",), "executable": ("--no-python",)}[target.kind]
    return (*option, "--", target.name, *target.args)


def extra_arguments(typed: Sequence[Resolved[str]], flags: frozenset[str] | Unavailable) -> tuple[str, ...]:
    """Return the words of every ``--torchrun-arg`` in ``typed``.

    ``flags`` are the long options of the installed torchrun. Raises UsageError for an option that torchrun does not
    have (suggesting a similar one) or that ddplaunch sets itself, and for a word that belongs to no option.
    """
    words: list[str] = []
    for item in typed:
        for part in split_words("--torchrun-arg", item.value, "--monitor-interval 1", str(item.source)):
            _check_flag(part, flags)
            _refuse_positional(part, words[-1] if words else "")
            words.append(part)
    return tuple(words)


def _refuse_positional(word: str, previous: str) -> None:
    """Raise UsageError for a word that belongs to no option: torchrun would run it instead of the script."""
    if word.startswith("-") or (previous.startswith("-") and "=" not in previous):
        return
    raise usage(
        f"`--torchrun-arg {word}` is not an option of torchrun",
        why="torchrun would take it for the script to run",
        fix="give an option with its value, as in `--torchrun-arg --monitor-interval=1`; the script comes after `--`",
        where="flag: --torchrun-arg",
    )


def _check_flag(word: str, flags: frozenset[str] | Unavailable) -> None:
    flag = "--" + word[2:].partition("=")[0].replace("_", "-") if word.startswith("--") else word
    if flag in _OURS:
        raise usage(
            f"`--torchrun-arg {word}` is not handed on: ddplaunch decides `{flag}` itself",
            why=f"it follows from {_OURS[flag]}, and torchrun would get it twice",
            fix=f"say it by {_OURS[flag]} instead",
        )
    if not word.startswith("--") or isinstance(flags, Unavailable) or flag in flags:
        return
    near = nearest(flag, sorted(flags - _OURS.keys()))
    raise usage(
        f"the installed torchrun has no option `{flag}`",
        why="options come and go with torch versions; this one was looked up in the installed torch/distributed/run.py",
        fix=f"did you mean `{near}`?" if near else "`python -m torch.distributed.run --help` lists them",
    )
