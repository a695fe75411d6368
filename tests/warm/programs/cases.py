"""What a script can observe of its process: each function below is a case, its name says of what; prints JSON.

`python cases.py` writes $PROBE/RANK.json, {case: answer}. Cases are asked before `import torch` and after it.
"""

from __future__ import annotations

import sys

AT_FIRST = {"names": sorted(globals()), "modules": sorted(sys.modules)}

import builtins  # noqa: E402
import contextlib  # noqa: E402
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
import signal  # noqa: E402
import subprocess  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
import types  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

BEFORE: list[Any] = []
AFTER: list[Any] = []


def before(case: Any) -> Any:
    BEFORE.append(case)
    return case


def after(case: Any) -> Any:
    AFTER.append(case)
    return case


def both(case: Any) -> Any:
    BEFORE.append(case)
    AFTER.append(case)
    return case


class Mine:
    def __reduce__(self) -> Any:
        return Mine, ()


def in_child(queue: Any) -> None:
    parent = multiprocessing.parent_process()
    queue.put(
        [__name__, parent is not None and parent.pid == os.getppid(), "torch" in sys.modules, Path(sys.argv[0]).name]
    )


# ---- as started ----


@before
def names_at_first() -> Any:
    return AT_FIRST["names"]


@before
def torch_is_not_loaded() -> Any:
    return [name in AT_FIRST["modules"] for name in ("torch", "torch.nn", "torch._C", "numpy", "numpy.linalg")]


@both
def arguments() -> Any:
    return [sys.argv, sys.orig_argv]


@both
def first_path() -> Any:
    return sys.path[0]


@both
def all_paths() -> Any:
    return sys.path


@both
def main_module() -> Any:
    main = sys.modules["__main__"]
    return [
        main.__dict__ is globals(),
        main.__name__,
        main.__package__,
        str(main.__spec__),
        main.__file__,
        main.__doc__,
    ]


@both
def main_attributes() -> Any:
    return sorted(name for name in vars(sys.modules["__main__"]) if name.startswith("__"))


@both
def main_loader() -> Any:
    loader: Any = sys.modules["__main__"].__loader__
    return [str(type(loader)), getattr(loader, "name", None), getattr(loader, "path", None)]


@both
def flags() -> Any:
    return str(sys.flags)


@both
def interpreter_options() -> Any:
    return [sys._xoptions, sys.warnoptions, sys.executable, sys.prefix, sys.base_prefix, sys.dont_write_bytecode]


@both
def builtin_names() -> Any:
    return sorted(vars(builtins))


@both
def stack() -> Any:
    return [(Path(frame.filename).name, frame.function) for frame in inspect.stack()][1:]


@both
def traceback_of_an_error() -> Any:
    try:
        raise ValueError("x")
    except ValueError:
        return traceback.format_exc()


@both
def printed_stack() -> Any:
    return "".join(traceback.format_stack()[:-1])


@both
def recursion_limit() -> Any:
    return sys.getrecursionlimit()


@both
def recursion_depth() -> Any:
    def deeper(level: int) -> int:
        try:
            return deeper(level + 1)
        except RecursionError:
            return level

    return deeper(0)


@both
def collector() -> Any:
    return [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks), len(gc.garbage)]


@both
def switch_interval() -> Any:
    return sys.getswitchinterval()


@both
def hooks() -> Any:
    return [
        sys.excepthook is sys.__excepthook__,
        sys.displayhook is sys.__displayhook__,
        sys.unraisablehook is sys.__unraisablehook__,
        sys.breakpointhook is sys.__breakpointhook__,
        threading.excepthook is threading.__excepthook__,
    ]


@both
def tracing() -> Any:
    return [sys.gettrace(), sys.getprofile(), threading.gettrace() if sys.version_info >= (3, 10) else None]


@both
def last_error() -> Any:
    return [hasattr(sys, name) for name in ("last_type", "last_value", "last_traceback", "last_exc")] + [
        str(sys.exc_info())
    ]


