"""Writes what a script can see of its process, as JSON into $PROBE/RANK.json; `torch` as first argument asks it too."""

first_names = sorted(globals())

import atexit  # noqa: E402
import builtins  # noqa: E402
import contextvars  # noqa: E402
import ctypes  # noqa: E402
import faulthandler  # noqa: E402
import fcntl  # noqa: E402
import gc  # noqa: E402
import inspect  # noqa: E402
import json  # noqa: E402
import locale  # noqa: E402
import logging  # noqa: E402
import multiprocessing  # noqa: E402
import os  # noqa: E402
import pickle  # noqa: E402
import random  # noqa: E402
import resource  # noqa: E402
import secrets  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import tracemalloc  # noqa: E402
import uuid  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

descriptors = sorted(link.name for link in Path("/proc/self/fd").iterdir() if link.is_symlink())


class Mine:
    """Something to pickle."""

    def __eq__(self, other: object) -> bool:
        return type(other) is Mine

    __hash__ = None  # type: ignore[assignment]


def getting(option: int) -> list[int]:
    """What prctl(2) says of a setting: signal at the parent's death, dumpable, capabilities kept, securebits, …"""
    value = ctypes.c_ulong(0)
    answer = ctypes.CDLL(None).prctl(option, ctypes.byref(value), 0, 0, 0)
    return [answer, value.value & 0xFFFFFFFF]


def opened(number: int) -> list[Any]:
    flags = fcntl.fcntl(number, fcntl.F_GETFL), fcntl.fcntl(number, fcntl.F_GETFD)
    return [oct(os.fstat(number).st_mode), os.isatty(number), *flags]


def getenv(name: bytes) -> bytes | None:
    """As C libraries read it."""
    find: Any = ctypes.CDLL(None).getenv
    find.restype = ctypes.c_char_p
    found: bytes | None = find(name)
    return found


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def stream(file: Any) -> list[Any]:
    names = ("name", "mode", "encoding", "errors", "newlines", "line_buffering", "write_through", "closed")
    return [type(file).__name__, type(file.buffer).__name__, *(str(getattr(file, name)) for name in names)]


def interpreter() -> dict[str, Any]:
    main = sys.modules["__main__"]
    loader = main.__loader__
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "first_names": first_names,
        "main": [main.__name__, main.__package__, str(main.__spec__)[:40], main.__file__, main.__doc__],
        "cached": str(getattr(main, "__cached__", "missing")),
        "is_main": main.__dict__ is globals(),
        "loader": [str(type(loader)), getattr(loader, "name", None), getattr(loader, "path", None)],
        "builtins": [type(__builtins__).__name__, sorted(vars(builtins))],
        "flags": str(sys.flags),
        "options": [sys._xoptions, sys.warnoptions, sys.executable, sys.prefix],
        "streams": [stream(sys.stdin), stream(sys.stdout), stream(sys.stderr)],
        "originals": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "hooks": [
            sys.excepthook is sys.__excepthook__,
            sys.displayhook is sys.__displayhook__,
            sys.unraisablehook is sys.__unraisablehook__,
            sys.breakpointhook is sys.__breakpointhook__,
            threading.excepthook is threading.__excepthook__,
        ],
        "last": [hasattr(sys, name) for name in ("last_type", "last_value", "last_traceback", "last_exc")],
        "exception": str(sys.exc_info()),
        "finders": [str(type(finder)) for finder in sys.meta_path] + [str(type(hook)) for hook in sys.path_hooks],
        "annotations": str(main.__annotations__),
        "source": inspect.getsource(Mine),
        "context": len(contextvars.copy_context()),
        "collector": [gc.callbacks, gc.get_debug(), tracemalloc.is_tracing()],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), gc.get_threshold(), gc.isenabled()],
        "tracing": [sys.gettrace(), sys.getprofile(), faulthandler.is_enabled()],
        "ours": sorted(name for name in sys.modules if name.startswith("ddplaunch")),
        "stack": [frame.filename for frame in inspect.stack()],
        "pickled": pickle.loads(pickle.dumps(Mine())) == Mine(),
        "locale": locale.setlocale(locale.LC_ALL),
        "stdin": sys.stdin.read() if os.environ.get("RANK", "0") == "0" else None,
    }


def process() -> dict[str, Any]:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    parent = Path(f"/proc/{os.getppid()}/comm").read_text().strip()
    return {
        "parent": parent,
        "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "cmdline": Path("/proc/self/cmdline").read_text(),
        "comm": Path("/proc/self/comm").read_text(),
        "environ": sorted(Path("/proc/self/environ").read_bytes().decode(errors="replace").split("\0")),
        "os.environ": list(os.environ.items()),
        "status": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "Threads", "NoNewPrivs", "Seccomp")],
        "handlers": [str(signal.getsignal(number)).split(" at ")[0] for number in signal.valid_signals()],
        "settings": [getting(number) for number in (2, 3, 7, 23, 27, 30, 37, 39)],
        "files": [opened(number) for number in range(3)],
        "schedule": [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)],
        "kill": [Path(f"/proc/self/{name}").read_text() for name in ("oom_score_adj", "coredump_filter", "cgroup")],
        "C environment": [text(getenv(name.encode())) for name in ("RANK", "PATH", "LOCAL_WORLD_SIZE", "NOWHERE")],
        "time zone": [time.tzname, time.timezone],
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "descriptors": descriptors,
        "cwd": str(Path.cwd()),
        "umask": os.umask(0o22),
        "rlimits": [resource.getrlimit(number) for number in range(15)],
        "affinity": sorted(os.sched_getaffinity(0)),
        "nice": os.nice(0),
        "children": resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime,
        "own time is short": time.process_time() < 30,
    }


