"""What nodes say to each other in a roll call, as values and as lines of JSON, and how they prove that they may.

Node 0 greets whoever connects, and a node speaks only to who greeted it. The node answers with its hello, and node 0
sends one verdict when all are there, or the time is over. No line carries arguments, variables or paths: secrets may
be among them.

Where the nodes share a secret, greeting and hello carry a fresh number each, and behind hello and verdict stands a
proof (``sealed``), which is looked at before the line is. Nothing has to be typed where the nodes read one file of the
user's home directory, or Slurm hands on a variable; elsewhere ``DDPLAUNCH_JOIN_SECRET`` says it. The secret itself
never travels.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import field
from hashlib import pbkdf2_hmac
from typing import TypeVar

from ddplaunch.hosts.json_lines import json_line, message_in
from ddplaunch.records.user_key import derived, user_key
from ddplaunch.values import codec
from ddplaunch.values.finding import Finding, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.variable_names import JOIN_SECRET

PROTOCOL = 5  # also where a word of ``Hello.launch`` is added or goes away
LONGEST_LINE = 1 << 16  # bytes; a hello has some 2,000 for a host with eight GPUs
_TEXT_CHARS = 300
_LAST_S = 1 << 35  # of the clock, in the year 3058; localtime() fails far behind it
_ROUNDS = 200_000  # 0.1 s: a secret that somebody thought up is to be guessed slowly
_LEAST_SECRET = 8
#: In jobs of these the home directory is often each container's own, and the network is the job's.
_NOTHING_SHARED = frozenset({"Kubeflow"})


@dataclass(frozen=True)
class Secret:
    """``name`` tells nodes which secret is meant: ``given``, or the user's own by a digest of it."""

    name: str
    key: bytes

    def proof(self, line: bytes, *context: str) -> str:
        """Return the proof for ``line`` in ``context``: what kind of line, and the numbers of both sides."""
        message = "\0".join(context).encode() + b"\0\0" + line
        return hmac.digest(self.key, message, "sha256").hex()


@dataclass(frozen=True)
class Hello:
    """A node introduces itself to node 0.

    ``launch`` holds words that must be alike on all nodes, by the flag that sets them; an empty one is not compared.
    ``arguments`` is a digest of the script's, ``script`` one of its source. ``facts`` are the versions as JSON of
    ``Facts``, ``machine`` is alike for all processes of one machine and unlike for two machines. ``started_s`` and
    ``clock_s`` (when it spoke) are this node's epoch seconds. ``sources`` are the script's own files, digests of names
    and texts, ``nonce`` is a fresh number.
    """

    node_rank: int
    host: str
    machine: str
    pid: int
    started_s: float
    clock_s: float
    ddplaunch: str
    launch: dict[str, str]
    arguments: str
    facts: str
    script: str | None = None
    protocol: int = PROTOCOL
    sources: dict[str, str] = field(default_factory=dict)
    nonce: str = ""

    @property
    def name(self) -> str:
        """Host and node rank, as findings name a node."""
        return f"node {self.node_rank} ({self.host})"


@dataclass(frozen=True)
class Status:
    """Where a roll call stands. ``missing`` are the names of nodes; ``note`` is the latest news of one of them.

    ``joined`` counts the others; None where node 0 alone knows.
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


@dataclass(frozen=True)
class Greeting:
    """What node 0 says first: its ``protocol``, a fresh number, and the name of the secret that it wants proved."""

    protocol: int
    nonce: str = ""
    secret: str | None = None


Message = TypeVar("Message", "Greeting", "Hello", "Verdict")


def line_with(message: Greeting | Hello | Verdict) -> bytes:
    """Return one message as a line."""
    return json_line({type(message).__name__: codec.plain(message)})


def read_message(line: bytes, kind: type[Message]) -> Message | None:
    """Return the message of this kind in ``line``; None for anything else that a stranger might send."""
    try:
        message = codec.from_plain(message_in(line).get(kind.__name__), kind)
    except ValueError:
        return None
    return message if _is_sane(message) else None


def sealed(line: bytes, secret: Secret | None, *context: str) -> bytes:
    """Return ``line`` with the proof that its sender knows ``secret`` behind it."""
    body = line.removesuffix(b"\n")
    return line if secret is None else body + b"\t" + secret.proof(body, *context).encode() + b"\n"


def unsealed(line: bytes, secret: Secret | None, *context: str) -> bytes | None:
    """Return what was sealed, None for a line without the proof; no JSON has a tab in it."""
    body, _, proof = line.removesuffix(b"\n").partition(b"\t")
    return body if secret is None or hmac.compare_digest(proof, secret.proof(body, *context).encode()) else None


def _is_sane(message: Greeting | Hello | Verdict) -> bool:
    """Whether numbers and texts are within bounds; a rendezvous id may stand in torchrun's arguments."""
    if isinstance(message, Verdict):
        return message.rendezvous_id is None or _is_name(message.rendezvous_id)
    if isinstance(message, Greeting):
        return True
    whole = (message.node_rank, message.pid, message.protocol)
    if not all(0 <= number < 1 << 31 for number in whole):
        return False
    texts = (
        *(message.machine, message.ddplaunch, message.arguments, message.script or "", message.nonce, message.host),
        *message.launch.values(),
        *message.sources,
        *message.sources.values(),
    )
    times = (message.started_s, message.clock_s)
    return all(0 <= seconds < _LAST_S for seconds in times) and all(len(text) <= _TEXT_CHARS for text in texts)


def _is_name(value: str) -> bool:
    """Whether it may stand in torchrun's arguments: no program can be given a NUL."""
    return len(value) <= _TEXT_CHARS and value.isprintable()


def secrets_of(environ: Mapping[str, str], whence: str) -> tuple[Secret, ...]:
    """Return what this node can prove: what was given, else the user's key; nothing inside of other launchers' jobs.

    ``whence`` is who said the node rank, as the kind of a source. Raises UsageError for a secret that says too little.
    """
    text = environ.get(JOIN_SECRET, "").strip()
    if text:
        if len(text) < _LEAST_SECRET:
            raise usage(
                f"the secret of this launch has {len(text)} characters",
                why="who reaches the port of node 0 could guess it",
                fix=f'`export {JOIN_SECRET}="$(openssl rand -hex 16)"` on one node, and the same value on the others',
                where=f"environment: {JOIN_SECRET}",
            )
        key = pbkdf2_hmac("sha256", text.encode("utf-8", "surrogateescape"), b"ddplaunch roll call", _ROUNDS)
        return (Secret("given", key),)
    own_key = None if whence in _NOTHING_SHARED else user_key(environ)
    if own_key is None:
        return ()
    return (Secret(f"user {derived(own_key, 'name').hex()[:8]}", derived(own_key, "roll call")),)