@both
def path_hooks() -> Any:
    return [str(hook).split(" at ")[0] for hook in sys.path_hooks]


@after
def finders() -> Any:
    return [getattr(finder, "__name__", str(type(finder))) for finder in sys.meta_path]


@both
def finds_torch() -> Any:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    return [spec.name, spec.origin, list(spec.submodule_search_locations or ()), spec.has_location, spec.cached]


@both
def finds_numpy() -> Any:
    spec = importlib.util.find_spec("numpy")
    return spec and [spec.name, spec.origin, list(spec.submodule_search_locations or ())]


@after
def missing_module() -> Any:
    try:
        import torch.not_there  # noqa: F401
    except ImportError as error:
        return [type(error).__name__, str(error), error.name]


@both
def streams() -> Any:
    names = ("name", "mode", "encoding", "errors", "line_buffering", "write_through")
    return [[str(getattr(file, name)) for name in names] for file in (sys.stdin, sys.stdout, sys.stderr)]


@both
def terminals() -> Any:
    return [os.isatty(number) for number in range(3)]


@before
def descriptors() -> Any:
    return sorted(int(link.name) for link in Path("/proc/self/fd").iterdir() if link.exists() and int(link.name) < 100)


@both
def environment() -> Any:
    changing = ("TORCHELASTIC_", "DDPLAUNCH", "MASTER_PORT", "PROBE", "OMP_NUM", "COLUMNS", "TORCH_NCCL", "PYTHONSAFE")
    return {name: value for name, value in os.environ.items() if not name.startswith(changing)}


@both
def environment_of_a_child() -> Any:
    words = [
        sys.executable,
        "-c",
        "import os; print(sorted(n for n in os.environ if not n.startswith('DDPL')), os.environ.get('PYTHONPATH'))",
    ]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


@both
def signal_handlers() -> Any:
    return [str(signal.getsignal(number)).split(" at ")[0] for number in signal.valid_signals()]


@both
def signal_masks() -> Any:
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return [status[name] for name in ("SigBlk", "SigIgn")] + [str(signal.pthread_sigmask(signal.SIG_BLOCK, []))]


@both
def wakeup_descriptor() -> Any:
    number = signal.set_wakeup_fd(-1)
    return number


@both
def timers() -> Any:
    return [signal.getitimer(which) for which in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)]


@both
def threads() -> Any:
    return [[each.name, each.daemon] for each in threading.enumerate()]


@both
def native_id() -> Any:
    main = threading.main_thread()
    return [main.native_id == os.getpid(), main.ident == threading.get_ident()]


@before
def kernel_threads() -> Any:
    return len(list(Path("/proc/self/task").iterdir()))


@both
def next_thread_name() -> Any:
    return threading.Thread(target=print).name.partition("-")[0]


@both
def session() -> Any:
    return [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()]


@both
def command_line() -> Any:
    return [Path("/proc/self/cmdline").read_text(), Path("/proc/self/comm").read_text()]


@both
def working_directory() -> Any:
    return [str(Path.cwd()), oct(os.umask(0o22))]


@both
def limits() -> Any:
    return [resource.getrlimit(number) for number in range(15) if number != resource.RLIMIT_NOFILE]


@both
def affinity() -> Any:
    return [sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)]


@both
def scores() -> Any:
    return [Path(f"/proc/self/{name}").read_text() for name in ("oom_score_adj", "coredump_filter", "cgroup")]


@both
def own_time_is_short() -> Any:
    return [time.process_time() < 60, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime < 20]


@both
def language() -> Any:
    return [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False), sys.getfilesystemencoding()]


@both
def time_zone() -> Any:
    return [time.tzname, time.timezone]


@before
def warning_filters() -> Any:
    return [str(each) for each in warnings.filters]


