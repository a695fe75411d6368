"""Lets a rank end with torchrun, note with which numbers it trains, count its steps, and print its stacks on a signal.

A rank is a plain interpreter, and nothing from outside can call into it without the rights of a debugger. So the
plug-in puts this folder in front of the rank's PYTHONPATH; Python's ``site`` imports
``sitecustomize`` from there (https://docs.python.org/3/library/site.html), and this one

- takes itself out again: PYTHONPATH and sys.path are as they were, so are those of whatever the rank starts,
- has the kernel send SIGTERM to the rank when torchrun, its parent, is gone,
- lets ``faulthandler`` answer a real-time signal that nobody uses, without a thread and without Python code running,
  into memory that others can read, and counts steps and batches, if stacks were asked for,
- lets gloo's threads finish before the interpreter ends, which would abort the rank now and then, and notes that the
  program was through, for the case that another library's destructor aborts it all the same,
- may have no more memory than `--memory` says, if that was asked for,
- keeps its DataLoader workers when a batch system sends SIGTERM to every process (``ddplaunch_marks.py``),
- looks at the first optimizer steps, unless that is not wanted (``ddplaunch_observer.py``),
- measures the phases of each step for `--phases`, if that was asked for (``ddplaunch_phases.py``),
- lets torch be imported without the garbage collector (``ddplaunch_marks.py``),
- imports the sitecustomize that it stands in front of, if there is one.

For torchrun itself it makes Ctrl-C end the process, without a traceback, until the plug-in is there, and torch be
imported in the same way.

It is run by whatever Python a rank is, so it imports nothing of ddplaunch.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` is not imported at the start of an interpreter
if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from typing import Any

#: Present for the ranks that take part in something here; the value is the PYTHONPATH that the rank would have had.
MARK = "DDPLAUNCH_SITE"
#: Present for the ranks whose stacks may be asked for.
STACKS = "DDPLAUNCH_STACKS"
#: The process whose end is to be the rank's. A rank that a shell script has started has another parent, and stays.
PARENT = "DDPLAUNCH_PARENT"
#: Present for the ranks that may have only so much memory: how many bytes.
LIMIT = "DDPLAUNCH_MEMORY"
#: Present for torchrun, which ddplaunch has become with SIGINT blocked.
INTERRUPTIBLE = "DDPLAUNCH_INTERRUPTIBLE"
#: Where a rank is to note that its program is through, and only its libraries are left to be taken down.
ENDED = "DDPLAUNCH_ENDED"
#: What the memory is called in /proc/PID/fd.
MEMORY = "ddplaunch-stacks"
_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes longer than all of this
_FAR_AWAY = 200  # the descriptor: low numbers are what scripts compare and redirect
_GLOO = "Name:\tpt_gloo_runloop\n"  # as torch names the threads: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp
_PATIENCE_S = 2
_COUNTS_BYTES = 16  # of steps and batches, in front of the stacks


def signal_number() -> int:
    """Return the signal: a real-time one, because programs and schedulers have their own use for the others."""
    import signal

    return int(signal.SIGRTMAX) - 6


def restore(environ: MutableMapping[str, str]) -> bool:
    """Take this folder out of PYTHONPATH, wherever a shell script has moved it; return whether stacks are shown."""
    before, stacks, _ = environ.pop(MARK, None), environ.pop(STACKS, None), environ.pop(PARENT, None)
    if before is None:
        return False
    entries = environ.get("PYTHONPATH", "").split(":")
    if _HERE in entries:
        entries.remove(_HERE)
        before = ":".join(entries)
    if before:
        environ["PYTHONPATH"] = before
    else:
        environ.pop("PYTHONPATH", None)
    return stacks is not None


def limit_memory(environ: MutableMapping[str, str]) -> None:
    """Have the kernel refuse this process, and each that it starts, more memory of its own than it may have.

    RLIMIT_DATA counts private memory that can be written (setrlimit(2)): an allocation beyond it fails where it is
    made, as on a machine without memory, and what a program says then names the line. Never raises.
    """
    limit = environ.pop(LIMIT, "")
    if not limit.isdecimal():
        return
    try:
        import resource

        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        both = int(limit) if most < 0 else min(int(limit), most)
        resource.setrlimit(resource.RLIMIT_DATA, (both, both))
    except (ImportError, OSError, ValueError):
        return


def register(count: Callable[[int], None]) -> None:
    """Let faulthandler write all threads' stacks into memory of this process when the signal comes. Never raises.

    ``count`` is called with the memory, whose first bytes are for the numbers of steps and batches.
    """
    try:
        import faulthandler
        import fcntl

        low = os.memfd_create(MEMORY, os.MFD_CLOEXEC)
        try:
            memory = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FAR_AWAY)
        finally:
            os.close(low)
        os.truncate(memory, _COUNTS_BYTES)
        fcntl.fcntl(memory, fcntl.F_SETFL, os.O_APPEND)
        faulthandler.register(signal_number(), file=memory, all_threads=True, chain=False)
        count(memory)
    except Exception:  # stacks are a convenience: the training is not
        return


def let_gloo_finish() -> None:
    """Wait, at most two seconds, until no thread of gloo is at work. Does nothing in a rank without gloo.

    A collective is over for the program before gloo's thread has let go of its tensors. If the interpreter ends just
    then, that thread asks for the GIL, is ended by Python as threads were until 3.14, and C++ calls it an error:
    `terminate called without an active exception`, status 134 instead of 0. That was 23 of 240 ranks on a busy machine.
    """
    import time

    if "torch._C._distributed_c10d" not in sys.modules:
        return
    end = time.monotonic() + _PATIENCE_S
    seen = _gloo_threads()
    while seen and time.monotonic() < end:
        time.sleep(0.002)  # the GIL is free meanwhile, and who waits for it is woken
        before, seen = seen, _gloo_threads()
        if seen == before and all("\nState:\tS" in each for each in seen):
            return


def when_through(path: str | None) -> Callable[[], None]:
    """Return what runs last before the libraries are taken down: it waits for gloo, and leaves a note at ``path``.

    The note says "group" where the process group still exists, else "through". A program that an exception ended leaves
    none, and a process that the rank has forked leaves none.
    """
    owner = os.getpid()

    def through() -> None:
        let_gloo_finish()
        if path is None or os.getpid() != owner or getattr(sys, "last_value", None) is not None:
            return
        try:
            dist = sys.modules.get("torch.distributed")
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                os.write(descriptor, b"group" if dist is not None and dist.is_initialized() else b"through")
            finally:
                os.close(descriptor)
        except Exception:  # the note is a convenience
            return

    return through


def _gloo_threads() -> list[str]:
    """Return what the kernel says of each, with its switches: one that was woken and sleeps again has one more."""
    found = []
    tasks = "/proc/self/task"
    try:
        for thread in os.listdir(tasks):  # noqa: PTH208 - pathlib is not imported here
            with open(f"{tasks}/{thread}/status", encoding="utf-8", errors="replace") as file:
                said = file.read()
            if said.startswith(_GLOO):
                found.append(said[: said.index("\nVm")] + said[said.index("\nvoluntary_ctxt_switches") :])
    except (OSError, ValueError):  # one has just ended, or this kernel says something else
        return []
    return found


def _end_with(parent: str) -> None:
    """Have the kernel send SIGTERM to this process when its ``parent`` is gone (PR_SET_PDEATHSIG, prctl(2)).

    It asks ranks to end as the guard does, which kills what does not; both may be killed at once. Never raises.
    """
    if str(os.getppid()) != parent:
        return
    try:
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
        if str(os.getppid()) != parent:
            os.kill(os.getpid(), signal.SIGTERM)
    except Exception:  # the guard is there too
        return


def _end_quietly() -> None:
    """Let Ctrl-C end torchrun while it imports torch, without a traceback."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def begin(marks: Any, load: Callable[[str], Any]) -> None:
    """Begin what this rank was asked for; ``marks`` is ``ddplaunch_marks``, ``load`` returns a module beside it."""
    limit_memory(os.environ)
    marks.keep_data_workers()
    for name, variable in (("ddplaunch_phases", "DDPLAUNCH_PHASES"), ("ddplaunch_observer", "DDPLAUNCH_OBSERVE")):
        path = os.environ.pop(variable, None)
        if path is not None:
            load(name).begin(path, marks.after_import)
    if restore(os.environ):
        register(marks.count_work)


def _take_part() -> None:
    import atexit

    if os.environ.pop(INTERRUPTIBLE, None) is None:
        ended, direct = os.environ.pop(ENDED, None), str(os.getppid()) == os.environ.get(PARENT)
        atexit.register(when_through(ended if direct else None))  # the first that is registered is the last to run
    else:
        _end_quietly()
    _end_with(os.environ.pop(PARENT, ""))
    import ddplaunch_marks  # type: ignore[import-not-found]  # beside this file

    ddplaunch_marks.import_quickly("torch")
    begin(ddplaunch_marks, __import__)
    sys.modules.pop("ddplaunch_observer", None)
    del sys.modules["ddplaunch_marks"]
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]  # noqa: PTH100
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - the one behind this one
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


if __name__ == "sitecustomize":
    _take_part()
