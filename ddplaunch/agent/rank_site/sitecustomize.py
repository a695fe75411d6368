"""Lets a rank print its stacks on a signal, into memory that others can read.

A rank is a plain interpreter, and nothing from outside can call into it without the rights of a debugger. So where
stacks were asked for, the plug-in puts this folder in front of the rank's PYTHONPATH; Python's ``site`` imports
``sitecustomize`` from there (https://docs.python.org/3/library/site.html), and this one

- takes itself out again: PYTHONPATH and sys.path are as they were, so are those of whatever the rank starts,
- lets ``faulthandler`` answer a real-time signal that nobody uses, without a thread and without Python code running,
- notes for `--trace` when the rank had Python, torch, and its first collective, if that was asked for,
- imports the sitecustomize that it stands in front of, if there is one.

It is run by whatever Python a rank is, so it imports nothing of ddplaunch.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` is not imported at the start of an interpreter
if TYPE_CHECKING:
    from collections.abc import MutableMapping

#: Present for the ranks whose stacks may be asked for; the value is the PYTHONPATH that the rank would have had.
MARK = "DDPLAUNCH_STACKS"
#: What the memory is called in /proc/PID/fd.
MEMORY = "ddplaunch-stacks"
_FAR_AWAY = 200  # the descriptor: low numbers are what scripts compare and redirect


def signal_number() -> int:
    """Return the signal: a real-time one, because programs and schedulers have their own use for the others."""
    import signal

    return int(signal.SIGRTMAX) - 6


def restore(environ: MutableMapping[str, str]) -> bool:
    """Put PYTHONPATH back to what it was; return whether stacks were asked for."""
    before = environ.pop(MARK, None)
    if before is None:
        return False
    if before:
        environ["PYTHONPATH"] = before
    else:
        environ.pop("PYTHONPATH", None)
    return True


def register() -> None:
    """Let faulthandler write all threads' stacks into memory of this process when the signal comes. Never raises."""
    try:
        import faulthandler
        import fcntl

        low = os.memfd_create(MEMORY, os.MFD_CLOEXEC)
        try:
            memory = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FAR_AWAY)
        finally:
            os.close(low)
        fcntl.fcntl(memory, fcntl.F_SETFL, os.O_APPEND)
        faulthandler.register(signal_number(), file=memory, all_threads=True, chain=False)
    except Exception:  # stacks are a convenience: the training is not
        return


def _take_part() -> None:
    marks = os.environ.pop("DDPLAUNCH_MARKS", None)
    if marks is not None:
        import ddplaunch_marks  # type: ignore[import-not-found]  # beside this file

        del sys.modules["ddplaunch_marks"]
        ddplaunch_marks.begin(marks)
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes longer than all of this
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    asked = restore(os.environ)
    if asked:
        register()
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