@after
def warning_filters_after() -> Any:
    return sorted({str(each) for each in warnings.filters})


@both
def shown_warnings() -> Any:
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream):
        for kind in (UserWarning, DeprecationWarning, FutureWarning, ResourceWarning, RuntimeWarning):
            warnings.warn("mine", kind, stacklevel=1)
    return stream.getvalue()


@both
def root_logger() -> Any:
    return [logging.root.level, str(logging.root.handlers), logging.root.disabled, logging.raiseExceptions]


@before
def loggers() -> Any:
    return sorted(logging.root.manager.loggerDict)


@after
def torch_loggers() -> Any:
    found = {}
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.count(".") < 2:
            found[name] = [logger.level, [type(each).__name__ for each in logger.handlers], logger.propagate]
    return found


@both
def logged_lines() -> Any:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(processName)s %(threadName)s %(message)s"))
    logger = logging.getLogger("mine")
    logger.addHandler(handler)
    logger.warning("a line")
    logger.removeHandler(handler)
    return [stream.getvalue(), logger.getEffectiveLevel(), logging.getLogger("torch").getEffectiveLevel()]


@both
def log_clock() -> Any:
    return 0 <= logging.LogRecord("x", 10, "", 0, "", (), None).relativeCreated < 90_000


@both
def start_method() -> Any:
    return [multiprocessing.get_start_method(allow_none=True), multiprocessing.get_all_start_methods()]


@both
def process_object() -> Any:
    current = multiprocessing.current_process()
    parent = multiprocessing.parent_process()
    return [current.name, current.daemon, current.pid == os.getpid(), parent, multiprocessing.active_children()]


@after
def child_names() -> Any:
    return multiprocessing.Process().name.rpartition("-")[0]


@both
def pickled() -> Any:
    return [pickle.dumps(Mine()).decode("latin-1"), type(pickle.loads(pickle.dumps(Mine()))) is Mine]


@before
def forked_child() -> Any:
    return _child("fork")


@before
def spawned_child() -> Any:
    return _child("spawn") if os.environ["RANK"] == "0" else None


@before
def child_of_a_server() -> Any:
    return _child("forkserver") if os.environ["RANK"] == "1" else None


def _child(method: str) -> Any:
    context: Any = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=in_child, args=(queue,))
    child.start()
    answer = queue.get()
    child.join()
    return [answer, child.exitcode]


@both
def same_random_after_a_seed() -> Any:
    random.seed(5)
    return random.random()


@both
def time_limits_of_imports() -> Any:
    return [type(importlib.util.find_spec("queue")).__name__, importlib.util.find_spec("queue").origin]  # type: ignore[union-attr]


@both
def source_of_itself() -> Any:
    return [inspect.getsource(Mine), inspect.getsourcefile(Mine), inspect.getmodule(Mine).__name__]  # type: ignore[union-attr]


@both
def types_of_modules() -> Any:
    return sorted({type(each).__name__ for each in list(sys.modules.values()) if isinstance(each, types.ModuleType)})[
        :1
    ]


@both
def numbers_of_ints() -> Any:
    return [sys.get_int_max_str_digits(), sys.maxsize, sys.hash_info.algorithm]


# ---- torch itself; the first of these imports it ----


@before
def finds_a_module_of_torch() -> Any:
    spec = importlib.util.find_spec("torch.optim.lr_scheduler")
    assert spec is not None
    return [spec.name, spec.origin, "torch" in sys.modules]


@after
def torch_version() -> Any:
    import torch

    return [
        torch.__version__,
        torch.__spec__.origin,
        str(type(torch.__spec__.loader)),
        torch.__name__,
        torch.__package__,
    ]


@after
def torch_threads() -> Any:
    import torch

    return [torch.get_num_threads(), torch.get_num_interop_threads()]


@after
def torch_parallel() -> Any:
    import torch

    return torch.__config__.parallel_info()


