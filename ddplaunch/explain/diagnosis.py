"""Why a run failed and what is known about it outside its logs, as values and as JSON for ``outcome.json``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from ddplaunch.machine.files import read_plain
from ddplaunch.values.codec import plain
from ddplaunch.values.finding import Finding
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.secrets import hide_text

#: "observed": a line says it. "likely": it fits the lines best. "unknown": nothing decides.
Certainty = Literal["observed", "likely", "unknown"]

#: Codes that say so little that another node, Slurm or a cluster may know more.
VAGUE = frozenset(("unknown", "killed", "aborted", "collective-timeout", "rendezvous-failed", "terminated"))
#: Codes of failures from outside or by chance: their repetition means nothing.
_BY_CHANCE = frozenset(
    {"unknown", "killed", "terminated", "time-limit", "scheduler-error", "rendezvous-failed", "port-taken"}
    | {"host-name-unresolvable", "infiniband-error", "gpu-fault", "download-failed", "dataset-race"}
    | {"host-out-of-memory"}
)
#: Addresses, sizes, times, process IDs, hosts and folders, which differ between runs.
_VARIES = re.compile(
    r"0x[0-9a-fA-F]+|\b\d+(?:\.\d+)? ?(?:[KMGT]i?B|bytes|m?s|min|h)\b|\bpid:? ?\d+|\bport:? ?\d+"
    r"|\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?|(?<=:)\d{4,5}\b|/tmp/\S+|\S*/runs/\S+"
)

_LIBRARY = re.compile(
    r"[\\/](?:site-packages|dist-packages)[\\/]|[\\/]lib(?:64)?[\\/]python\d|^<"
    r"|[\\/]bin[\\/](?:torchrun|accelerate|deepspeed)$|[\\/]torch[\\/](?:distributed|nn|utils|autograd|cuda)[\\/]"
    r"|[\\/]ddplaunch[\\/](?:agent[\\/]|api[\\/]rank_call\.py$)"
)
_PACKAGE = re.compile(r"[\\/](?:site|dist)-packages[\\/](\w+)")
_IN_PROCESS = frozenset(("spawn_main", "_bootstrap"))  # functions of multiprocessing
_NAMELESS = ("__init__.py", "__main__.py")
_MOST_CALLS = 40
_SOURCE = 160  # characters of a source line
_OF_PATH = re.compile(r"^\[Errno \d+\] .*: '([^']+)'$")


@dataclass(frozen=True)
class Frame:
    """One call: file, line, and the function that contains it (qualified if the source tells)."""

    file: str
    line: int
    function: str

    @property
    def name(self) -> str:
        """The function without its class."""
        return self.function.rpartition(".")[2]

    @property
    def is_own(self) -> bool:
        """Whether it is in the user's code, not in a library."""
        return not _LIBRARY.search(self.file)

    @property
    def at(self) -> str:
        """The file's name and the line, "train.py:31"; with the folder if the name alone says nothing."""
        names = re.split(r"[\\/]", self.file)[-2:]
        return f"{'/'.join(names if names[-1] in _NAMELESS else names[-1:])}:{self.line}"

    @property
    def place(self) -> str:
        """Where it is: "train.py:31 in main"."""
        return self.at if self.name[:1] in ("", "<") else f"{self.at} in {self.function}"


@dataclass(frozen=True)
class Evidence:
    """One line: ``file`` as it was named, ``line`` from 1 (0: not a line of a file), ``text`` without ANSI codes."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class Echo:
    """A consequence of the root cause: one kind of line, the first such line, and who printed it."""

    what: str
    rank: int | None
    host: str | None
    evidence: Evidence
    times: int = 1


@dataclass(frozen=True)
class Raised:
    """An exception as its traceback shows it; ``frame`` is the last one in the user's own code.

    ``notes`` are the lines below it: Python's notes (PEP 678) and further lines of the message.
    """

    type: str
    message: str
    frame: str | None = None  # "train.py:31 in main"
    notes: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """The file or folder that an OSError names; empty if none."""
        match = _OF_PATH.match(self.message)
        return match[1] if match else ""

    @property
    def kernel(self) -> str:
        """Type, place and message without what differs between runs and ranks."""
        return _VARIES.sub("", f"{self.type}: {self.frame}: {self.message}")

    def below(self, following: Raised) -> bool:
        """Return whether a file is missing, and ``following`` failed on a folder above it."""
        above = following.path
        return self.type == "FileNotFoundError" and bool(above) and self.path.startswith(f"{above}/")


@dataclass(frozen=True)
class UserCall:
    """A call in the user's code on the way to a failure, with the text of its line if known.

    It is followed by ``folded`` calls in libraries, of which ``library`` was called first. ``around`` are its line and
    the two beside it, numbered and marked, if ``file`` is here and still has its line.
    """

    place: str  # "train.py:31 in main"
    source: str = ""
    folded: int = 0
    library: str = ""
    file: str = ""
    around: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """A root cause. ``rank`` is global; None if several ranks show the cause, or if it is no rank's or unknown.

    ``what`` is one line, understandable alone; ``why`` is the mechanism; each of ``fixes`` can be done, best first.
    ``calls`` led to the failure, outermost first, on one rank if several failed. ``is_stop``: somebody ended the run by
    Ctrl-C or `ddplaunch stop`, which is no failure.
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
    is_stop: bool = False

    def is_like(self, other: Diagnosis | None) -> bool:
        """Return whether both are the same failure: same code and exception, or else same code, rank and text.

        Sizes and addresses may differ; failures by chance never count. An exception's rank is ignored: if all ranks
        meet the exception, any of them may be first.
        """
        return other is not None and self.code not in _BY_CHANCE and self._kernel() == other._kernel()

    def _kernel(self) -> tuple[object, ...]:
        raised = self.exception
        return (self.code, raised.kernel if raised else _VARIES.sub("", f"{self.rank}: {self.what}"))


