"""What a script can observe of its process: each item of the dicts below is a case; writes $PROBE/RANK.json.

Cases are asked before `import torch`, and if the first argument is `torch`, after it as well. Apart from the answers
there is what two ranks never share. With `torch` ranks 0 and 1 train small models as well (trainings.py), if there is
another rank, and that one sets variables for torch (early.py).
"""

from __future__ import annotations

import sys

AT_FIRST = {"names": sorted(globals()), "modules": sorted(sys.modules)}

import builtins  # noqa: E402
import contextlib  # noqa: E402
import contextvars  # noqa: E402
import ctypes  # noqa: E402
import faulthandler  # noqa: E402
import fcntl  # noqa: E402
import gc  # noqa: E402
import importlib.util  # noqa: E402
import inspect  # noqa: E402
import io  # noqa: E402
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
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
import tracemalloc  # noqa: E402
import uuid  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

DESCRIPTORS = sorted(link.name for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
WITH_TORCH = sys.argv[1:2] == ["torch"]
#: Of each launch anew, or of ddplaunch's own.
CHANGING = ("TORCHELASTIC_", "DDPLAUNCH", "MASTER_PORT", "PROBE", "OMP_NUM", "COLUMNS", "TORCH_NCCL", "PYTHONSAFE")


class Mine:
    """Something to pickle."""

    def __reduce__(self) -> Any:
        return Mine, ()


def plain(value: object) -> str:
    """Return the value's text without an address."""
    return str(value).split(" at ")[0]


def status(*names: str) -> list[str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return [values[name] for name in names]


def in_c(name: str) -> str | None:
    """Return a variable as C libraries read it."""
    find: Any = ctypes.CDLL(None).getenv
    find.restype = ctypes.c_char_p
    found = find(name.encode())
    return None if found is None else found.decode()


def process_setting(option: int) -> list[int]:
    """Return what prctl(2) says of it: signal at the parent's death, dumpable, capabilities kept, securebits, …"""
    value = ctypes.c_ulong(0)
    answer = ctypes.CDLL(None).prctl(option, ctypes.byref(value), 0, 0, 0)
    return [answer, value.value & 0xFFFFFFFF]


def opened(number: int) -> list[Any]:
    flags = fcntl.fcntl(number, fcntl.F_GETFL), fcntl.fcntl(number, fcntl.F_GETFD)
    return [oct(os.fstat(number).st_mode), os.isatty(number), *flags]


def stream(file: Any) -> list[str]:
    names = ("name", "mode", "encoding", "errors", "newlines", "line_buffering", "write_through", "closed")
    return [type(file).__name__, type(file.buffer).__name__, *(str(getattr(file, name)) for name in names)]


def spec(name: str) -> list[Any] | None:
    found = importlib.util.find_spec(name)
    if found is None:
        return None
    return [type(found).__name__, found.name, found.origin, found.has_location, found.cached]


def depth(level: int) -> int:
    try:
        return depth(level + 1)
    except RecursionError:
        return level


def error() -> str:
    try:
        raise ValueError("x")
    except ValueError:
        return traceback.format_exc()


def shown_warnings() -> str:
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        for kind in (UserWarning, DeprecationWarning, FutureWarning, ResourceWarning, RuntimeWarning):
            warnings.warn("mine", kind, stacklevel=1)
    return shown.getvalue()


def logged() -> str:
    shown, logger = io.StringIO(), logging.getLogger("mine")
    handler = logging.StreamHandler(shown)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(processName)s %(threadName)s %(message)s"))
    logger.addHandler(handler)
    logger.warning("a line")
    logger.removeHandler(handler)
    return shown.getvalue()


def environment_of_a_child() -> str:
    code = "import os; print(sorted(n for n in os.environ if not n.startswith('DDPL')), os.environ.get('PYTHONPATH'))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout


def in_child(queue: Any) -> None:
    parent = multiprocessing.parent_process()
    mine = parent is not None and parent.pid == os.getppid()
    queue.put([__name__, mine, "torch" in sys.modules, Path(sys.argv[0]).name])


def child(method: str) -> list[Any]:
    context: Any = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    started = context.Process(target=in_child, args=(queue,))
    started.start()
    answer = queue.get()
    started.join()
    return [answer, started.exitcode]


def interpreter() -> dict[str, Any]:
    main: Any = sys.modules["__main__"]
    loader = main.__loader__
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "first path": sys.path[0],
        "all paths": sys.path,
        "main": [main.__name__, main.__package__, str(main.__spec__)[:40], main.__file__, main.__doc__],
        "main is this": main.__dict__ is globals(),
        "main's attributes": sorted(name for name in vars(main) if name.startswith("__")),
        "main's annotations": str(main.__annotations__),
        "cached": str(getattr(main, "__cached__", "missing")),
        "loader": [str(type(loader)), getattr(loader, "name", None), getattr(loader, "path", None)],
        "builtins": [type(__builtins__).__name__, sorted(vars(builtins))],
        "flags": str(sys.flags),
        "options": [sys._xoptions, sys.warnoptions, sys.dont_write_bytecode],
        "executable": [sys.executable, sys.prefix, sys.base_prefix],
        "numbers": [getattr(sys, "get_int_max_str_digits", int)(), sys.maxsize, sys.hash_info.algorithm],
        "stack": [(Path(frame.filename).name, frame.function) for frame in inspect.stack()][1:],
        "printed stack": "".join(traceback.format_stack()[:-1]),
        "error": error(),
        "recursion limit": sys.getrecursionlimit(),
        "recursion depth": depth(0),
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks), len(gc.garbage)],
        "tracing": [sys.gettrace(), sys.getprofile(), threading.gettrace(), tracemalloc.is_tracing()],
        "fault handler": faulthandler.is_enabled(),
        "switch interval": sys.getswitchinterval(),
        "excepthook": [sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__],
        "displayhook": sys.displayhook is sys.__displayhook__,
        "unraisablehook": sys.unraisablehook is sys.__unraisablehook__,
        "breakpointhook": sys.breakpointhook is sys.__breakpointhook__,
        "last error": [hasattr(sys, f"last_{name}") for name in ("type", "value", "traceback", "exc")],
        "current error": str(sys.exc_info()),
        "path hooks": [plain(hook) for hook in sys.path_hooks],
        "context": len(contextvars.copy_context()),
        "spec of torch": spec("torch"),
        "spec of numpy": spec("numpy"),
        "spec of a library": spec("queue"),
        "streams": [stream(file) for file in (sys.stdin, sys.stdout, sys.stderr)],
        "originals": [sys.stdin is sys.__stdin__, sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__],
        "modules of ours": sorted(name for name in sys.modules if name.startswith("ddplaunch")),
        "own source": [inspect.getsource(Mine), inspect.getsourcefile(Mine), plain(inspect.getmodule(Mine))],
        "pickled": [pickle.dumps(Mine()).decode("latin-1"), type(pickle.loads(pickle.dumps(Mine()))) is Mine],
    }


