"""Makes a forked process what an interpreter that was just started would be, runs the script in it, and ends it alike.

Every rule stands for a difference that a script could see, and has its line in ``tests/warm/programs/probe.py``,
which runs both ways.

*Running.* The interpreter's own functions run the program: PyRun_AnyFileExFlags reads, runs, and prints what is raised
(https://docs.python.org/3/c-api/veryhigh.html), Py_Exit waits for threads, runs ``atexit`` handlers, and takes all
modules down, so that open files are written and ``__del__`` runs.

*Leaving torchrun's frames.* A script that runs under somebody else's frames can tell: by its recursion limit, by
``inspect.stack()``, by faulthandler's dumps. So the fork raises an exception that nobody catches, and goes on where the
interpreter hands it to ``sys.excepthook``: all Python frames are gone there.

*Ending.* A process that has torch spends more than half of its end on the C++ destructors of torch's libraries; in a
fork each page that they write to is copied before. These are left out. What the rank itself sets up after the fork
comes to its end as ever: Python's whole finalisation, ``atexit`` handlers of Python and C, open files.
"""

from __future__ import annotations

import atexit
import builtins
import collections
import contextlib
import ctypes
import faulthandler
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from ddplaunch.agent.rank_site import ddplaunch_marks, ddplaunch_observer, ddplaunch_phases
from ddplaunch.agent.rank_site.sitecustomize import ENDED, MARK, begin, when_through
from ddplaunch.agent.warm.requests import Request

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


def become(request: Request, seed: int | None) -> Program:
    """Make this process what `python -u …` would be before its first line; return what runs that line.

    ``seed`` was torch's at the first fork. Touches as little as it can: each page that it writes to is one more that
    ranks do not share. Raises OSError if the script cannot be read.
    """
    if request.cpus is not None:
        with contextlib.suppress(OSError):  # the cpuset is another one by now
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
    _faulthandler()
    begin(ddplaunch_marks, {"ddplaunch_phases": ddplaunch_phases, "ddplaunch_observer": ddplaunch_observer}.get)
    _threads()
    _processes()
    _random(seed)
    _logging()
    return program


def _program(request: Request) -> tuple[Program, str | None]:
    """Return what runs the target, and what leads ``sys.path`` meanwhile.

    As the interpreter decides it: the folder of the script with links resolved, the working directory for ``-m``, and
    the folder or archive itself if the target is one (https://docs.python.org/3/using/cmdline.html).
    """
    safe = getattr(sys.flags, "safe_path", False)
    if request.is_module:
        return module(request.target, named_by_user=True), None if safe else str(Path.cwd())
    # `./` and `..` stay as they were typed
    path = request.target if request.target.startswith(os.sep) else f"{Path.cwd()}{os.sep}{request.target}"
    if pkgutil.get_importer(path) is not None:  # a folder, or an archive
        return module("__main__", named_by_user=False), path
    return script(path), None if safe else str(Path(path).resolve().parent)


def _main_module() -> None:
    main = types.ModuleType("__main__")
    names = (
        {"__builtins__": builtins} if sys.version_info >= (3, 14) else {"__builtins__": builtins, "__annotations__": {}}
    )
    vars(main).update(names)
    main.__loader__ = importlib.machinery.BuiltinImporter
    sys.modules["__main__"] = main


def _signals() -> None:
    """Handlers go, ignored signals stay ignored, as over execve; Python's own three are as at its start.

    Those that torchrun handles have their defaults in a rank, also where whoever started torchrun ignored them.
    """
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if handler is signal.SIG_IGN and number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        elif handler not in (signal.SIG_DFL, signal.SIG_IGN, None, signal.default_int_handler):
            signal.signal(number, signal.SIG_DFL)


def _faulthandler() -> None:
    """torchrun turns it on for itself (``ErrorHandler.initialize``); a rank has it only if asked."""
    asked = os.environ.get("PYTHONFAULTHANDLER") or sys.flags.dev_mode or "faulthandler" in sys._xoptions
    faulthandler.disable()
    if asked:
        faulthandler.enable()


def _threads() -> None:
    import threading

    main: Any = threading.main_thread()
    if hasattr(main, "_set_native_id"):
        main._set_native_id()
    naming: Any = threading
    naming._counter = itertools.count(1).__next__


def _processes() -> None:
    """A new main process: its own authentication key, children counted from 1, no resource tracker."""
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
    """Return with what torch's CPU generator was seeded; None without torch."""
    torch: Any = sys.modules.get("torch")
    return None if torch is None else int(torch.initial_seed())


def _random(seed: int | None) -> None:
    """Seed by chance what a new process seeds by chance; Python's own generator the fork has seeded already.

    A seed other than ``seed`` was set by a module that was preloaded: each rank would have set it as well.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.initial_seed() == seed:
        torch.default_generator.seed()
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _logging() -> None:
    """The logger `__main__` is the script's, not torchrun's, and milliseconds count from the rank's start."""
    import time

    module: Any = sys.modules.get("logging")
    if module is not None:
        module.root.manager.loggerDict.pop("__main__", None)
        module._startTime = time.time() if sys.version_info < (3, 13) else time.time_ns()


#: Tools that are in the process before the fork, and write what they have found when it ends.
_TOOLS = (
    "LD_PRELOAD",
    "LD_AUDIT",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "LLVM_PROFILE_FILE",
    "GCOV_PREFIX",
)


def leave_libraries_alone(environ: Mapping[str, str]) -> None:
    """Let this process and its forks end once all that was registered after this call has run.

    exit(3) calls handlers in reverse order, so that these are the first of those that are left out; ``on_exit`` hands
    on the status (https://man7.org/linux/man-pages/man3/on_exit.3.html). Does nothing under tools that need the rest,
    or with a C library that has no such function.
    """
    libc: Any = ctypes.CDLL(None)
    if any(environ.get(name) for name in _TOOLS) or not hasattr(libc, "on_exit"):
        return
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)  # comes before it: what C code has left in stdio's buffers


#: Seconds until a fork is killed that somebody's ``except BaseException`` kept: it must not act as torchrun.
_DEADLINE_S = 10


class _Unwound(BaseException):
    """Is caught by nobody, so that all Python frames are left; ``go_on`` is what happens after that."""

    go_on: Callable[[], object]


def leave(prepare: Callable[[], Program]) -> NoReturn:
    """Leave all Python frames, call ``prepare``, and run the program that it returns with no Python frame beneath it.

    The interpreter calls ``sys.excepthook`` with three arguments when nothing is left but the exception. A hook in
    Python would be a frame beneath the program, so it is `max`, in C, which calls its key with each argument in turn:
    ``go_on`` of the class prepares, ``go_on`` of the instance is the program. That has to end the process.
    """
    unwound, hook = _Unwound(), sys.excepthook

    def prepare_program() -> None:
        signal.alarm(0)
        sys.excepthook = hook
        if unwound.__traceback__ is not None:
            traceback.clear_frames(unwound.__traceback__)  # else what torchrun had in them would live on
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
