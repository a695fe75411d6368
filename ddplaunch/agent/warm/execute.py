"""Runs a program as `python -u PROGRAM` does and ends the process as it does; refuses to prepare anything.

Uses the interpreter's own functions: PyRun_AnyFileExFlags reads, runs, and prints what is raised
(https://docs.python.org/3/c-api/veryhigh.html), Py_Exit waits for threads, runs ``atexit`` handlers, and takes all
modules down, so that open files are written and ``__del__`` runs.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import itertools
import os
import pkgutil
import runpy
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

Program = Callable[[], object]


def script(path: str) -> Program:
    """Return what runs the Python file at ``path``, to be called with no Python frame beneath. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fopen.restype = ctypes.c_void_p
    stream = libc.fopen(os.fsencode(path), b"rbe")
    if not stream:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    run: Any = ctypes.pythonapi.PyRun_AnyFileExFlags
    run.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p)
    return _and_end(itertools.starmap(run, [(stream, os.fsencode(path), 1, None)]))


def module(name: str, *, named_by_user: bool) -> Program:
    """Return what runs a module as `python -m NAME` does, or a folder's or archive's ``__main__``."""
    return _and_end(itertools.starmap(_run_module, [(name, named_by_user)]))


def is_importable(path: str) -> bool:
    """Say whether Python would look for ``__main__`` inside ``path``: a folder, or an archive."""
    return pkgutil.get_importer(path) is not None


def _run_module(name: str, named_by_user: bool) -> int:
    """Return 0, or another number if it raised."""
    try:
        runpy._run_module_as_main(name, named_by_user)  # type: ignore[attr-defined]
    except SystemExit:
        raise  # the interpreter ends the process with its code
    except BaseException as exception:
        trace = exception.__traceback__.tb_next if exception.__traceback__ else None
        exception.__traceback__ = trace
        sys.last_type, sys.last_value, sys.last_traceback = type(exception), exception, trace
        sys.excepthook(type(exception), exception, trace)
        return 1
    return 0


def _and_end(failed: Iterator[int]) -> Program:
    """Return what takes the first of ``failed``, and ends the process accordingly.

    Iterators in C call both, so that nothing of ours is beneath what runs at the end either: an ``atexit`` handler can
    look at its stack, and one that fails prints it.
    """
    return functools.partial(collections.deque, map(ctypes.pythonapi.Py_Exit, map(_status, failed)), 0)


def _status(failed: int) -> int:
    """Return the exit status as Py_RunMain does: an interrupt that nobody caught is to kill the process by SIGINT."""
    kind = getattr(sys, "last_type", None)
    if failed and isinstance(kind, type) and issubclass(kind, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        libc = ctypes.CDLL(None)
        # exit(SIGINT) calls raise(SIGINT, NULL), when the interpreter is down and no Python could do it any more
        libc.on_exit(libc["raise"], None)
        return int(signal.SIGINT)
    return 1 if failed else 0
