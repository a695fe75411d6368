"""Stacks of ranks in faulthandler's format, and the place that a person would name (the user's own line).

https://docs.python.org/3/library/faulthandler.html
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable, Sequence
from typing import Literal, cast

from ddplaunch.explain.diagnosis import Evidence, Frame, UserCall, user_calls
from ddplaunch.explain.read.lines import Line
from ddplaunch.explain.signatures import patterns
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.words import ranks_text

_THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x(?P<id>[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):$"
)
_FRAME = re.compile(r'^\s+File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_DUMP = re.compile(r"Fatal Python error: |Timeout \([\d:.]+\)!")
_NEAR = 12  # lines that may separate a crash's first line from its stacks
_EVIDENCE = 4  # places that a diagnosis lists
_DUMPED = 400  # lines that the stacks of all threads may take


@dataclass(frozen=True)
class ThreadStack:
    """One thread. ``frames`` are innermost first; empty for a thread that runs no Python."""

    name: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class RankStack:
    """Where one rank is. ``threads`` begin with the main thread; if there are none, ``problem`` says why.

    ``state`` is the kernel's letter (proc_pid_stat(5)); ``kernel`` the kernel function in which the main thread waits,
    or empty; ``reads`` the file that it reads from, if the kernel tells; ``source`` the tool that took the stack.
    ``workers`` are DataLoader workers or programs that the rank waits for, if they were inspected too. ``programs`` are
    pids below a rank without known threads, such as a shell script that starts others.
    """

    rank: int
    pid: int
    threads: tuple[ThreadStack, ...] = ()
    state: str = ""
    kernel: str = ""
    reads: str = ""
    source: str = ""
    problem: str = ""
    workers: tuple[RankStack, ...] = ()
    programs: tuple[int, ...] = ()

    @property
    def main(self) -> tuple[Frame, ...]:
        """The main thread's frames, innermost first."""
        return self.threads[0].frames if self.threads else ()


def from_faulthandler(text: str) -> tuple[ThreadStack, ...]:
    """Return the threads of the last dump in ``text``, the main thread first.

    CPython lists the youngest thread first, and the main thread last. A repeated thread begins another dump.
    """
    threads: dict[str, tuple[str, list[Frame]]] = {}
    frames: list[Frame] | None = None
    for line in text.splitlines():
        if head := _THREAD.match(line):
            if head["id"] in threads:
                threads = {}
            frames = []
            threads[head["id"]] = (head["name"] or "", frames)
        elif frames is not None and (match := _FRAME.match(line)):
            number = int(match["line"]) if match["line"].isdigit() else 0
            frames.append(Frame(match["file"], number, match["function"]))
        elif not line.startswith("  "):
            frames = None
    return tuple(ThreadStack(name, tuple(listed)) for name, listed in reversed(list(threads.values())))


#: What a rank is doing. "collective", "meeting" (making or leaving a process group) and "backward" (where DDP reduces
#: gradients) need the other ranks; "gpu" waits for a device that may wait for them.
Kind = Literal["collective", "meeting", "backward", "gpu", "loader", "own", "unknown"]

_NEEDS_OTHERS: frozenset[Kind] = frozenset(("collective", "meeting", "backward", "gpu"))
#: What a library does, by file and function of a frame: groups named by their kind; the first that matches counts.
_KINDS = patterns("code-places")
_COLLECTIVE = _KINDS[1]
#: Functions of multiprocessing in which a spawned process imports the script.
IMPORTS_AGAIN = frozenset(("_fixup_main_from_path", "_fixup_main_from_name"))
#: Functions of threading, concurrent.futures and multiprocessing.
_AT_EXIT = frozenset(("_shutdown", "_python_exit", "_exit_function"))
_TYPED = ("<string>", "<stdin>")  # a program that was not read from a file
_WRAPPERS = frozenset(
    ("wrapper", "_wrapped_call_impl", "_call_impl", "decorate_context", "inner", "_fn", "inner_wrapper")
)


@dataclass(frozen=True)
class CodePlace:
    """Where a rank is. ``text`` reads ``all_reduce at train.py:88`` or ``data.py:41 in load``; ``path`` is the file."""

    text: str
    kind: Kind
    path: str = ""
    line: int = 0

    @property
    def needs_others(self) -> bool:
        """Whether other ranks can be the reason that a rank stays there for long."""
        return self.kind in _NEEDS_OTHERS

    @property
    def code_line(self) -> str:
        """The file and line, quoted as code."""
        return f"`{self.path}:{self.line}`"


