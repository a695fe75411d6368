"""The rules of a roll call: findings about nodes that do not fit together or are missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from time import localtime, strftime

from ddplaunch.checks.all_checks import run_across
from ddplaunch.hosts.roll_call.messages import PROTOCOL, Hello, new_secret
from ddplaunch.machine.facts import Facts, Gpu, NvmlFacts, PythonFacts, TorchFacts
from ddplaunch.planning.hosts_plan import HostReport
from ddplaunch.script.source import digest_of
from ddplaunch.values import codec
from ddplaunch.values.finding import Finding, Severity, error, warning
from ddplaunch.values.words import count, listed

#: The comparisons that also apply to nodes started by hand. These may share a machine, and need not use all GPUs.
COMPARED = frozenset(
    {
        "hosts-differ-script",
        "hosts-differ-sources",
        "hosts-differ-python",
        "hosts-differ-torch",
        "hosts-differ-cuda",
        "hosts-differ-nccl",
        "hosts-differ-driver",
        "hosts-differ-gpu-model",
    }
)
_NO_ROLL_CALL = "`--join-timeout 0` on every node launches without asking"


_SOURCES = 256  # most files compared; a hello with that many has about 8 kB


def name_digest(file: str) -> str:
    """Return a digest to send instead of a source file's name, since names of directories may be private."""
    return digest_of(file)[:8]


