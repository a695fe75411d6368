"""Lets all nodes of a checked launch meet and compare themselves before torchrun starts.

torchrun's rendezvous names no missing node and compares nothing; here a waiting node has a deadline, and learns which
nodes are missing.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

from ddplaunch import __version__
from ddplaunch.checks.connectivity import port_taken
from ddplaunch.cli.prepare import Prepared, checked, ignored
from ddplaunch.cli.streams import ending_by_signals, tell_findings
from ddplaunch.hosts.roll_call import rules
from ddplaunch.hosts.roll_call.call import Call, answer, hold
from ddplaunch.hosts.roll_call.messages import Hello, Verdict, secrets_of
from ddplaunch.hosts.session.answers import machine
from ddplaunch.machine.network import probe_port
from ddplaunch.planning.launch import Launch, Target
from ddplaunch.ui.launch_view import RollCallLine
from ddplaunch.values import codec
from ddplaunch.values.finding import ExitStatus, Finding, RefusedError, error
from ddplaunch.values.resolved import value_of

TIMEOUT_S = 600.0  # the default of torchrun's c10d rendezvous
_ID = "--rdzv-id="


def wanted(launch: Launch, join_timeout: float | None) -> float | None:
    """Return how long to wait for the other nodes, in seconds; None without a roll call.

    There is one where the number of nodes is fixed and they meet at node 0's torchrun.
    """
    timeout_s = TIMEOUT_S if join_timeout is None else join_timeout
    topology = launch.topology
    several = topology.nnodes.value > 1 and topology.min_nodes == topology.nnodes.value
    if not several or None in (topology.node_rank, topology.master_addr, topology.master_port):
        return None
    own_rendezvous = any("is_host" in word.value for word in launch.options.torchrun_arg)
    return None if own_rendezvous or not timeout_s else timeout_s


def _end(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def call_roll(prepared: Prepared, timeout_s: float, silent: bool) -> Launch:
    """Wait until all nodes are there and agree; return the launch with node 0's run id and a fresh rendezvous id.

    ``silent`` leaves messages to node 0, where both write to the same reader. Raises RefusedError with the findings
    that all nodes get, UsageError for a secret that could be guessed, SystemExit after SIGTERM or SIGHUP.
    """
    launch = prepared.launch
    topology = launch.topology
    assert topology.node_rank and topology.master_addr and topology.master_port
    call = Call(
        nodes=topology.nnodes.value,
        address=topology.master_addr.value,
        port=topology.master_port.value,
        timeout_s=timeout_s,
        known=_slurm_hosts(os.environ, topology.nnodes.value),
        secrets=secrets_of(os.environ, topology.node_rank.source.kind),
    )
    hello = _hello(prepared)
    progress = RollCallLine(sys.stderr)
    show = (lambda status: None) if silent else progress.show
    with ending_by_signals(_end):  # tells the others; and a container's first process would ignore the signals
        if topology.node_rank.value == 0:
            verdict = _hold(call, hello, prepared, show)
        else:
            verdict = answer(call, lambda: replace(hello, clock_s=time.time()), show)
    return _heeded(prepared, verdict, silent)


def _hold(call: Call, me: Hello, prepared: Prepared, show: Callable[..., None]) -> Verdict:
    options, target = prepared.launch.options, prepared.launch.target

    def compare(joined: Mapping[int, Hello], clocks: Mapping[int, tuple[float, float]]) -> tuple[Finding, ...]:
        if not checked(options):
            return ()
        files = [path for path, _ in prepared.code if rules.name_digest(path) in me.sources]
        script = target.name if target else None
        return rules.all_together(joined, clocks, script, ignored(options), files)

    launch = prepared.launch
    identity = next((word.removeprefix(_ID) for word in launch.argv if word.startswith(_ID)), launch.run_id)
    try:
        return hold(call, me, identity, launch.run_id, compare, show)
    except OSError as problem:
        raise RefusedError(_no_port(launch, call.port, problem)) from problem


def _no_port(launch: Launch, port: int, problem: OSError) -> Finding:
    """Return the finding for a port that is taken; it names the process that holds it, where that is visible."""
    for finding in port_taken(probe_port(port), launch):
        return finding
    return error(
        "port-taken",
        f"port {port} cannot be listened on: {problem.strerror or problem}",
        why="the rendezvous has to listen on it, and would fail the same way",
        fix="name another port on every node, for instance `--master-port 29511`",
        where="flag: --master-port",
    )


def _heeded(prepared: Prepared, verdict: Verdict, silent: bool) -> Launch:
    """Return the launch that all nodes agreed on, under the run id of node 0 unless one was given here."""
    launch = prepared.launch
    if not verdict.go:
        if silent and verdict.heard:
            sys.exit(ExitStatus.REFUSED)  # node 0 reports the findings
        raise RefusedError(*verdict.findings)
    if not silent:
        tell_findings(verdict.findings)
    if launch.options.run_id is None and verdict.run_id:
        launch = prepared.decide(verdict.run_id)
    return replace(launch, argv=with_rendezvous_id(launch.argv, verdict.rendezvous_id or launch.run_id))


def with_rendezvous_id(argv: tuple[str, ...], identity: str) -> tuple[str, ...]:
    """Return torchrun's argument vector with another rendezvous id; the script's own words stay unchanged."""
    place = next((number for number, word in enumerate(argv) if word.startswith(_ID)), None)
    return argv if place is None else (*argv[:place], _ID + identity, *argv[place + 1 :])


def _hello(prepared: Prepared) -> Hello:
    """Return this node's introduction to node 0."""
    launch = prepared.launch
    topology, target = launch.topology, launch.target
    assert topology.node_rank
    words = {
        "--nnodes": str(topology.nnodes.value),
        "NPROC": str(topology.nproc_per_node.value),
        "--max-restarts": str(value_of(launch.options.max_restarts, 0)),
        "--device": launch.device.value,
        "--run-id": value_of(launch.options.run_id, ""),
        "script": _name(target),
    }
    arguments = "\0".join(target.args if target else ()).encode("utf-8", "surrogateescape")
    now = time.time()
    return Hello(
        node_rank=topology.node_rank.value,
        host=socket.gethostname(),
        machine=machine(),
        pid=os.getpid(),
        started_s=now,
        clock_s=now,
        ddplaunch=__version__,
        launch=words,
        arguments=sha256(arguments).hexdigest(),
        facts=codec.to_json(rules.told(prepared.facts)),
        script=next((digest for _, digest in prepared.code), None),  # the first of the files is the script itself
        sources=rules.told_sources(prepared.code),
    )


def _name(target: Target | None) -> str:
    if target is None:
        return ""
    return f"-m {target.name}" if target.kind == "module" else Path(target.name).name


def _slurm_hosts(environ: Mapping[str, str], nodes: int) -> Mapping[int, str]:
    """Return each node rank's host where Slurm runs one task on each node; empty otherwise."""
    if environ.get("SLURM_STEP_NUM_TASKS") != str(nodes):
        return {}
    from ddplaunch.planning.inside.slurm import expand_hosts

    hosts: Collection[str] = expand_hosts(environ.get("SLURM_STEP_NODELIST", "")) or ()
    return dict(enumerate(hosts)) if len(hosts) == nodes else {}
