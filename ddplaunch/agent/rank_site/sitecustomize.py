"""Prepares a rank at its start: it ends with torchrun, notes its numbers, counts its steps, shows stacks on a signal.

A rank is a plain interpreter, and other processes cannot call into it without a debugger's rights. So the plug-in puts
this folder first in the rank's PYTHONPATH; Python's ``site`` imports ``sitecustomize`` from there
(https://docs.python.org/3/library/site.html), and this one

- removes the folder again: PYTHONPATH and sys.path are as before, for the rank and the programs that it starts,
- has the kernel send SIGTERM to the rank when torchrun, its parent, is gone,
- lets ``faulthandler`` write stacks on an unused real-time signal, without a thread or Python code, into memory that
  other processes can read, and counts steps and batches, if stacks were asked for,
- lets gloo's threads finish before the interpreter ends, which could otherwise abort the rank, and notes that the
  program has finished, in case another library's destructor aborts it even so,
- limits the rank's memory to `--memory`, if that was given,
- keeps DataLoader workers alive when a batch system sends SIGTERM to every process (``ddplaunch_marks.py``),
- observes the first optimizer steps, unless turned off (``ddplaunch_observer.py``),
- waits for a debugger, if this is the rank of `--debug`,
- measures the phases of each step for `--phases`, if that was given (``ddplaunch_phases.py``),
- lets torch be imported without the garbage collector (``ddplaunch_marks.py``),
- imports the sitecustomize that would have been found without this folder, if there is one.

In torchrun itself, it makes Ctrl-C end the process without a traceback until the plug-in is loaded, and also lets torch
be imported without the garbage collector.

It runs in whatever Python a rank is, so it imports nothing of ddplaunch.
"""

from __future__ import annotations

import atexit
import os
import sys

TYPE_CHECKING = False  # `typing` is not imported at the start of an interpreter
if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from typing import Any

#: Set for ranks that use any of this; the value is the PYTHONPATH that the rank would have had.
MARK = "DDPLAUNCH_SITE"
#: Set for ranks that show their stacks on the signal.
STACKS = "DDPLAUNCH_STACKS"
#: The pid of the process with which the rank ends. A rank started by a shell script has another parent, and goes on.
PARENT = "DDPLAUNCH_PARENT"
#: Set for ranks with limited memory: the limit in bytes.
LIMIT = "DDPLAUNCH_MEMORY"
#: Set for torchrun, which ddplaunch has executed with SIGINT blocked.
INTERRUPTIBLE = "DDPLAUNCH_INTERRUPTIBLE"
#: The path where a rank notes that its program has finished, and only its libraries are left to shut down.
ENDED = "DDPLAUNCH_ENDED"
#: Set for ranks of which this one waits for a debugger.
DEBUG = "DDPLAUNCH_DEBUG"
#: The name of the shared memory in /proc/PID/fd.
MEMORY = "ddplaunch-stacks"
HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes longer than all of this
_FAR_AWAY = 200  # the memory's descriptor: scripts may compare and redirect low numbers
_GLOO = "Name:\tpt_gloo_runloop\n"  # torch's name of the threads: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp
_PATIENCE_S = 2
_COUNTS_BYTES = 16  # the counts of steps and batches, before the stacks


def signal_number() -> int:
    """Return the signal that asks for stacks: a real-time one, as programs and schedulers use the others."""
    import signal

    return int(signal.SIGRTMAX) - 6


def restore(environ: MutableMapping[str, str]) -> bool:
    """Remove this folder from PYTHONPATH, wherever a shell script moved it; return whether stacks are shown."""
    before, stacks, _ = environ.pop(MARK, None), environ.pop(STACKS, None), environ.pop(PARENT, None)
    if before is None:
        return False
    entries = environ.get("PYTHONPATH", "").split(":")
    if HERE in entries:
        entries.remove(HERE)
        before = ":".join(entries)
    if before:
        environ["PYTHONPATH"] = before
    else:
        environ.pop("PYTHONPATH", None)
    return stacks is not None


def limit_memory(environ: MutableMapping[str, str]) -> None:
    """Limit the private memory of this process, and of each process that it starts. Never raises.

    RLIMIT_DATA counts private writable memory (setrlimit(2)): an allocation beyond it fails where it is made, as on a
    machine without free memory, so the error names the line.
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
    """Let faulthandler write all threads' stacks into shared memory when the signal comes. Never raises.

    ``count`` is called with the memory's descriptor; its first bytes are for the counts of steps and batches.
    """
    try:
        import faulthandler
        import fcntl

        low = os.memfd_create(MEMORY)
        try:
            memory = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FAR_AWAY)
        finally:
            os.close(low)
        os.truncate(memory, _COUNTS_BYTES)
        fcntl.fcntl(memory, fcntl.F_SETFL, os.O_APPEND)
        faulthandler.register(signal_number(), file=memory, all_threads=True, chain=False)
        count(memory)
    except Exception:  # stacks are optional, and must not stop the training
        return


def let_gloo_finish() -> None:
    """Wait, at most two seconds, until gloo's threads are idle. Do nothing in a rank without gloo.

    A collective is over for the program before gloo's thread has released its tensors. If the interpreter ends just
    then, that thread asks for the GIL, Python before 3.14 ends the thread, and C++ reports
    `terminate called without an active exception`: status 134 instead of 0. This hit 23 of 240 ranks on a busy machine.
    """
    import time

    if "torch._C._distributed_c10d" not in sys.modules:
        return
    end = time.monotonic() + _PATIENCE_S
    seen = _gloo_threads()
    while seen and time.monotonic() < end:
        time.sleep(0.002)  # releases the GIL, so that threads that wait for it can run
        before, seen = seen, _gloo_threads()
        if seen == before and all("\nState:\tS" in each for each in seen):
            return


def when_through(path: str | None) -> Callable[[], None]:
    """Return a function to run last before libraries shut down: it waits for gloo, and leaves a note at ``path``.

    The note is "group" if the process group still exists, else "through". A program that an exception ended, or a
    process forked by the rank, leaves no note.
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
        except Exception:  # the note is optional
            return

    return through


