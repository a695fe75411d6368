"""Python stacks as py-spy and faulthandler print them, as values; refuses to judge where a rank should be.

faulthandler: https://docs.python.org/3/library/faulthandler.html; py-spy: https://github.com/benfred/py-spy.
"""

from __future__ import annotations

import json
import re

from ddplaunch.frozen import dataclass

_THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x(?P<id>[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):$"
)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')


@dataclass(frozen=True)
class Frame:
    """One call: where it stands, and the function that it stands in (qualified where the source tells)."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class ThreadStack:
    """One thread. ``frames`` are innermost first, empty for a thread that runs no Python."""

    name: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class RankStack:
    """Where one rank is. ``threads`` begin with the main one; empty where ``problem`` says why nothing is known.

    ``state`` is the kernel's letter (proc_pid_stat(5)), ``kernel`` the kernel function in which the main thread waits,
    empty for none, ``reads`` the file that it reads from, as far as the kernel tells; ``source`` who told. ``workers``
    are its DataLoader workers, where they were asked.
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

    @property
    def main(self) -> tuple[Frame, ...]:
        """The main thread's frames, innermost first."""
        return self.threads[0].frames if self.threads else ()


def from_faulthandler(text: str) -> tuple[ThreadStack, ...]:
    """Return the threads of the last dump in ``text``, the main one first.

    CPython lists the youngest thread first, so the main one is the last. Two dumps are told apart by a thread that
    comes again.
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


def from_py_spy(text: str) -> tuple[ThreadStack, ...]:
    """Return the threads of ``py-spy dump --json``, the main one first. Raises ValueError for anything else."""
    found = []
    try:
        for thread in json.loads(text):
            frames = tuple(
                Frame(str(each["filename"]), int(each["line"]), str(each["name"])) for each in thread["frames"]
            )
            is_main = thread.get("os_thread_id") == thread["pid"] or thread.get("thread_name") == "MainThread"
            found.append((not is_main, ThreadStack(str(thread.get("thread_name") or ""), frames)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"py-spy printed something unknown: {error!r}") from error
    return tuple(thread for _, thread in sorted(found, key=lambda each: each[0]))


def stack_text(stack: RankStack, who: str = "") -> str:
    """Return all threads of a rank as text, in the order and the form of a Python traceback of faulthandler."""
    head = f"{who or f'rank {stack.rank}'}, pid {stack.pid}" + (f", by {stack.source}" if stack.source else "")
    lines = [head]
    if stack.kernel:
        lines.append(f"  waits in the kernel: {stack.kernel}" + (f", reading {stack.reads}" if stack.reads else ""))
    if stack.problem:
        lines.append(f"  no stack: {stack.problem}")
    for position, thread in enumerate(stack.threads):
        name = thread.name or ("main" if position == 0 else "another")
        lines.append(f"  thread {name} (most recent call first):")
        lines += [f'    File "{frame.file}", line {frame.line} in {frame.function}' for frame in thread.frames]
    workers = (stack_text(each, f"DataLoader worker of rank {stack.rank}") for each in stack.workers)
    return "\n".join(lines) + "\n" + "".join(workers)