@dataclass(frozen=True)
class Explanation:
    """The root cause of a log or run (None if nothing failed), and what followed from it.

    ``stops_at``: the last line of a log without failures, if it reports a step before the last one. ``passed_over``:
    the last error that would have ended the run if the work had not continued. ``warnings``: what it did not notice.
    """

    diagnosis: Diagnosis | None
    cascade: tuple[Echo, ...] = ()
    stops_at: str = ""
    passed_over: Evidence | None = None
    warnings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class LogSource:
    """One log. ``read`` is a path or an open binary stream; a record's files have a rank and a host."""

    name: str
    read: Path | BinaryIO
    rank: int | None = None
    host: str | None = None


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended. ``exit_code`` and ``signal`` ("SIGKILL") exclude each other; ``ended_s`` is since the epoch.

    ``through``: set if its program finished without an exception; "group" if the process group still existed then.
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
    """What is known about a run outside its logs; None means unknown.

    ``state`` is from ``outcome.json``, ``signal`` the number that the launcher got, ``plan`` from ``run.json``,
    ``argv`` the command as typed, ``oom_kills`` from the cgroup's ``memory.events``, ``dmesg`` the kernel's lines since
    the run began, ``run`` all of ``run.json``, ``stopped_by`` the user who typed `ddplaunch stop`,
    ``findings`` what the launch warned of, as `run.json` has it.
    ``launcher_lost``: its host ended it because it lost the launcher over ssh. ``full_disks``: folders of the run
    without free space, and how much is left. ``just_ended``: files on this machine are still as the ranks saw them.
    ``code``: the user's own files, the script first.
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
    run: Mapping[str, Any] | None = None
    stopped_by: str | None = None
    launcher_lost: bool = False
    just_ended: bool = False
    code: tuple[str, ...] = ()
    findings: tuple[object, ...] = ()


#: The facts of a log without a record.
NOTHING_KNOWN = RunFacts()
SCHEMA = 1


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """Return the explanation as JSON values: ``{"schema": 1, "diagnosis": …|None, "cascade": […], …}``."""
    return {"schema": SCHEMA, **plain(explanation)}


def own_frame(frames: Sequence[Frame]) -> str | None:
    """Return the place of the last frame in the user's own code, or None."""
    return next((frame.place for frame in reversed(frames) if frame.is_own), None)


def of_process(frames: Sequence[Frame]) -> bool:
    """Return whether, by its frames, an exception ended a process that multiprocessing had started."""
    return any("multiprocessing/" in frame.file and frame.function in _IN_PROCESS for frame in frames)


def line_of(place: str) -> str:
    """Return "train.py:31" for "train.py:31 in main"; file names may contain spaces, as notebook cells' do."""
    return place.split(" in ")[0]


def source_around(call: UserCall, lines: int) -> tuple[str, ...]:
    """Return the call's line in its source, numbered and marked, with ``lines`` before and after it.

    There are none if the file is gone, or another line stands there now.
    """
    with suppress(OSError, ValueError, IndexError):
        number = int(line_of(call.place).rpartition(":")[2])
        texts = hide_text(read_plain(call.file).decode(errors="replace")).splitlines()
        if call.source and texts[number - 1].strip().startswith(call.source):
            around = list(enumerate(texts, 1))[max(0, number - 1 - lines) : number + lines]
            return tuple(f"{'>' if at == number else ' '}{at:5}  {text}" for at, text in around)
    return ()


def user_calls(frames: Sequence[Frame], sources: Sequence[str]) -> tuple[UserCall, ...]:
    """Return the calls in the user's own code, outermost first, with the number of library calls after each."""
    calls: list[UserCall] = []
    for frame, source in zip(frames, (*sources, *("" for _ in frames)), strict=False):
        if frame.is_own:
            calls.append(UserCall(frame.place, source[:_SOURCE], file=frame.file))
        elif calls:
            package, last = _PACKAGE.search(frame.file), calls[-1]
            library = package[1] if package and last.library in ("", "Python") else last.library or "Python"
            calls[-1] = replace(last, folded=last.folded + 1, library=library)
    return tuple(calls[-_MOST_CALLS:])