def process() -> dict[str, Any]:
    start = Path("/proc/self/environ").read_bytes().decode(errors="replace").split("\0")
    return {
        "environment": [[name, value] for name, value in os.environ.items() if not name.startswith(CHANGING)],
        "environment at the start": sorted(each for each in start if not each.startswith(CHANGING)),
        "environment in C": [in_c(name) for name in ("RANK", "PATH", "LOCAL_WORLD_SIZE", "NOWHERE")],
        "environment of a child": environment_of_a_child(),
        "signal handlers": [plain(signal.getsignal(number)) for number in signal.valid_signals()],
        "signal masks": [*status("SigBlk", "SigIgn", "SigCgt"), str(signal.pthread_sigmask(signal.SIG_BLOCK, []))],
        "wakeup descriptor": signal.set_wakeup_fd(-1),
        "timers": [signal.getitimer(getattr(signal, f"ITIMER_{which}")) for which in ("REAL", "VIRTUAL", "PROF")],
        "settings": [process_setting(number) for number in (2, 3, 7, 23, 27, 30, 37, 39)],
        "privileges": status("NoNewPrivs", "Seccomp"),
        "files": [opened(number) for number in range(3)],
        "parent": Path(f"/proc/{os.getppid()}/comm").read_text(),
        "session": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "command line": Path("/proc/self/cmdline").read_text(),
        "name": Path("/proc/self/comm").read_text(),
        "working directory": [str(Path.cwd()), oct(os.umask(0o22))],
        "limits": [resource.getrlimit(number) for number in range(15)],
        "affinity": sorted(os.sched_getaffinity(0)),
        "priority": [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.nice(0)],
        "scores": [Path(f"/proc/self/{name}").read_text() for name in ("oom_score_adj", "coredump_filter", "cgroup")],
        "own time is short": [time.process_time() < 60, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime < 20],
        "language": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False), sys.getfilesystemencoding()],
        "time zone": [time.tzname, time.timezone],
    }


