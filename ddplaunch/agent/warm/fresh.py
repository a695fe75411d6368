"""Makes a forked process like a newly started interpreter, runs the script in it, and ends it like one.

Each rule removes a difference that a script could see, and is tested by a case of ``tests/warm/programs/cases.py``,
which runs both forked and newly started.

*Running.* The interpreter's own functions run the program: PyRun_AnyFileExFlags reads and runs it and prints its
exception (https://docs.python.org/3/c-api/veryhigh.html); Py_Exit waits for threads, runs ``atexit`` handlers, and
clears all modules, so that open files are written and ``__del__`` runs.

*Leaving torchrun's frames.* A script can notice frames below its own: by its recursion limit, by ``inspect.stack()``,
by faulthandler's dumps. So the fork raises an exception that is never caught, and continues in ``sys.excepthook``,
where all Python frames are gone.

*Ending.* A process with torch loaded spends more than half of its exit on the C++ destructors of torch's libraries; in
a fork, each page that they write to is copied first. These destructors are skipped. Everything that the rank set up
after the fork ends as usual: Python's whole finalisation, ``atexit`` handlers of Python and C, open files.
"""

from __future__ import annotations

import atexit
import builtins
import collections
import contextlib
import ctypes
import functools
import importlib
import itertools
import operator
import os
import pkgutil
import runpy
import signal
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from ddplaunch.agent.rank_site import ddplaunch_marks, ddplaunch_observer, ddplaunch_phases
from ddplaunch.agent.rank_site.sitecustomize import ENDED, MARK, begin, when_through
from ddplaunch.agent.warm.first_import import FirstImport
from ddplaunch.agent.warm.requests import Request

Program = Callable[[], object]


def script(path: str) -> Program:
    """Return a program that runs the Python file at ``path``; call it without Python frames below. Raises OSError."""
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
    """Return a program that runs a module as `python -m NAME` does, or the ``__main__`` of a folder or archive."""
    return _and_end(itertools.starmap(_run_module, [(name, named_by_user)]))


def _run_module(name: str, named_by_user: bool) -> int:
    """Run the module; return 0, or 1 if it raised."""
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
    """Return a program that takes the first item of ``failed``, and ends the process with the matching status.

    C iterators make both calls, so that no frame of ours is below code that runs at the end either: an ``atexit``
    handler can look at its stack, and prints it if it fails.
    """
    return functools.partial(collections.deque, map(ctypes.pythonapi.Py_Exit, map(_status, failed)), 0)


