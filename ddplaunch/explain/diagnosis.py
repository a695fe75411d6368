"""Why a run failed and what is known about it outside its logs, as values and as the JSON of ``outcome.json``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ddplaunch.values.codec import plain
from ddplaunch.values.frozen import dataclass

#: "observed": a line says it. "likely": the lines fit this best. "unknown": nothing decides.
Certainty = Literal["observed", "likely", "unknown"]

#: Codes that tell so little that another node, Slurm or a cluster may know more.
VAGUE = frozenset(("unknown", "killed", "aborted", "collective-timeout", "rendezvous-failed", "terminated"))
#: What comes from outside or needs luck: coming twice, it says nothing.
_BY_CHANCE = frozenset(
    {"unknown", "killed", "terminated", "time-limit", "scheduler-error", "rendezvous-failed", "port-taken"}
    | {"host-name-unresolvable", "infiniband-error", "gpu-fault", "download-failed", "dataset-race"}
    | {"host-out-of-memory"}
)
#: Addresses, sizes, times, process ids, hosts and folders of a run.
_VARIES = re.compile(
    r"0x[0-9a-fA-F]+|\b\d+(?:\.\d+)? ?(?:[KMGT]i?B|bytes|m?s|min|h)\b|\bpid:? ?\d+|\bport:? ?\d+"
    r"|\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?|(?<=:)\d{4,5}\b|/tmp/\S+|\S*/runs/\S+"
)

_LIBRARY = re.compile(
    r"[\\/](?:site-packages|dist-packages)[\\/]|[\\/]lib(?:64)?[\\/]python\d|^<|[\\/]bin[\\/](?:torchrun|accelerate|deepspeed)$"
    r"|[\\/]ddplaunch[\\/](?:agent[\\/]|api[\\/]rank_call\.py$)"
)
_PACKAGE = re.compile(r"[\\/](?:site|dist)-packages[\\/](\w+)")
_IN_PROCESS = frozenset(("spawn_main", "_bootstrap"))  # of multiprocessing
_MOST_CALLS = 40
_SOURCE = 160  # characters of a line of source
_OF_PATH = re.compile(r"^\[Errno \d+\] .*: '([^']+)'$")


@dataclass(frozen=True)
class Evidence:
    """One line: ``file`` as it was named, ``line`` from 1 (0: not a line of a file), ``text`` without ANSI codes."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class Echo:
    """What followed from the root cause: one kind of line, the first such line, and who printed it."""

    what: str
    rank: int | None
    host: str | None
    evidence: Evidence
    times: int = 1


@dataclass(frozen=True)
class Raised:
    """An exception as its traceback shows it; ``frame`` is the last one in the user's own code.

    ``notes``: the lines below it, which Python prints of notes (PEP 678) and of messages that go on.
    """

    type: str
    message: str
    frame: str | None = None  # "train.py:31 in main"
    notes: tuple[str, ...] = ()

    def below(self, following: Raised) -> bool:
        """Return whether a file is missing, and what failed then is a folder above it."""
        paths = [match[1] for raised in (self, following) if (match := _OF_PATH.match(raised.message))]
        return self.type == "FileNotFoundError" and len(paths) == 2 and paths[0].startswith(f"{paths[1]}/")


@dataclass(frozen=True)
class UserCall:
    """A call in the user's code on the way to a failure, with the text of its line where it is known.

    ``folded`` calls in ``library`` follow it.
    """

    place: str  # "train.py:31 in main"
    source: str = ""
    folded: int = 0
    library: str = ""


@dataclass(frozen=True)
class Rival:
    """What a log supports beside its diagnosis: another ``code``, "none" where ``evidence`` shows that work went on."""

    code: str
    what: str
    evidence: Evidence


@dataclass(frozen=True)
class Diagnosis:
    """A root cause. ``rank`` is global, None if several ranks show the cause, none is meant, or nothing tells.

    ``what`` is one line, understandable alone; ``why`` is the mechanism; each of ``fixes`` can be done, best first.
    ``calls`` are those that led there, outermost first, of one rank where several are meant. ``rival`` is less likely.
    """

    code: str
    certainty: Certainty
    what: str
    why: str
    fixes: tuple[str, ...]
    rank: int | None = None
    host: str | None = None
    evidence: tuple[Evidence, ...] = ()
    exception: Raised | None = None
    calls: tuple[UserCall, ...] = ()
    rival: Rival | None = None

    def is_like(self, other: Diagnosis | None) -> bool:
        """Return whether both are one failure that came twice: the same line, or else rank, and the same words.

        Sizes and addresses may differ. Of ranks that all meet an exception, now one is the first and now another.
        """
        return other is not None and self.code not in _BY_CHANCE and self._kernel() == other._kernel()

    def _kernel(self) -> tuple[object, ...]:
        raised = self.exception
        parts = (f"{self.rank}", self.what) if raised is None else (raised.type, raised.frame, raised.message)
        return (self.code, *(_VARIES.sub("", part or "") for part in parts))