def libraries() -> dict[str, Any]:
    thread, current = threading.main_thread(), multiprocessing.current_process()
    record = logging.LogRecord("x", 10, "", 0, "", (), None)
    return {
        "threads": [[each.name, each.daemon] for each in threading.enumerate()],
        "main thread": [thread is threading.current_thread(), thread.ident == threading.get_ident()],
        "native id": thread.native_id == os.getpid(),
        "next thread": threading.Thread(target=print).name.partition("-")[0],
        "stack size": threading.stack_size(),
        "warnings as shown": shown_warnings(),
        "warning functions": [warnings.showwarning.__module__, warnings.formatwarning.__module__],
        "warning registries": [str(getattr(warnings, "onceregistry", {})), "__warningregistry__" in globals()],
        "root logger": [logging.root.level, str(logging.root.handlers), logging.root.disabled],
        "exceptions of logging": logging.raiseExceptions,
        "classes of logging": [plain(logging.getLoggerClass()), plain(logging.getLogRecordFactory())],
        "last resort of logging": str(logging.lastResort),
        "logged line": logged(),
        "record": [record.processName, record.threadName, record.process == os.getpid()],
        "clock of logging": 0 <= record.relativeCreated < 90_000,
        "levels": [logging.getLogger(name).getEffectiveLevel() for name in ("mine", "torch", "asyncio", "__main__")],
        "start method": [multiprocessing.get_start_method(allow_none=True), multiprocessing.get_all_start_methods()],
        "process object": [type(current).__name__, current.name, current.daemon, current.pid == os.getpid()],
        "parent object": [str(multiprocessing.parent_process()), len(current.authkey), current.exitcode],
        "children": str(multiprocessing.active_children()),
        "random after a seed": random.Random(5).random(),
    }


def only_before() -> dict[str, Any]:
    rank = os.environ["RANK"]
    return {
        "names at first": AT_FIRST["names"],
        "modules at first": [name in AT_FIRST["modules"] for name in ("torch", "torch.nn", "torch._C", "numpy")],
        "descriptors": DESCRIPTORS,
        "kernel threads": len(list(Path("/proc/self/task").iterdir())),
        "warning filters": [str(each) for each in warnings.filters],
        "loggers": sorted(logging.root.manager.loggerDict),
        "next process": multiprocessing.Process().name,
        "forked child": child("fork"),
        "spawned child": child("spawn") if rank == "0" else None,
        "child of a server": child("forkserver") if rank == "1" else None,
        "spec of a module of torch": [WITH_TORCH and spec("torch.optim.lr_scheduler"), "torch" in sys.modules],
    }


def missing_module() -> list[Any]:
    try:
        import torch.not_there  # noqa: F401
    except ImportError as error:
        return [type(error).__name__, str(error), error.name]
    return []


def trained() -> list[float]:
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    step = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses: list[float] = []
    for _ in range(5):
        loss = (model(torch.rand(32, 16)) - 1).square().mean()
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(loss.item())
    return losses


