"""What nodes say to each other in a roll call, as values and as lines of JSON.

Node 0 greets whoever connects, and a node speaks only to who greeted it. The node answers with its hello; node 0 sends
progress while it waits, and one verdict. No line carries arguments, variables or paths: secrets may be among them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from ddplaunch.values.finding import Finding, Severity
from ddplaunch.values.frozen import dataclass

PROTOCOL = 1
LONGEST_LINE = 1 << 16  # bytes; a hello has some 2,000 for a host with eight GPUs
_GREETING = "ddplaunch roll call"
_TEXT_CHARS = 300


@dataclass(frozen=True)
class Hello:
    """A node introduces itself to node 0.

    ``launch`` holds words that must be alike on all nodes, by the flag that sets them; an empty one is not compared.
    ``arguments`` is a digest of the script's, ``script`` one of its source. ``facts`` are the versions as JSON of
    ``Facts``, ``machine`` is alike for all processes of one machine and unlike for two machines. ``started_s`` and
    ``clock_s`` (when it spoke) are this node's epoch seconds. ``failed`` is what it knows of the run that this one is
    to follow, None where it follows none.
    """

    node_rank: int
    host: str
    machine: str
    pid: int
    started_s: float
    clock_s: float
    ddplaunch: str
    launch: Mapping[str, str]
    arguments: str
    facts: str
    script: str | None = None
    protocol: int = PROTOCOL
    failed: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        """Host and node rank, as findings name a node."""
        return f"node {self.node_rank} ({self.host})"


@dataclass(frozen=True)
class Status:
    """Where a roll call stands. ``missing`` are the names of nodes; ``note`` is the latest news of one of them.

    ``joined`` counts the others; None on a node that has not reached node 0, and cannot know.
    """

    expected: int
    missing: tuple[str, ...]
    waited_s: float
    note: str | None = None
    joined: int | None = None


@dataclass(frozen=True)
class Verdict:
    """How it ended: ``go`` or not, and what was found. ``rendezvous_id`` is fresh, so that no older run can join.

    ``heard`` is False where a node gave up by itself, so that node 0 may know nothing of it.
    """

    go: bool
    findings: tuple[Finding, ...] = ()
    rendezvous_id: str | None = None
    heard: bool = True


def greeting() -> bytes:
    """Return the line with which node 0 greets a connection."""
    return _line({_GREETING: PROTOCOL})


def greeted(line: bytes) -> int | None:
    """Return the protocol of a greeting, None for any other line."""
    number = _object(line).get(_GREETING)
    return number if type(number) is int else None


def hello_line(hello: Hello) -> bytes:
    """Return a hello as a line."""
    return _line({"hello": {name: getattr(hello, name) for name in Hello.__dataclass_fields__}})


def read_hello(line: bytes) -> Hello | None:
    """Return the hello in ``line``; None for anything that a stranger might send."""
    said = _object(line).get("hello")
    if not isinstance(said, dict):
        return None
    whole = all(type(said.get(name)) is int and 0 <= said[name] < 1 << 31 for name in ("node_rank", "pid", "protocol"))
    times = all(type(said.get(name)) in (int, float) and math.isfinite(said[name]) for name in ("started_s", "clock_s"))
    texts = all(type(said.get(name)) is str for name in ("host", "machine", "ddplaunch", "arguments", "facts"))
    launch, script, failed = said.get("launch"), said.get("script"), said.get("failed")
    optional = (script is None or type(script) is str) and (failed is None or type(failed) is dict)
    if not (whole and times and texts and optional and _words(launch)):
        return None
    known = {name: said[name] for name in Hello.__dataclass_fields__ if name in said}
    return Hello(**{**known, "host": said["host"][:_TEXT_CHARS]})


def status_line(status: Status) -> bytes:
    """Return node 0's progress as a line."""
    shown = status.missing[:64]
    return _line({"waiting": {"expected": status.expected, "joined": status.joined, "names": shown}})


def read_status(line: bytes, waited_s: float) -> Status | None:
    """Return the progress in ``line``, None where it is something else."""
    said = _object(line).get("waiting")
    if not isinstance(said, dict) or not isinstance(said.get("names"), list):
        return None
    if type(said.get("expected")) is not int or type(said.get("joined")) is not int:
        return None
    missing = tuple(str(name)[:_TEXT_CHARS] for name in said["names"])
    return Status(said["expected"], missing, waited_s, joined=said["joined"])


def verdict_line(verdict: Verdict) -> bytes:
    """Return node 0's last word as a line."""
    found = [
        [each.code, each.severity.value, each.what, each.why, each.fix, list(each.where)] for each in verdict.findings
    ]
    return _line({"verdict": verdict.go, "rendezvous_id": verdict.rendezvous_id, "findings": found})


def read_verdict(line: bytes) -> Verdict | None:
    """Return the verdict in ``line``, None where it is something else."""
    said = _object(line)
    go, identity = said.get("verdict"), said.get("rendezvous_id")
    if type(go) is not bool or not (identity is None or type(identity) is str):
        return None
    try:
        found = tuple(
            Finding(str(code), Severity(severity), str(what), str(why), str(fix), tuple(map(str, where)))
            for code, severity, what, why, fix, where in said.get("findings", ())
        )
    except (TypeError, ValueError):
        return None
    return Verdict(go, found, identity)


def names(ranks: Iterable[int], known: Mapping[int, str]) -> tuple[str, ...]:
    """Return how nodes are named: ``node 2``, or ``node 2 (gpu-07)`` where its host is known."""
    return tuple(f"node {rank} ({known[rank]})" if rank in known else f"node {rank}" for rank in ranks)


def _words(value: Any) -> bool:
    return isinstance(value, dict) and all(type(word) is str for word in value.values())


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"  # ASCII: other bytes are escaped


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # a UnicodeDecodeError is a ValueError
        return {}
    return value if isinstance(value, dict) else {}