def _status(failed: int) -> int:
    """Return the exit status as Py_RunMain does: an uncaught KeyboardInterrupt kills the process by SIGINT."""
    kind = getattr(sys, "last_type", None)
    if failed and isinstance(kind, type) and issubclass(kind, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        libc = ctypes.CDLL(None)
        # exit(SIGINT) calls raise(SIGINT, NULL) after the interpreter has shut down, when Python could not do it
        libc.on_exit(libc["raise"], None)
        return int(signal.SIGINT)
    return 1 if failed else 0


def become(request: Request, seed: int | None) -> Program:
    """Make this process like `python -u …` just before the script's first line; return the program that runs it.

    ``seed`` is torch's initial seed before the fork and preloaded modules. Writes to as little memory as possible, as
    ranks no longer share a page once it is written to. Raises OSError if the script cannot be read.
    """
    if request.cpus is not None:
        with contextlib.suppress(OSError):  # the cpuset has changed
            os.sched_setaffinity(0, request.cpus)
    os.environ.clear()
    os.environ.update(request.environ)
    if MARK in os.environ:
        atexit.register(when_through(os.environ.pop(ENDED, None)))
    sys.orig_argv = list(request.args)
    sys.argv = request.argv
    _main_module()
    program, first = _program(request)
    if first is not None:
        sys.path.insert(0, first)
    _signals()
    begin(ddplaunch_marks, {"ddplaunch_phases": ddplaunch_phases, "ddplaunch_observer": ddplaunch_observer}.get)
    _threads()
    _processes()
    _random(seed)
    _logging()
    FirstImport()
    return program


def _program(request: Request) -> tuple[Program, str | None]:
    """Return a program that runs the target, and the first entry of ``sys.path`` for it, None for none.

    The entry is the interpreter's choice: the folder of the script with links resolved, the working directory for
    ``-m``, or the folder or archive itself if the target is one (https://docs.python.org/3/using/cmdline.html).
    """
    safe = getattr(sys.flags, "safe_path", False)
    if request.is_module:
        return module(request.target, named_by_user=True), None if safe else str(Path.cwd())
    # not normalised: `./` and `..` stay as typed
    path = request.target if request.target.startswith(os.sep) else f"{Path.cwd()}{os.sep}{request.target}"
    if pkgutil.get_importer(path) is not None:  # a folder, or an archive
        return module("__main__", named_by_user=False), path
    return script(path), None if safe else str(Path(path).resolve().parent)


def _main_module() -> None:
    main = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    if sys.version_info < (3, 14):
        vars(main)["__annotations__"] = {}
    main.__loader__ = importlib.machinery.BuiltinImporter
    sys.modules["__main__"] = main


def _signals() -> None:
    """Reset handlers and keep ignored signals, as execve does; keep Python's own three as at its start.

    Signals that torchrun handles get their defaults in a rank, even if they were ignored when torchrun started.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
        elif number in (signal.SIGTERM, signal.SIGQUIT) or handler not in (signal.SIG_DFL, signal.SIG_IGN, None):
            signal.signal(number, signal.SIG_DFL)


def _threads() -> None:
    import threading

    main: Any = threading.main_thread()
    if hasattr(main, "_set_native_id"):
        main._set_native_id()
    naming: Any = threading
    naming._counter = itertools.count(1).__next__


def _processes() -> None:
    """Make this a main process for multiprocessing: own authentication key, children counted from 1, no tracker."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is None:
        return
    process._current_process = type(process._current_process)()
    process._parent_process = None
    process._process_counter = itertools.count(1)
    process._children = set()
    process.ORIGINAL_DIR = str(Path.cwd())
    tracker: Any = sys.modules.get("multiprocessing.resource_tracker")
    if tracker is not None and tracker._resource_tracker._fd is not None:
        tracker._resource_tracker._fd = tracker._resource_tracker._pid = None


def torch_seed() -> int | None:
    """Return the initial seed of torch's CPU generator; None without torch."""
    torch: Any = sys.modules.get("torch")
    return None if torch is None else int(torch.initial_seed())


def _random(seed: int | None) -> None:
    """Reseed the generators that a new process seeds randomly; Python's own is already reseeded by the fork.

    If torch's seed differs from ``seed``, a preloaded module set it: keep it, as each rank would have set it too.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.initial_seed() == seed:
        torch.default_generator.seed()
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _logging() -> None:
    """Remove torchrun's logger `__main__`, and count logging's relative time from the rank's start."""
    import time

    module: Any = sys.modules.get("logging")
    if module is not None:
        module.root.manager.loggerDict.pop("__main__", None)
        module._startTime = time.time() if sys.version_info < (3, 13) else time.time_ns()


def leave_libraries_alone() -> None:
    """Let this process and its forks exit as soon as the exit handlers registered after this call have run.

    exit(3) calls handlers in reverse order, so all that were registered earlier are skipped; ``on_exit`` passes the
    status (https://man7.org/linux/man-pages/man3/on_exit.3.html). Does nothing with a C library without ``on_exit``.
    """
    libc: Any = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)  # runs before `_exit`: flushes stdio's buffers


#: Seconds until a fork is killed if an ``except BaseException`` caught ``_Unwound``: it must not act as torchrun.
_DEADLINE_S = 10


class _Unwound(BaseException):
    """Raised to leave all Python frames, and never caught; ``go_on`` is called after that."""

    go_on: Callable[[], object]


def leave(prepare: Callable[[], Program]) -> NoReturn:
    """Leave all Python frames, call ``prepare``, and run the program that it returns without Python frames below.

    The interpreter calls ``sys.excepthook`` with three arguments when all frames are left. A hook in Python would be a
    frame below the program, so it is `max`, in C, which calls its key with each argument in turn: ``go_on`` of the
    class prepares, ``go_on`` of the instance is the program. The program must end the process.
    """
    unwound, hook = _Unwound(), sys.excepthook

    def prepare_program() -> None:
        signal.alarm(0)
        sys.excepthook = hook
        if unwound.__traceback__ is not None:
            traceback.clear_frames(unwound.__traceback__)  # else torchrun's objects in them would stay alive
        unwound.__traceback__ = None
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            if hasattr(sys, name):
                delattr(sys, name)
        unwound.go_on = prepare()

    _Unwound.go_on = staticmethod(prepare_program)
    sys.excepthook = functools.partial(max, key=operator.methodcaller("go_on"))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_DEADLINE_S)
    raise unwound
