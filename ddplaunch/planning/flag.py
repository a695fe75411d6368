"""One flag: its spelling, its line of help, and the reader that turns its text into a value (bytes, seconds, …).

A reader gets the flag and one value as said, and raises UsageError if no launch can have this value. It does not
compare the value with those of other flags.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias

from ddplaunch.values.finding import UsageError, usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved
from ddplaunch.values.words import duration_s, nearest

Kind = Literal["argument", "arguments", "text", "output", "integer", "number", "duration", "switch", "pair", "many"]
#: Where shell completion finds values: this machine, the project or its records. The shell itself completes files.
Offer = Literal["profiles", "runs", "live runs", "checks"]
Processes: TypeAlias = int | Literal["auto"]
DeviceWord: TypeAlias = Literal["auto", "cuda", "cpu"]
Ranks: TypeAlias = tuple[int, ...] | Literal["all"]

_NPROC = re.compile(r"(?:([0-9]{1,19})x)?([0-9]{1,19}|auto|gpu)\Z")
_NODES = re.compile(r"([0-9]{1,19})(?::([0-9]{1,19}))?\Z")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([KkMmGgTt])(?:i?[Bb])?\Z")
#: An address of IPv6 needs brackets before a port.
_ADDRESS = re.compile(r"(?s)^(?:\w+://)?\[?((?<=\[)[^\]]+|[^:/]+(?=(?::[0-9]+)?/?\Z)|.+)\]?(?::([0-9]{1,5}))?/?\Z")
_COMMAS = re.compile(r"number [0-9]+,[0-9]+|integer [1-9][0-9]{0,2}(,[0-9]{3})+")  # 0,1 and 50,000
COUNT = re.compile(r"[0-9]{1,19}\Z")  # no count has more digits; int() takes other scripts' digits too
#: A name of an environment variable.
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


#: Called with the flag and one value as said; returns the value for ``Options``.
Reader: TypeAlias = "Callable[[Flag, Resolved[Any]], Any]"


class NodeRange(NamedTuple):
    """The range of node counts that a launch can run with; ``fewest`` < ``most`` is an elastic launch."""

    fewest: int
    most: int


class NprocWord(NamedTuple):
    """``NPROC`` as typed: ``nodes`` is None unless it is ``NxM``."""

    nodes: int | None
    processes: Processes


class Flag(NamedTuple):
    """One flag. ``kind`` "pair" is ``--x/--no-x``, "switch" a plain ``--x``, "many" may be repeated.

    "output" names a file to write. "arguments" takes all words that are left.
    ``example`` is a value that errors suggest. ``read`` is called with each value as said and returns what ``Options``
    holds; ``least`` is for numbers of one command. ``offers`` are the values for shell completion, or their source.
    ``short`` is a spelling with one dash. ``text`` ends with the default in brackets, if there is one.
    """

    name: str
    kind: Kind
    panel: str
    text: str
    metavar: str = ""
    spelling: str = ""
    example: str = ""
    read: Reader | None = None
    offers: tuple[str, ...] | Offer = ()
    short: str = ""
    least: float = -math.inf

    @property
    def flag(self) -> str:
        """The spelling on the command line."""
        return self.spelling or "--" + self.name.replace("_", "-")

    @property
    def shown(self) -> str:
        """The name in messages: ``--batch-size``, ``NPROC``."""
        return self.metavar if self.kind == "argument" else self.flag

    @property
    def help_and_default(self) -> tuple[str, str]:
        """The line of help without the default, and the default (empty if there is none)."""
        help_text, bracket, default = self.text.rpartition(" [")
        return (f"{help_text}.", default.rstrip("].")) if bracket else (self.text, "")

    @property
    def completed(self) -> tuple[str, ...] | Offer:
        """The values for shell completion, or their source; empty if only the user knows them."""
        words: tuple[str, ...] = getattr(self.read, "words", ())
        return self.offers or words

    def typed(self, value: Any) -> Any:
        """Return a word of the command line, as a number or seconds if the flag takes these. Raises UsageError."""
        if value is None:
            return None
        if self.kind == "duration":
            return duration_s(self.flag, value)
        if self.kind not in ("integer", "number"):
            return value
        if (number := _number(self, value)) < self.least:
            raise usage(f"`{self.flag} {value}` is less than {self.least:g}", why=self.text, fix=f"`{self.flag} 50`")
        return number

    def parsed(self, typed: Resolved[Any]) -> Resolved[Any]:
        """Return the typed value as ``read`` understands it, with the same source. Raises UsageError."""
        if isinstance(typed.value, str) and "\0" in typed.value:
            what, fix = f"`{self.shown}` holds a null byte", f"type `{self.shown}` again"
            raise _impossible(typed, what, "no argument, path or variable can", fix)
        return typed if self.read is None else Resolved(self.read(self, typed), typed.source)


#: For each kind the type of its values, this type in words, and an example; kinds not listed take text.
TYPES: dict[str, tuple[type, str, str]] = {
    "integer": (int, "an integer", "8"),
    "number": (float, "a number", "1e-4"),
    "switch": (bool, "true or false", "true"),
    "pair": (bool, "true or false", "true"),
}


def _number(flag: Flag, text: str) -> int | float:
    """Return the integer or finite number in ``text``. Raises UsageError."""
    plain = text.replace("_", "x")  # int() and float() take underscores, and int() the digits of every script
    with suppress(ValueError):
        if flag.kind == "number" and math.isfinite(number := float(plain)):
            return number
        if flag.kind == "integer" and text.isascii():
            return int(plain)
    _, expected, example = TYPES[flag.kind]
    meant = text.replace(",", "." if flag.kind == "number" else "")
    first = re.match(r"[1-9][0-9]*(?=[,;/ ])", text)  # of a list
    own = meant if _COMMAS.fullmatch(f"{flag.kind} {text}") else first and first[0]
    example = own or flag.example or example
    raise usage(
        f"`{flag.flag} {shlex.quote(text)}` is not {expected}",
        why=flag.text,
        fix=f"`{flag.flag} {example}`",
        where=f"flag: {flag.flag}",
    )


def _impossible(typed: Resolved[Any], what: str, why: str, fix: str) -> UsageError:
    return usage(what, why=why, fix=fix, where=str(typed.source))


def _refused(flag: Flag, said: Resolved[Any], problem: str, why: str, fix: str = "") -> UsageError:
    """Return the error for a refused value: ``problem`` follows flag and value; ``fix`` defaults to the example."""
    sign = "=" if said.value.startswith("-") else " "
    typed = f"`{flag.flag}{sign}{said.value}`"
    return _impossible(said, f"{typed}{problem}", why, fix or f"`{flag.flag} {flag.example}`")


@dataclass(frozen=True)
class _OneOf:
    """A reader that takes one of ``words``, upper or lower case; shell completion offers them."""

    words: tuple[str, ...]
    why: str
    example: str

    def __call__(self, flag: Flag, typed: Resolved[str]) -> str:
        for word in self.words:
            if word.lower() == typed.value.lower():
                return word
        problem = f" is neither {', '.join(self.words[:-1])} nor {self.words[-1]}"
        near = nearest(typed.value, self.words, 0.75) or self.example
        raise _refused(flag, typed, problem, self.why, f"`{flag.flag} {near}`")


@dataclass(frozen=True)
class _Size:
    """A reader that returns ``512M``, ``4G`` or ``4GiB`` in bytes, and 0 for ``none`` if ``may_be_none``.

    ``why`` explains why less than ``least_mib`` MiB is refused.
    """

    least_mib: int
    why: str
    may_be_none: bool = False

    def __call__(self, flag: Flag, typed: Resolved[str]) -> int:
        text = typed.value.strip()
        if self.may_be_none and text.lower() == "none":
            return 0
        match = _SIZE.match(text)
        if match is None:
            takes = "it is a number with K, M, G or T" + (", or `none`" if self.may_be_none else "")
            raise _refused(flag, typed, " is not a size", takes)
        size = float(match[1]) * 1024 ** ("kmgt".index(match[2].lower()) + 1)
        if size < self.least_mib << 20:
            raise _refused(flag, typed, f" is less than {self.least_mib} MiB", self.why)
        if size >= 1 << 60:
            raise _refused(flag, typed, " is more than any machine has", "it is a number of bytes")
        return int(size)


def read_count(flag: Flag, typed: Resolved[Any]) -> Any:
    """Return a number that is not negative."""
    if typed.value < 0:
        fix = f"`{flag.flag} {flag.example}`, or leave it out"
        raise _impossible(typed, f"`{flag.flag}` is {typed.value}, less than 0", "it counts from 0", fix)
    return typed.value


def read_run_id(flag: Flag, typed: Resolved[str]) -> str:
    """Return the name of a run, which names its directory too, and is typed and printed without quotes."""
    if " " in typed.value or not typed.value.isprintable():
        what = f"the run id {typed.value!r} holds a blank, or a character that cannot be printed"
        raise _impossible(typed, what, "it names the run's record", "`--run-id my-run-1`")
    return typed.value


def read_name(flag: Flag, typed: Resolved[str]) -> str:
    """Return a text that is not empty."""
    if not typed.value.strip():
        raise _impossible(typed, f"`{flag.flag}` is empty", "it takes a name", f"`{flag.flag} {flag.example}`")
    return typed.value


def host_and_port(address: Resolved[str]) -> dict[str, Resolved[Any]]:
    """Return ``master_addr``, and ``master_port`` where ``HOST:PORT``, ``[IPV6]:PORT`` or a URL has one.

    What torchrun gets is looked up as a name, in which brackets, a scheme and a port have no place.
    """
    ((host, port),) = _ADDRESS.findall(address.value)
    place = {"master_addr": host, "master_port": int(port or 0)}
    return {name: Resolved(value, address.source) for name, value in place.items() if value}


def read_limit(flag: Flag, typed: Resolved[str]) -> float:
    """Return a duration of at least one second (``90s``, ``10m``, ``2h``), in seconds."""
    seconds = duration_s(flag.flag, typed.value, str(typed.source))
    if seconds < 1.0:
        raise _refused(flag, typed, " is less than a second", "importing torch alone takes longer")
    return seconds


def read_nproc(flag: Flag, typed: Resolved[str]) -> NprocWord:
    """Return the nodes and processes of ``4``, ``auto`` (torchrun's ``gpu``), ``2x4`` or ``2xauto``."""
    if match := _NPROC.match(typed.value.strip()):
        nodes = int(match[1]) if match[1] else None
        processes: Processes = int(match[2]) if match[2].isdecimal() else "auto"
        if nodes != 0 and processes != 0:
            return NprocWord(nodes, processes)
    raise _impossible(
        typed,
        f"`{shlex.quote(typed.value)}` is not a number of processes",
        "NPROC is processes per node: a positive integer, `auto` (every visible GPU) or `NxM` (N nodes of M)",
        f"`{nearest(typed.value, ['auto']) or 2}` in its place; `--gpus 0,1` names GPUs",
    )


def read_nodes(flag: Flag | None, typed: Resolved[str]) -> NodeRange:
    """Return the range of nodes for ``2`` or ``2:4``."""
    if match := _NODES.match(typed.value.strip()):
        fewest, most = int(match[1]), int(match[2] or match[1])
        if 0 < fewest <= most:
            return NodeRange(fewest, most)
    what, why = "is not a number of nodes", "it is a positive integer, or MIN:MAX for an elastic launch"
    raise _impossible(typed, f"`--nnodes {typed.value}` {what}", why, "`--nnodes 2` or `--nnodes 2:4`")


def read_ranks(flag: Flag, typed: Resolved[str]) -> Ranks:
    """Return "all", or the ranks of ``0,3`` in ascending order."""
    if typed.value.strip() == "all":
        return "all"
    ranks = [word.strip() for word in typed.value.split(",")]
    for rank in ranks:
        if not (rank.isascii() and rank.isdecimal() and len(rank) < 8):
            raise _refused(flag, typed, f": `{rank}` is not a rank", "it takes global ranks with commas, or `all`")
    return tuple(sorted(set(map(int, ranks))))


def read_modules(flag: Flag, typed: Resolved[str]) -> tuple[str, ...]:
    """Return the names of modules, each once."""
    names = tuple(name.strip() for name in typed.value.split(","))
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            why = "it takes names as `import` does, with commas"
            raise _refused(flag, typed, f" names no module: `{name}`", why)
    return tuple(dict.fromkeys(names))


def read_assignment(flag: Flag | None, typed: Resolved[str]) -> tuple[str, str]:
    """Return (name, value) of ``K=V``."""
    name, equals, value = typed.value.partition("=")
    if not equals or not VARIABLE.match(name):
        raise _impossible(
            typed,
            "an `--env` is not NAME=VALUE",  # not quoted: it may be a secret
            "names are letters, digits and `_`",
            "`--env NAME=VALUE`",
        )
    return name, value


def named_option(text: str) -> tuple[str, str]:
    """Return the name of the script's option and the word after its colon, if any: ``--batch-size`` and ``total``."""
    name, colon, word = text.strip().rpartition(":")
    return (name, word) if colon else (word, "")


def of_the_script(*words: str) -> Reader:
    """Return a reader that takes an option of the script: NAME, NAME:WORD with one of ``words``, or ``none``."""

    def read(flag: Flag, typed: Resolved[str]) -> str:
        name, word = named_option(typed.value)
        kinds = f"NAME:{'|'.join(words)}, NAME or `none`" if words else "NAME or `none`"
        if not name.strip("-") or any(character.isspace() or character == "=" for character in name):
            raise _refused(flag, typed, " names no option of the script", f"it takes {kinds}")
        if word not in ("", *words) or typed.value.rstrip().endswith(":"):
            raise _refused(flag, typed, f": `{word}` is not known", f"it takes {kinds}")
        return typed.value.strip()

    return read


read_size = _Size(1, "a failure is explained from what was printed last", may_be_none=True)
read_memory = _Size(64, "importing torch alone takes more")
#: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-debug
read_nccl_level = _OneOf(("VERSION", "WARN", "INFO", "TRACE"), "these are the levels of NCCL_DEBUG", "INFO")
read_lr_scaling = _OneOf(("linear", "sqrt", "none"), "the rate follows the effective batch by one of these", "sqrt")
read_device = _OneOf(
    ("auto", "cuda", "cpu"), "`cuda` is a GPU, by ROCm too; `auto` takes one for each rank where there are any", "cuda"
)
read_on_hang = _OneOf(
    ("report", "stop"),
    "`report` names the rank that the others wait for and keeps watching, `stop` also ends the run",
    "stop",
)
read_placement = _OneOf(
    ("auto", "none", "node", "cores"),
    "`node` keeps each rank on the NUMA node of its GPU, as `auto` does, `cores` gives each physical cores of its own, "
    "`none` leaves all ranks alone",
    "cores",
)
read_start = _OneOf(
    ("cold", "warm", "auto"),
    "`warm` forks the ranks from one process that has imported torch, `cold` starts an interpreter for each, `auto` "
    "forks on CPUs",
    "warm",
)


def split_words(flag: str, text: str, example: str, place: str) -> list[str]:
    """Return the words of a shell line. Raises UsageError for an unbalanced quote; the fix shows ``example``."""
    try:
        return shlex.split(text)
    except ValueError as exception:
        raise usage(
            f"`{flag} {text}` has an unbalanced quote",
            why=f"it is split like a shell line ({exception})",
            fix=f"`{flag} '{example}'`",
            where=place,
        ) from exception