@dataclass(frozen=True)
class Explanation:
    """The root cause of a log or run, None if nothing failed, and what followed from it.

    ``stops_at``: the last line of a log in which nothing failed, where it reports a step before the last one.
    ``passed_over``: the last error that would have ended a run whose work went on after it.
    """

    diagnosis: Diagnosis | None
    cascade: tuple[Echo, ...] = ()
    stops_at: str = ""
    passed_over: Evidence | None = None


@dataclass(frozen=True)
class LogSource:
    """One log. ``read`` is a path or an open binary stream; a record's files have a rank and a host."""

    name: str
    read: Path | BinaryIO
    rank: int | None = None
    host: str | None = None


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended. ``exit_code`` and ``signal`` ("SIGKILL") exclude each other; ``ended_s`` is an epoch.

    ``through``: its program had ended without an exception; "group" where the process group still existed then.
    """

    rank: int
    host: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    ended_s: float | None = None
    ended_by: Literal["itself", "launcher"] | None = None
    through: str | None = None


@dataclass(frozen=True)
class RunFacts:
    """What is known about a run outside its logs; None for what is unknown.

    ``state`` is from ``outcome.json``, ``signal`` the number that the launcher got, ``plan`` from ``run.json``,
    ``argv`` the command as typed, ``oom_kills`` from the cgroup's ``memory.events``, ``dmesg`` the kernel's lines since
    the run began, ``slurm_job`` from the environment of the launch, ``stopped_by`` the user who typed `ddplaunch stop`.
    ``launcher_lost``: its host ended it because the launcher over ssh was gone. ``full_disks``: folders of the run
    without room, and how much is left. ``just_ended``: files of this machine are as the ranks saw them.
    """

    ranks: tuple[RankEnd, ...] = ()
    state: str | None = None
    signal: int | None = None
    plan: Mapping[str, Any] | None = None
    argv: tuple[str, ...] | None = None
    oom_kills: int | None = None
    dmesg: tuple[str, ...] = ()
    shm_free_bytes: int | None = None
    shm_size_bytes: int | None = None
    full_disks: tuple[tuple[str, str], ...] = ()
    slurm_job: str | None = None
    slurm_memory_bytes: int | None = None
    stopped_by: str | None = None
    launcher_lost: bool = False
    just_ended: bool = False


#: Of a log without a record.
NOTHING_KNOWN = RunFacts()
SCHEMA = 1


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """Return ``{"schema": 1, "diagnosis": …|None, "cascade": […]}``."""
    return {"schema": SCHEMA, **plain(explanation)}


def own_frame(frames: Sequence[tuple[str, int, str]]) -> str | None:
    """Return the last frame of the user's own code, "train.py:31 in main", or None."""
    return next((_place(frame) for frame in reversed(frames) if not _LIBRARY.search(frame[0])), None)


def _place(frame: tuple[str, int, str]) -> str:
    file, number, function = frame
    name = re.split(r"[\\/]", file)[-1]
    return f"{name}:{number} in {function}" if function and function != "<module>" else f"{name}:{number}"


def of_process(frames: Sequence[tuple[str, int, str]]) -> bool:
    """Return whether an exception ended a process that multiprocessing had started, which its frames tell."""
    return any("multiprocessing/" in file and name in _IN_PROCESS for file, _, name in frames)


def line_of(place: str) -> str:
    """Return "train.py:31" of the place "train.py:31 in main"; a file's name may have spaces, as that of a cell has."""
    return place.split(" in ")[0]


def user_calls(frames: Sequence[tuple[str, int, str]], sources: Sequence[str]) -> tuple[UserCall, ...]:
    """Return the calls in the user's own code, outermost first, those in libraries between them counted."""
    calls: list[UserCall] = []
    for frame, source in zip(frames, (*sources, *("" for _ in frames)), strict=False):
        if not _LIBRARY.search(frame[0]):
            calls.append(UserCall(_place(frame), source[:_SOURCE]))
        elif calls:
            package, last = _PACKAGE.search(frame[0]), calls[-1]
            libraries = [] if last.library in ("", "Python") else last.library.split(", ")
            names = dict.fromkeys([*libraries, *([package[1]] if package else [])])
            calls[-1] = replace(last, folded=last.folded + 1, library=", ".join(names) or "Python")
    return tuple(calls[-_MOST_CALLS:])