def told_sources(code: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return digests of the names and texts of the script's own files, those inside its directory."""
    inside = [(path, digest) for path, digest in code if not path.startswith(("/", "../"))]
    return {name_digest(path): digest for path, digest in inside[:_SOURCES]}


def told(facts: Facts) -> dict[str, object]:
    """Return the facts of a machine that a hello carries: versions and names of GPUs, none of which can be secret."""
    torch, nvml, python = facts.torch, facts.nvml, facts.python
    if isinstance(torch, TorchFacts):
        torch = replace(torch, path="", torchrun_flags=frozenset())
    if isinstance(nvml, NvmlFacts):
        nvml = replace(nvml, gpus=tuple(Gpu(index=gpu.index, uuid="", name=gpu.name) for gpu in nvml.gpus))
    if isinstance(python, PythonFacts):
        python = PythonFacts(executable="", version=python.version)
    return {"torch": torch, "nvml": nvml, "python": python}


def is_stranger(first: Hello, new: Hello, nodes: int) -> bool:
    """Return whether ``new`` cannot come from a node of this launch, so that it gets no answer.

    A node of another version is not a stranger: its protocol differs, and ``at_the_door`` names it.
    """
    if new.protocol != PROTOCOL:
        return False
    if new.launch.keys() != first.launch.keys():
        return True
    return new.node_rank >= nodes and new.launch["--nnodes"] == first.launch["--nnodes"]


def at_the_door(joined: Mapping[int, Hello], new: Hello) -> Finding | None:
    """Return why ``new`` cannot be part of the launch of ``joined``, which holds node 0; None if it can."""
    first = joined[0]
    if new.protocol != PROTOCOL:
        return other_protocol(new.name, new.protocol)
    differing = [
        f"{flag} {word} on {new.name}, {first.launch[flag]} on {first.name}"
        for flag, word in new.launch.items()
        if word != first.launch.get(flag) and (flag != "--run-id" or (word and first.launch.get(flag)))
    ]
    if differing:
        return error(
            "launches-differ",
            f"{new.name} and {first.name} start different launches: {'; '.join(differing)}",
            why="all nodes of a launch run the same command and differ in `--node-rank` alone; a node of an older "
            f"launch that still waits looks the same ({_process(new)})",
            fix="give the same command on all nodes, with a number of processes that each can run; "
            f"`ps -o lstart,args {new.pid}` on {new.host} shows what waits there",
            where=(first.name, new.name),
        )
    joined_hello = joined.get(new.node_rank)
    if joined_hello is None:
        return None
    return error(
        "node-rank-twice",
        f"two nodes have `--node-rank {new.node_rank}`: {_process(joined_hello)}, and {_process(new)}",
        why="each node needs a rank of its own; the ranks of both would get the same numbers",
        fix="give one of them another `--node-rank`; or, if one is a left-over, end it there: "
        f"`kill {joined_hello.pid}` on "
        f"{joined_hello.host}, or `kill {new.pid}` on {new.host}",
        where=(joined_hello.host, new.host),
    )


def _process(hello: Hello) -> str:
    return f"pid {hello.pid} on {hello.host}, started {strftime('%H:%M:%S', localtime(hello.started_s))}"


def all_together(
    joined: Mapping[int, Hello],
    heard_s: Mapping[int, tuple[float, float]],
    script: str | None,
    ignore: Collection[str],
    files: Sequence[str] = (),
) -> tuple[Finding, ...]:
    """Compare the nodes of a complete roll call and return the findings.

    ``heard_s`` has for each node rank how far its clock is ahead, and the uncertainty of that, in seconds. ``files``
    are the sources that node 0 knows by name.
    """
    names = {name_digest(file): file for file in files}
    ordered = [joined[rank] for rank in sorted(joined)]
    read = {text: _facts(text) for text in {hello.facts for hello in ordered}}  # most nodes are alike
    understood = [(hello, facts) for hello in ordered if (facts := read[hello.facts]) is not None]
    reports = tuple(
        _report(hello, facts, ordered, heard_s.get(hello.node_rank, (0.0, 0.0)), script, names)
        for hello, facts in understood
    )
    findings = [
        _by_hand(finding)
        for outcome in run_across(reports, ignore)
        if outcome.check.code in COMPARED
        for finding in outcome.findings
    ]
    return (*findings, *_other_arguments(ordered))


def _by_hand(finding: Finding) -> Finding:
    """Replace remedies for a launch over ssh by those for nodes that were started by hand."""
    if finding.severity is not Severity.ERROR:
        return finding
    of_files = finding.code in ("hosts-differ-script", "hosts-differ-sources")
    remedy = finding.fix if of_files else "install the same version on all nodes"
    return replace(finding, fix=f"{remedy}; `--ignore {finding.code}` on node 0 launches all the same")


def _report(
    hello: Hello,
    facts: Facts,
    everybody: Sequence[Hello],
    clock: tuple[float, float],
    script: str | None,
    names: Mapping[str, str],
) -> HostReport:
    only_one = sum(node.host == hello.host for node in everybody) == 1
    return HostReport(
        name=hello.host if only_one else hello.name,
        facts=facts,
        ddplaunch=hello.ddplaunch,
        script_name=script,
        script=hello.script,
        clock_ahead_s=clock[0],
        clock_unsure_s=clock[1],
        sources=tuple((path, hello.sources.get(name, "missing")) for name, path in names.items()),
    )


def _facts(text: str) -> Facts | None:
    """Return a node's facts; None where another version's JSON cannot be read: such a node is not compared."""
    try:
        return codec.from_json(text, Facts)
    except (ValueError, RecursionError):
        return None


def _other_arguments(ordered: Sequence[Hello]) -> tuple[Finding, ...]:
    odd_nodes = [hello for hello in ordered if hello.arguments != ordered[0].arguments]
    if not odd_nodes:
        return ()
    return (
        warning(
            "script-arguments-differ",
            f"the script's arguments on {listed(hello.name for hello in odd_nodes)} are not those on {ordered[0].name}",
            why="ranks that train with other numbers wait for each other or diverge; paths may differ",
            fix="compare what `ddplaunch run … --dry-run` prints on these nodes",
            where=tuple(hello.host for hello in odd_nodes),
        ),
    )


def other_protocol(name: str, protocol: int) -> Finding:
    """Return the finding for a node whose ddplaunch has another roll-call protocol."""
    return error(
        "hosts-differ-ddplaunch",
        f"{name} uses roll-call protocol {protocol}, this node {PROTOCOL}",
        why="the versions of ddplaunch differ, and cannot agree on a launch",
        fix="install the same version on all nodes: `ddplaunch --version`",
        where=name,
    )


def no_shared_secret(place: str) -> Finding:
    """Return the finding for a node that shares no secret with the roll call at ``place``."""
    return error(
        "join-secret-differs",
        f"this node and the roll call at {place} share no secret",
        why="nodes prove that they belong together by a secret that was given, or by `~/.local/state/ddplaunch/key`, a "
        "file of their user; this node's is another one, or somebody else's launch listens there",
        fix=f"{new_secret()}; {_NO_ROLL_CALL}",
        where="DDPLAUNCH_JOIN_SECRET",
    )


def nodes_missing(expected: int, missing: Sequence[str], waited_s: float, place: str, turned_away: int = 0) -> Finding:
    """Return node 0's finding once the time is over: the nodes that did not reach ``place``.

    ``turned_away`` counts callers that did not prove the launch's secret.
    """
    why = f"every node connects to {place} before anything is launched; these never did, or went away"
    fix = (
        "look at what the command says on the missing nodes, start it there, or wait longer for them with "
        "`--join-timeout 30m`"
    )
    if turned_away:
        why = (
            f"{count(turned_away, 'caller')} did not prove the secret of this launch, and "
            f"{'was' if turned_away == 1 else 'were'} turned away: nodes with another one, or strangers"
        )
        fix = new_secret()
    joined = f"{expected - len(missing)} of {expected} nodes joined within {waited_s:.0f} s"
    what = f"{joined}; missing: {listed(missing, 8)}"
    return error("nodes-missing", what, why=why, fix=fix, where=tuple(missing))


def node_0_missing(place: str, reason: str, waited_s: float) -> Finding:
    """Return the finding of a node that never heard from node 0 at ``place``; ``reason`` is the latest obstacle."""
    return error(
        "nodes-missing",
        f"node 0 did not call the roll at {place} within {waited_s:.0f} s: {reason}",
        why="node 0 listens there once its own checks have passed; a firewall, a wrong address or port, or a node 0 "
        "that was not started keep others away",
        fix=f"start node 0, or look at what it says; compare `--master-addr` and `--master-port`; {_NO_ROLL_CALL}",
        where="node 0",
    )


def ended_by(host: str, cause: str) -> Finding:
    """Return the finding that the other nodes get when node 0 ends while they wait."""
    return error(
        "roll-call-ended",
        f"node 0 ({host}) {cause} while nodes were waiting for each other",
        why="without node 0 there is no launch",
        fix="start the command again on all nodes",
        where=host,
    )