def of_torch() -> dict[str, Any]:
    import numpy
    import torch
    import torch.distributed
    import torch.multiprocessing
    from torch.utils.data import DataLoader, TensorDataset

    dist: Any = torch.distributed
    cuda: Any = torch.cuda
    sharing: Any = torch.multiprocessing
    loggers = {name: each for name, each in logging.root.manager.loggerDict.items() if name.count(".") < 2}
    openmp, counts = ctypes.CDLL(None), list[int]()
    if hasattr(openmp, "omp_get_max_threads"):
        thread = threading.Thread(target=lambda: counts.append(openmp.omp_get_max_threads()))
        thread.start()
        thread.join()
    torch.manual_seed(2)
    numpy.random.seed(3)
    loader = DataLoader(TensorDataset(torch.arange(8)), 4, shuffle=True, num_workers=1)
    torch.save({"a": torch.arange(3)}, file := io.BytesIO())
    file.seek(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.tensor([1.0]).new_tensor(torch.tensor([2.0]))
    try:
        text = str(torch.ones(2, 3) @ torch.ones(2, 3))
    except RuntimeError as error:
        text = str(error)
    names = ("torch", "torch.nn", "torch.utils.data", "numpy", "torch.distributed")
    return {
        "finders": [getattr(finder, "__name__", str(type(finder))) for finder in sys.meta_path],
        "missing module": missing_module(),
        "version": [torch.__version__, torch.__name__, torch.__package__],
        "origin": [torch.__spec__.origin, str(type(torch.__spec__.loader))],
        "torch's threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "threads of OpenMP in a thread": counts,
        "parallel": torch.__config__.parallel_info(),
        "default types": [str(torch.get_default_dtype()), str(torch.get_default_device())],
        "modes": [torch.is_grad_enabled(), torch.is_inference_mode_enabled()],
        "precision": [torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision()],
        "printing": str(torch._tensor_str.PRINT_OPTS),
        "cuda": [cuda.is_available(), cuda.is_initialized(), cuda._is_in_bad_fork(), cuda.device_count()],
        "distributed": [dist.is_initialized(), dist.is_torchelastic_launched(), str(dist.get_debug_level())],
        "sharing": [sharing.get_sharing_strategy(), sharing.get_start_method(allow_none=True)],
        "drawn": [torch.rand(4).tolist(), torch.randperm(9).tolist(), numpy.random.rand(4).tolist()],
        "numpy": [numpy.__version__, str(numpy.geterr()), str(numpy.get_printoptions())],
        "losses": trained(),
        "loaded": str(torch.load(file)),
        "scripted": type(torch.jit.script(torch.nn.Linear(2, 2))).__name__,
        "of a worker": [each[0].tolist() for each in loader],
        "error of torch": text,
        "warning of torch": [str(each.message)[:60] for each in caught],
        "modules": [name in sys.modules for name in names],
        "parents": [sys.modules["torch"].nn.functional is torch.nn.functional, torch.nn.functional.__name__],
        "filters of warnings": sorted({str(each) for each in warnings.filters}),
        "torch's loggers": {
            name: [each.level, [type(handler).__name__ for handler in each.handlers], each.propagate]
            for name, each in loggers.items()
            if isinstance(each, logging.Logger)
        },
    }


if __name__ == "__main__":
    three = os.environ.get("WORLD_SIZE") == "3"
    if three and os.environ["RANK"] == "2":
        if WITH_TORCH:
            importlib.import_module("early")
        sys.exit()
    answers = {f"{name} before": value for each in (interpreter, process, libraries, only_before)
               for name, value in each().items()}  # fmt: skip
    chance: dict[str, Any] = {"random": random.random(), "key": multiprocessing.current_process().authkey.hex()}
    chance |= {"secret": secrets.token_hex(), "uuid4": str(uuid.uuid4()), "uuid1": str(uuid.uuid1())}
    chance |= {"file name": tempfile.mktemp()}
    if WITH_TORCH:
        import torch

        chance |= {"torch": [torch.initial_seed(), torch.rand(1).item()], "numpy": __import__("numpy").random.rand()}
        answers |= {f"{name} after": value for each in (interpreter, process, libraries, of_torch)
                    for name, value in each().items()}  # fmt: skip
    told = {"answers": answers, "chance": chance, "frozen": gc.get_freeze_count()}
    Path(os.environ["PROBE"], f"{os.environ['RANK']}.json").write_text(json.dumps(told, default=str))
    if three and WITH_TORCH:
        importlib.import_module("trainings").main()