@after
def torch_defaults() -> Any:
    import torch

    return [
        str(torch.get_default_dtype()),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        str(torch.get_default_device()),
        str(torch._tensor_str.PRINT_OPTS),
    ]


@after
def torch_cuda() -> Any:
    import torch

    cuda: Any = torch.cuda
    return [cuda.is_available(), cuda.is_initialized(), cuda._is_in_bad_fork(), cuda.device_count()]


@after
def torch_distributed() -> Any:
    import torch.distributed

    dist: Any = torch.distributed
    return [dist.is_initialized(), dist.is_torchelastic_launched(), str(dist.get_debug_level())]


@after
def torch_sharing() -> Any:
    import torch.multiprocessing

    sharing: Any = torch.multiprocessing

    return [sharing.get_sharing_strategy(), sharing.get_start_method(allow_none=True)]


@after
def torch_seeds_differ() -> Any:
    import torch

    return [torch.initial_seed() not in (0, 5489), torch.initial_seed() == torch.initial_seed()]


@after
def torch_after_a_seed() -> Any:
    import torch

    torch.manual_seed(3)
    return [torch.rand(4).tolist(), torch.randperm(9).tolist()]


@after
def numpy_after_a_seed() -> Any:
    import numpy

    numpy.random.seed(3)
    return numpy.random.rand(4).tolist()


@after
def numpy_config() -> Any:
    import numpy

    return [numpy.__version__, str(numpy.geterr()), str(numpy.get_printoptions())]


@after
def gradients() -> Any:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    model(torch.rand(4, 8)).sum().backward()
    return [each.grad.sum().item() for each in model.parameters() if each.grad is not None]


@after
def trained_loss() -> Any:
    import torch

    torch.manual_seed(1)
    model = torch.nn.Linear(16, 1)
    step = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        loss = (model(torch.rand(32, 16)) - 1).square().mean()
        step.zero_grad()
        loss.backward()
        step.step()
        losses.append(loss.item())
    return losses


@after
def saved_and_loaded() -> Any:
    import torch

    stream = io.BytesIO()
    torch.save({"a": torch.arange(3), "m": torch.nn.Linear(1, 1).state_dict().keys().__len__()}, stream)
    stream.seek(0)
    return str(torch.load(stream))


@after
def scripted() -> Any:
    import torch

    function = torch.jit.script(torch.nn.Linear(2, 2))
    return type(function).__name__


@after
def data_workers() -> Any:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(2)
    loader = DataLoader(TensorDataset(torch.arange(8)), 4, shuffle=True, num_workers=1)
    return [each[0].tolist() for each in loader]


@after
def error_of_torch() -> Any:
    import torch

    try:
        torch.ones(2, 3) @ torch.ones(2, 3)
    except RuntimeError as error:
        return str(error)


@after
def warning_of_torch() -> Any:
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.tensor([1.0]).new_tensor(torch.tensor([2.0]))
    return [str(each.message)[:60] for each in caught]


@after
def modules_of_torch() -> Any:
    return [name in sys.modules for name in ("torch", "torch.nn", "torch.utils.data", "numpy", "torch.distributed")]


@after
def parent_names_modules() -> Any:
    import torch.nn.functional as functional
    import torch.utils.data as data

    return [functional.__name__, data.__name__, sys.modules["torch"].nn.functional is functional]


def answers(cases: list[Any], when: str) -> dict[str, Any]:
    found = {}
    for case in cases:
        try:
            answer = case()
        except Exception:
            answer = traceback.format_exc()
        found[f"{case.__name__} {when}"] = json.loads(json.dumps(answer, default=str))
    return found


if __name__ == "__main__":
    told = answers(BEFORE, "before")
    import torch  # noqa: F401

    told |= answers(AFTER, "after")
    path = Path(os.environ["PROBE"], f"{os.environ['RANK']}.json")
    path.write_text(json.dumps({"answers": told, "frozen": gc.get_freeze_count()}))
