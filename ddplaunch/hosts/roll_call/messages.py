"""The messages of a roll call, as values and as lines of JSON, and the proof that a node belongs to the launch.

Node 0 greets every connection, and a node speaks only after a greeting. The node answers with its hello, and node 0
sends one verdict when all nodes are there or the time is over. No line contains arguments, variables or paths, since
these may contain secrets.

Where the nodes share a secret, greeting and hello carry a fresh number each, and hello and verdict end with a proof
(``sealed``) that is checked before the line is parsed. Users need to set nothing where the nodes read the same file in
the user's home directory, or Slurm passes on a variable; elsewhere ``DDPLAUNCH_JOIN_SECRET`` sets the secret. The
secret itself is never sent.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from dataclasses import field
from hashlib import pbkdf2_hmac
from typing import Any, TypeVar

from ddplaunch.hosts.json_lines import json_line, message_in
from ddplaunch.records.user_key import derived, user_key
from ddplaunch.values import codec
from ddplaunch.values.finding import Finding, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.variable_names import JOIN_SECRET

PROTOCOL = 5  # increase it also when a word of ``Hello.launch`` is added or removed
LONGEST_LINE = 1 << 16  # bytes; a hello of a host with eight GPUs has about 2,000
_TEXT_CHARS = 300
_LAST_S = 1 << 35  # latest epoch second, in the year 3058; localtime() fails for much later ones
_ROUNDS = 200_000  # 0.1 s: slows down guessing a secret that a person made up
_LEAST_SECRET = 8


@dataclass(frozen=True)
class Secret:
    """A shared secret; ``name`` tells nodes which one is meant: ``given``, or a digest for the user's own."""

    name: str
    key: bytes

    def proof(self, line: bytes, *context: str) -> str:
        """Return the proof for ``line`` in ``context``: the kind of line, and the fresh numbers of both sides."""
        message = "\0".join(context).encode() + b"\0\0" + line
        return hmac.digest(self.key, message, "sha256").hex()


@dataclass(frozen=True)
class Hello:
    """How a node introduces itself to node 0.

    ``launch`` maps flags to words that must be the same on all nodes; `--run-id` is compared only if both set it.
    ``arguments`` is a digest of the script's arguments, ``script`` one of its source. ``facts`` are the versions, as
    JSON of ``Facts``. ``machine`` is the same for all processes of one machine and differs between machines.
    ``started_s`` and ``clock_s`` (when it sent this) are this node's epoch seconds. ``sources`` maps digests of the
    names of the script's own files to digests of their texts; ``nonce`` is a fresh number.
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
    """The progress of a roll call. ``missing`` has names of nodes, ``note`` the latest news of a node.

    ``joined`` counts the nodes that are there; None on other nodes, since only node 0 knows.
    """

    expected: int
    missing: tuple[str, ...]
    waited_s: float
    note: str | None = None
    joined: int | None = None


@dataclass(frozen=True)
class Verdict:
    """The outcome of a roll call: ``go`` or not, and the findings. A fresh ``rendezvous_id`` keeps older runs out.

    ``run_id`` is that of node 0, whose name all records get; None where nodes share a machine.
    ``heard`` is False where a node gave up by itself, perhaps without node 0 knowing of it.
    """

    go: bool
    findings: tuple[Finding, ...] = ()
    rendezvous_id: str | None = None
    run_id: str | None = None
    heard: bool = True


@dataclass(frozen=True)
class Greeting:
    """Node 0's first message: its ``protocol``, a fresh number, and the name of the secret to be proved."""

    protocol: int
    nonce: str = ""
    secret: str | None = None


Message = TypeVar("Message", "Greeting", "Hello", "Verdict")


def line_with(message: Greeting | Hello | Verdict) -> bytes:
    """Return one message as a line."""
    return json_line({type(message).__name__: codec.plain(message)})


def read_message(line: bytes, kind: type[Message]) -> Message | None:
    """Return the message of this kind in ``line``; None for anything else, such as a stranger's bytes."""
    data = message_in(line).get(kind.__name__, {})
    try:
        message = codec.from_plain(data, kind)
    except ValueError:
        return None
    if isinstance(message, Hello) and not _is_bounded({**data, "facts": ""}):
        return None
    identity = f"{message.rendezvous_id}{message.run_id}" if isinstance(message, Verdict) else ""
    if len(identity) > _TEXT_CHARS or not identity.isprintable():
        return None  # torchrun's arguments cannot contain a NUL
    return message


def sealed(line: bytes, secret: Secret | None, *context: str) -> bytes:
    """Return ``line`` followed by the proof that its sender knows ``secret``; unchanged without a secret."""
    body = line.removesuffix(b"\n")
    return line if secret is None else body + b"\t" + secret.proof(body, *context).encode() + b"\n"


def unsealed(line: bytes, secret: Secret | None, *context: str) -> bytes | None:
    """Return the line without its proof, None where the proof is wrong or missing; JSON never contains a tab."""
    body, _, proof = line.removesuffix(b"\n").partition(b"\t")
    return body if secret is None or hmac.compare_digest(proof, secret.proof(body, *context).encode()) else None


def _is_bounded(value: Any) -> bool:
    """Return whether all numbers and texts in this JSON value are within bounds: findings quote those of a hello."""
    if isinstance(value, str):
        return len(value) <= _TEXT_CHARS
    if isinstance(value, (int, float)):
        return 0 <= value < _LAST_S
    return all(map(_is_bounded, (*value, *value.values()) if isinstance(value, dict) else ()))


def new_secret() -> str:
    """Return the fix for nodes that share no secret: a command with a new one."""
    return f"`export {JOIN_SECRET}={os.urandom(16).hex()}` on every node, this same line; then the same commands again"


def secrets_of(environ: Mapping[str, str], whence: str) -> tuple[Secret, ...]:
    """Return what this node can prove: the given secret, else the user's key; no key inside other launchers' jobs.

    ``whence`` names who set the node rank, as the kind of a source. Raises UsageError for a secret that is too short.
    """
    text = environ.get(JOIN_SECRET, "").strip()
    if text:
        if len(text) < _LEAST_SECRET:
            raise usage(
                f"the secret of this launch has {len(text)} characters",
                why="anyone who reaches the port of node 0 could guess it",
                fix=new_secret(),
                where=f"environment: {JOIN_SECRET}",
            )
        key = pbkdf2_hmac("sha256", text.encode("utf-8", "surrogateescape"), b"ddplaunch roll call", _ROUNDS)
        return (Secret("given", key),)
    # there each container often has its own home directory, and the network belongs to the job
    own_key = None if whence == "Kubeflow" else user_key(environ)
    if own_key is None:
        return ()
    return (Secret(f"user {derived(own_key, 'name').hex()[:8]}", derived(own_key, "roll call")),)
