"""One flag: its spelling, its line of help, and the reader that turns its text into a value with units.

A reader gets the flag and what was said, raises UsageError for a value that no launch can have, and judges no value
against another one.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.resolved import Resolved
from ddplaunch.values.words import duration_s

Kind = Literal["argument", "arguments", "text", "integer", "number", "duration", "switch", "pair", "many"]
Processes: TypeAlias = int | Literal["auto"]
Ranks: TypeAlias = tuple[int, ...] | Literal["all"]

_NODES_BY_PROCESSES = re.compile(r"([0-9]{1,19})x([0-9]{1,19}|auto)\Z")
_NODES = re.compile(r"([0-9]{1,19})(?::([0-9]{1,19}))?\Z")
_COUNT = re.compile(r"[0-9]{1,19}\Z")  # more digits fit no count; int() takes other scripts' digits too
#: A name of an environment variable.
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
#: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug
_NCCL_LEVELS = ("VERSION", "WARN", "INFO", "TRACE")


#: Called with the flag and one value that was said; returns what ``Options`` holds.
Reader: TypeAlias = "Callable[[Flag, Resolved[Any]], Any]"


class NodeRange(NamedTuple):
    """Numbers of nodes that a launch can run with; ``fewest`` < ``most`` is an elastic launch."""

    fewest: int
    most: int


class NprocWord(NamedTuple):
    """``NPROC`` as typed: ``nodes`` is None unless it is ``NxM``."""

    nodes: int | None
    processes: Processes


class Flag(NamedTuple):
    """One flag. ``kind`` "pair" is ``--x/--no-x``, "switch" a plain ``--x``, "many" may be repeated.

    "arguments" takes all words that are left. ``example`` is a value to show where a wrong one was given. ``read`` is
    called with each value that was said and returns what ``Options`` holds.
    """

    name: str
    kind: Kind
    panel: str
    text: str
    metavar: str = ""
    spelling: str = ""
    example: str = ""
    read: Reader | None = None

    @property
    def flag(self) -> str:
        """The spelling on the command line."""
        return self.spelling or "--" + self.name.replace("_", "-")

    @property
    def shown(self) -> str:
        """The name in messages: ``--batch-size``, ``NPROC``."""
        return self.metavar if self.kind == "argument" else self.flag

    def typed(self, value: Any) -> Any:
        """Return a word of the command line as a number or seconds where the flag takes one. Raises UsageError."""
        if value is None:
            return None
        if self.kind == "duration":
            return duration_s(self.flag, value)
        if self.kind == "integer":
            return _integer(self, value)
        return _number(self, value) if self.kind == "number" else value

    def parsed(self, said: Resolved[Any]) -> Resolved[Any]:
        """Return the value that was said as what it means, with the same source. Raises UsageError."""
        if isinstance(said.value, str) and "\0" in said.value:
            what, fix = f"`{self.shown}` holds a null byte", f"type `{self.shown}` again"
            raise _impossible(said, what, "no argument, path or variable can", fix)
        return said if self.read is None else Resolved(self.read(self, said), said.source)


def _meaning(flag: Flag) -> str:
    return flag.text[:1].lower() + flag.text[1:].partition(" [")[0].rstrip(".")


def _integer(flag: Flag, text: str) -> int:
    try:
        if text.isascii():  # int() takes the digits of every script, and underscores
            return int(text.replace("_", "x"))
    except ValueError:
        pass
    raise usage(
        f"`{flag.flag} {shlex.quote(text)}` is not an integer",
        why=f"it takes a whole number ({_meaning(flag)})",
        fix=f"`{flag.flag} {flag.example or '8'}`",
        where=f"flag: {flag.flag}",
    )


def _number(flag: Flag, text: str) -> float:
    try:
        number = float(text.replace("_", "x"))
    except ValueError:
        number = math.nan
    if math.isfinite(number):
        return number
    raise usage(
        f"`{flag.flag} {shlex.quote(text)}` is not a number",
        why=f"it takes a finite decimal number ({_meaning(flag)})",
        fix=f"`{flag.flag} {flag.example or '1e-4'}`",
        where=f"flag: {flag.flag}",
    )


def _impossible(said: Resolved[Any], what: str, why: str, fix: str) -> UsageError:
    return usage(what, why=why, fix=fix, where=str(said.source))


def read_count(flag: Flag, said: Resolved[Any]) -> Any:
    """Return a number that is not negative."""
    if said.value < 0:
        fix = f"`{flag.flag} {flag.example}`, or leave it out"
        raise _impossible(said, f"`{flag.flag}` is {said.value}, less than 0", "it counts from 0", fix)
    return said.value


def read_name(flag: Flag, said: Resolved[str]) -> str:
    """Return a text that is not empty."""
    if not said.value.strip():
        raise _impossible(said, f"`{flag.flag}` is empty", "it takes a name", f"`{flag.flag} {flag.example}`")
    return said.value


def read_address(flag: Flag, said: Resolved[str]) -> str:
    """Return an address without the brackets of a URL: torchrun alone among its readers takes them."""
    address = read_name(flag, said)
    return address[1:-1] if address.startswith("[") and address.endswith("]") else address


def read_duration(flag: Flag, said: Resolved[str]) -> float:
    """Return ``90s``, ``10m`` or ``2h`` in seconds."""
    return duration_s(flag.flag, said.value, str(said.source))


def read_limit(flag: Flag, said: Resolved[str]) -> float:
    """Return a length of time of at least a second, in seconds."""
    seconds = read_duration(flag, said)
    if seconds < 1.0:
        raise _impossible(
            said,
            f"`{flag.flag} {said.value}` is less than a second",
            "importing torch alone takes longer",
            f"`{flag.flag} {flag.example}`",
        )
    return seconds


def read_nproc(flag: Flag, said: Resolved[str]) -> NprocWord:
    """Return what ``4``, ``auto``, ``2x4`` or ``2xauto`` means."""
    text = said.value.strip()
    if match := _NODES_BY_PROCESSES.match(text):
        nodes = int(match[1])
        processes: Processes = "auto" if match[2] == "auto" else int(match[2])
        if nodes > 0 and processes != 0:
            return NprocWord(nodes, processes)
    elif text == "auto":
        return NprocWord(None, "auto")
    elif _COUNT.match(text) and int(text) > 0:
        return NprocWord(None, int(text))
    raise usage(
        f"`{said.value}` is not a number of processes",
        why="NPROC is processes per node: a positive integer, `auto` (every visible GPU) or `NxM` (N nodes of M)",
        fix="`ddplaunch run 4 -- train.py`",
        where=str(said.source),
    )


def read_nodes(flag: Flag | None, said: Resolved[str]) -> NodeRange:
    """Return what ``2`` or ``2:4`` means."""
    match = _NODES.match(said.value.strip())
    fewest = int(match[1]) if match else 0
    most = int(match[2]) if match and match[2] else fewest
    if not 0 < fewest <= most:
        raise _impossible(
            said,
            f"`--nnodes {said.value}` is not a number of nodes",
            "it is a positive integer, or MIN:MAX for an elastic launch",
            "`--nnodes 2` or `--nnodes 2:4`",
        )
    return NodeRange(fewest, most)


def read_ranks(flag: Flag, said: Resolved[str]) -> Ranks:
    """Return "all", or the ranks of ``0,3`` in ascending order."""
    text = said.value.strip()
    if text == "all":
        return "all"
    for word in text.split(","):
        rank = word.strip()
        if not (rank.isascii() and rank.isdecimal() and len(rank) < 8):
            raise _impossible(
                said,
                f"`{flag.flag} {said.value}`: `{rank}` is not a rank",
                "it takes global ranks with commas, or `all`",
                f"`{flag.flag} {flag.example}`",
            )
    return tuple(sorted({int(word) for word in text.split(",")}))


def read_modules(flag: Flag, said: Resolved[str]) -> tuple[str, ...]:
    """Return the names of modules, each once."""
    names = tuple(name.strip() for name in said.value.split(","))
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise _impossible(
                said,
                f"`{flag.flag} {said.value}` names no module: `{name}`",
                "it takes names as `import` does, with commas",
                f"`{flag.flag} {flag.example}`",
            )
    return tuple(dict.fromkeys(names))


def read_assignment(flag: Flag | None, said: Resolved[str]) -> tuple[str, str]:
    """Return (name, value) of ``K=V``."""
    name, equals, value = said.value.partition("=")
    if not equals or not VARIABLE.match(name):
        raise _impossible(
            said,
            f"`--env {said.value}` has no value" if not equals else f"`{name}` cannot name an environment variable",
            "`--env` takes NAME=VALUE; names are letters, digits and `_`",
            f"`--env {name if VARIABLE.match(name) else 'NAME'}=VALUE`",
        )
    return name, value


def read_nccl_level(flag: Flag, said: Resolved[str]) -> str:
    """Return a level of NCCL_DEBUG, as typed."""
    if said.value.upper() not in _NCCL_LEVELS:
        what = f"`{flag.flag} {said.value}` is not a level of NCCL"
        raise _impossible(said, what, f"it is one of {', '.join(_NCCL_LEVELS)}", f"`{flag.flag} {flag.example}`")
    return said.value


def read_device(flag: Flag, said: Resolved[str]) -> str:
    """Return ``auto``, ``cuda`` or ``cpu``."""
    if said.value not in ("auto", "cuda", "cpu"):
        raise _impossible(
            said,
            f"`--device {said.value}` is not known",
            "it is `auto`, `cuda` (AMD's ROCm too) or `cpu`",
            "`--device auto`",
        )
    return said.value


def read_start(flag: Flag, said: Resolved[str]) -> str:
    """Return ``warm`` or ``cold``; ``auto`` is cold (docs/warm-start.md says why)."""
    if said.value == "auto":
        return "cold"
    if said.value not in ("warm", "cold"):
        raise _impossible(
            said,
            f"`--start {said.value}` is neither auto, warm nor cold",
            "`warm` forks the ranks from one process that has imported torch, `cold` starts an interpreter for each, "
            "`auto` decides (now: cold)",
            "`--start warm`",
        )
    return said.value


def read_on_hang(flag: Flag, said: Resolved[str]) -> str:
    """Return ``report`` or ``stop``."""
    if said.value not in ("report", "stop"):
        raise _impossible(
            said,
            f"`--on-hang {said.value}` is neither report nor stop",
            "`report` names the rank that the others wait for and keeps watching, `stop` also ends the run",
            "`--on-hang report` or `--on-hang stop`",
        )
    return said.value