def _gloo_threads() -> list[str]:
    """Return the kernel's status of each gloo thread, with its switches: they grow when it wakes and sleeps again."""
    found = []
    tasks = "/proc/self/task"
    try:
        for thread in os.listdir(tasks):  # noqa: PTH208 - pathlib is not imported here
            with open(f"{tasks}/{thread}/status", encoding="utf-8", errors="replace") as file:
                said = file.read()
            if said.startswith(_GLOO):
                found.append(said[: said.index("\nVm")] + said[said.index("\nvoluntary_ctxt_switches") :])
    except (OSError, ValueError):  # a thread has just ended, or the kernel's format differs
        return []
    return found


def _end_with(parent: str) -> None:
    """Have the kernel send SIGTERM to this process when its ``parent`` is gone (PR_SET_PDEATHSIG, prctl(2)).

    The guard asks ranks to end too, and kills those that do not; but it may be killed with torchrun. Never raises.
    """
    if str(os.getppid()) != parent:
        return
    try:
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
        if str(os.getppid()) != parent:
            os.kill(os.getpid(), signal.SIGTERM)
    except Exception:  # the guard ends the rank too
        return


def _end_quietly() -> None:
    """Let Ctrl-C end torchrun while it imports torch, without a traceback."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def is_watched() -> bool:
    """Return whether somebody at a terminal waits for the first output of a launch, and may be told what goes on."""
    told = "DDPLAUNCH_TYPED" in os.environ and '"quiet":true' not in os.environ["DDPLAUNCH_AGENT"]
    return told and "CI" not in os.environ and os.environ.get("TERM") != "dumb" and os.isatty(1) and os.isatty(2)


def starting_line(doing: str) -> bytes:
    """Return a line for a terminal, in place of the one before: how long the launch takes by now, and what goes on."""
    import time

    return f"\r\x1b[Kddplaunch: {time.time() - float(os.environ['DDPLAUNCH_TYPED']):.0f} s: {doing}\r".encode()


def _show_import() -> None:
    """Show every second that torchrun imports torch, unless a prompt is there (`bg`); the plug-in ends it."""
    import signal

    def show(*_: object) -> None:
        try:
            if os.tcgetpgrp(2) == os.getpgrp():
                os.write(2, starting_line("torchrun imports torch"))
        except OSError:  # a terminal of another session, as under `setsid`, or one that was closed
            signal.setitimer(signal.ITIMER_REAL, 0)

    signal.signal(signal.SIGALRM, show)
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, 0.5, 1)
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)  # a torch that cannot be imported ends with its own status


def begin(marks: Any, load: Callable[[str], Any]) -> None:
    """Begin what the environment asks for; ``marks`` is ``ddplaunch_marks``, ``load`` returns a module beside it."""
    _end_with(os.environ.pop(PARENT, ""))
    limit_memory(os.environ)
    marks.keep_data_workers()
    for name, variable in (("ddplaunch_phases", "DDPLAUNCH_PHASES"), ("ddplaunch_observer", "DDPLAUNCH_OBSERVE")):
        path = os.environ.pop(variable, None)
        if path is not None:
            load(name).begin(path, marks.after_import)
    if restore(os.environ):
        register(marks.count_work)
    if os.environ.get(DEBUG, "") == os.environ.get("RANK"):
        del os.environ[DEBUG]  # processes that the rank starts have ports of their own
        import debugpy

        debugpy.listen(5678)
        debugpy.wait_for_client()


def _take_part() -> None:
    if os.environ.pop(INTERRUPTIBLE, None) is None:
        ended, direct = os.environ.pop(ENDED, None), str(os.getppid()) == os.environ.get(PARENT)
        atexit.register(when_through(ended if direct else None))  # registered first, so it runs last
    else:
        _end_quietly()
        if is_watched():
            _show_import()
    import ddplaunch_marks  # type: ignore[import-not-found]  # beside this file

    ddplaunch_marks.import_quickly("torch")
    begin(ddplaunch_marks, __import__)
    sys.modules.pop("ddplaunch_observer", None)
    del sys.modules["ddplaunch_marks"]
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]  # noqa: PTH100
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 - the one that this one hides
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


if __name__ == "sitecustomize":
    _take_part()