@dataclass(frozen=True)
class RankGroup:
    """Ranks that are at the same place."""

    place: CodePlace
    stacks: tuple[RankStack, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The rank numbers, in order."""
        return tuple(stack.rank for stack in self.stacks)


def is_collective(frame: Frame) -> bool:
    """Return whether a frame is in one of torch's collective functions."""
    return _COLLECTIVE.search(f"{frame.file} {frame.name}") is not None


def place_of(stack: RankStack) -> CodePlace:
    """Return where the main thread of ``stack`` is."""
    frames = stack.main
    if not frames and stack.state in ("T", "t"):
        return CodePlace("stopped by a signal", "own")
    if not frames and stack.state == "D":
        return CodePlace(f"in the kernel ({stack.kernel or 'uninterruptible'})", "own")
    if not frames:
        return CodePlace(stack.problem or "no Python frame", "unknown")
    # A program that is itself in a library, as with `-m`, has no frame of its own.
    place = next((position for position, frame in enumerate(frames) if frame.is_own or frame.file in _TYPED), 0)
    frame, inner = frames[place], frames[:place]
    kind = "own" if place == 0 and frame.is_own else _kind(inner or frames)
    call = _call(inner, kind) if inner else ""
    text = f"{call} at {frame.at}" if call else frame.place
    return CodePlace(text, kind, frame.file, frame.line)


def groups(stacks: Iterable[RankStack]) -> tuple[RankGroup, ...]:
    """Return the ranks grouped by place, the most conspicuous group first.

    Groups that wait for others come after those that do not, and unknown places last; smaller groups come first.
    """
    by_place: dict[CodePlace, list[RankStack]] = {}
    for stack in sorted(stacks, key=lambda stack: stack.rank):
        by_place.setdefault(place_of(stack), []).append(stack)
    all_groups = [RankGroup(place, tuple(members)) for place, members in by_place.items()]

    def order(group: RankGroup) -> tuple[bool, bool, int, tuple[int, ...]]:
        return (group.place.kind == "unknown", group.place.needs_others, len(group.ranks), group.ranks)

    return tuple(sorted(all_groups, key=order))


def _kind(inner: Sequence[Frame]) -> Kind:
    """Return what the library frames do; the outermost call decides, because the user made it."""
    calls = (f"{frame.file} {frame.name}" for frame in reversed(inner))
    matches = (match for call in calls for pattern in _KINDS if (match := pattern.search(call)))
    return cast("Kind", next((match.lastgroup for match in matches), "own"))


def _call(inner: Sequence[Frame], kind: Kind) -> str:
    """Return the function that the user's line called, skipping decorators; empty if it called no Python."""
    if kind == "collective":
        calls = [frame.name for frame in inner if is_collective(frame)]
        return calls[-1] if calls else "DDP's forward"
    if inner[-1].file.startswith("<frozen importlib"):
        return "import"
    for frame in reversed(inner):
        name = frame.name
        if name not in _WRAPPERS and not name.startswith("<"):
            return f"DataLoader.{name}" if frame.file.endswith("/dataloader.py") and name.startswith("__") else name
    return ""


def waits_for_program(stack: RankStack) -> bool:
    """Return whether the main thread waits for the end or the output of a program that it started."""
    if stack.kernel.lstrip("_") == "do_wait":  # not futex_do_wait, in which newer kernels wait for a lock
        return True
    own_position = next((at for at, frame in enumerate(stack.main) if frame.is_own), len(stack.main))
    return any(frame.file.endswith("/subprocess.py") for frame in stack.main[:own_position])


def is_through(stack: RankStack) -> bool:
    """Return whether a rank's program has ended and its interpreter waits for remaining threads and processes."""
    return any(frame.function in _AT_EXIT for frame in stack.main) and not any(frame.is_own for frame in stack.main)


def is_at_its_end(stack: RankStack) -> bool:
    """Return whether a rank is printing the exception that ended it, or cleaning up at its end; both are soon over."""
    if stack.main and all("/ddplaunch/agent/rank_site/" in frame.file for frame in stack.main):
        return True
    return any("excepthook" in frame.function or frame.function == "_exitfunc" for frame in stack.main)


def at_text(group: RankGroup) -> str:
    """Return ``at train.py:41 in load``, or ``in all_reduce at train.py:88``."""
    if not group.place.path:
        return group.place.text
    return f"{'in' if ' at ' in group.place.text else 'at'} {group.place.text}"


def evidence_of(found: Sequence[RankGroup]) -> tuple[Evidence, ...]:
    """Return the places of the first few groups, if they are in files."""
    return tuple(
        Evidence(group.place.path, group.place.line, f"{ranks_text(group.ranks)}: {group.place.text}")
        for group in found[:_EVIDENCE]
        if group.place.path
    )


def calls_of(stack: RankStack) -> tuple[UserCall, ...]:
    """Return the user's calls that a rank on this machine is in, outermost first, with their source lines."""
    return _calls(stack.main, True)


def _calls(innermost_first: Sequence[Frame], read_files: bool) -> tuple[UserCall, ...]:
    frames = innermost_first[::-1]
    return user_calls(
        frames, [linecache.getline(frame.file, frame.line).strip() for frame in frames] if read_files else ()
    )


def dumped_calls(lines: Sequence[Line], read_files: bool = False) -> tuple[UserCall, ...]:
    """Return the user's calls in faulthandler's stacks below the first of ``lines``; none without a dump.

    Of several threads the current one is taken, else the main one. Other lines of the crash may precede the stacks. A
    dump has no source lines: ``read_files`` takes them from the files that it names.
    """
    texts = [line.text for line in lines[:_DUMPED] if line.speaker == lines[0].speaker]
    begun = next((at for at, text in enumerate(texts[:_NEAR]) if _DUMP.match(text)), len(texts))
    dump = "\n".join(texts[begun + 1 :])
    current = dump.find("Current thread")
    threads = from_faulthandler(dump[max(0, current) :])
    return _calls(threads[0 if current < 0 else -1].frames, read_files) if threads else ()