def libraries() -> dict[str, Any]:
    current = multiprocessing.current_process()
    record = logging.LogRecord("x", 10, "", 0, "", (), None)
    thread = threading.main_thread()
    return {
        "process": [current.name, current.daemon, type(current).__name__, current.pid == os.getpid(), current.exitcode],
        "authkey": len(current.authkey),
        "parent": str(multiprocessing.parent_process()),
        "children": str(multiprocessing.active_children()),
        "child name": multiprocessing.Process().name,
        "methods": [multiprocessing.get_start_method(allow_none=True), multiprocessing.get_all_start_methods()],
        "thread": [thread.name, thread.daemon, thread.native_id == os.getpid(), thread.ident == threading.get_ident()],
        "thread is main": threading.current_thread() is thread,
        "threads": [other.name for other in threading.enumerate()],
        "thread name": threading.Thread(target=print).name,
        "log since start": 0 <= record.relativeCreated < 60000,
        "root logger": [logging.root.level, logging.root.handlers, logging.root.disabled, logging.raiseExceptions],
        "log record": [record.processName, record.threadName, record.process == os.getpid()],
        "warnings": [str(entry) for entry in warnings.filters],
        "once": str(getattr(warnings, "onceregistry", {})),
        "registry": str(globals().get("__warningregistry__")),
        "showwarning": [warnings.showwarning.__module__, warnings.formatwarning.__module__],
        "loggers": [logging.getLogger(name).level for name in ("asyncio", "concurrent.futures", "__main__")],
        "log classes": [
            logging.getLoggerClass().__name__,
            logging.getLogRecordFactory().__name__,
            str(logging.lastResort),
        ],
        "switches": [threading.stack_size(), threading.settrace.__module__, sys.getswitchinterval()],
    }


def about_torch() -> dict[str, Any]:
    import ctypes

    import torch
    import torch.distributed

    cuda: Any = torch.cuda
    sharing: Any = torch.multiprocessing
    elastic: Any = torch.distributed

    openmp = ctypes.CDLL(None)
    counts: list[int] = []
    try:
        thread = threading.Thread(target=lambda: counts.append(openmp.omp_get_max_threads()))
        counts.append(openmp.omp_get_max_threads())
        thread.start()
        thread.join()
    except AttributeError:
        counts = [-1]
    before = torch.get_rng_state().tolist()
    return {
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads(), counts],
        "seed": [torch.initial_seed(), torch.rand(3).tolist(), before[:40]],
        "defaults": [
            str(torch.get_default_dtype()),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_float32_matmul_precision(),
            str(torch.get_default_device()),
        ],
        "parallel": torch.__config__.parallel_info(),
        "sharing": sharing.get_sharing_strategy(),
        "method": torch.multiprocessing.get_start_method(),
        "cuda": [cuda.is_initialized(), cuda._is_in_bad_fork(), cuda.is_available()],
        "initialized": [elastic.is_initialized(), elastic.is_torchelastic_launched()],
        "loggers": {
            name: [logger.level, str(logger.handlers), logger.propagate, logger.disabled]
            for name, logger in logging.root.manager.loggerDict.items()
            if isinstance(logger, logging.Logger)
        },
        "torch loggers": [str(logging.getLogger("torch").handlers), logging.getLogger("torch").level],
        "handlers at exit": atexit._ncallbacks(),
        "warnings": [str(entry) for entry in warnings.filters],
        "thread count": len(list(Path("/proc/self/task").iterdir())) < 20,
    }


if __name__ == "__main__":
    seen = {"interpreter": interpreter(), "process": process(), "libraries": libraries()}
    if sys.argv[1:2] == ["torch"]:
        seen["torch"] = about_torch()
    chance = {
        "random": random.random(),
        "authkey": multiprocessing.current_process().authkey.hex(),
        "secret": secrets.token_hex(),
        "uuid4": str(uuid.uuid4()),
        "uuid1": str(uuid.uuid1()),
        "file name": tempfile.mktemp(),
    }
    if numpy := sys.modules.get("numpy"):
        chance["numpy"] = numpy.random.rand()
    target = Path(os.environ["PROBE"]) / f"{os.environ.get('RANK', '0')}.json"
    target.write_text(json.dumps({"seen": seen, "chance": chance, "frozen": gc.get_freeze_count()}))
