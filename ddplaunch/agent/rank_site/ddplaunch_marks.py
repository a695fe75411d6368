"""Counts a rank's steps and batches, measures its threads' wait for a CPU, and calls back when modules have run.

It also lets DataLoader workers survive SIGTERM, and torch be imported without the garbage collector, which would scan
the new objects again and again.

Like ``sitecustomize`` beside it, it runs in whatever Python a rank is, so it imports nothing of ddplaunch.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` is not imported at the start of an interpreter
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SPARED = "ddplaunch_spares_workers"  # set on torch's module once it is changed


class _Finder:
    """Finds the wanted modules as usual, each once, and passes the spec to a function that may change it."""

    def __init__(self, wanted: dict[str, Callable[[Any], None]]) -> None:
        self._wanted = wanted

    def find_spec(self, name: str, *_: object) -> Any:
        """Return the spec that the other finders find, changed; None for a module that is not wanted."""
        if name not in self._wanted:
            return None
        change = self._wanted.pop(name)
        if not self._wanted:
            sys.meta_path.remove(self)
        import importlib.util

        spec: Any = importlib.util.find_spec(name)
        if spec is not None:
            change(spec)
        return spec


def _saying(found: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a function that changes a spec so that ``found`` is called when the module's code has run."""

    def change(spec: Any) -> None:
        if spec.loader is None:
            return
        run = spec.loader.exec_module

        def run_and_say(module: Any) -> None:
            run(module)
            _say(found, module)

        spec.loader.exec_module = run_and_say

    return change


def _say(found: Callable[[Any], None], what: Any) -> None:
    try:
        found(what)
    except Exception:  # notes are optional, and must not stop the training
        return


class Noticed:
    """Replaces a method of a class; calls ``notice`` with each object on which the method is looked up."""

    def __init__(self, method: Any, notice: Callable[[Any], None]) -> None:
        self._method, self._notice = method, notice

    def __get__(self, one: Any, owner: Any = None) -> Any:
        if one is not None:
            _say(self._notice, one)
        return self._method.__get__(one, owner)


def notice(kind: Any, name: str, call: Callable[[Any], None]) -> None:
    """Have ``call`` called with each object of the class ``kind`` on which its method ``name`` is looked up."""
    setattr(kind, name, Noticed(kind.__dict__[name], call))


def notice_steps(module: Any, stepped: Callable[[Any, Any, Any], None]) -> None:
    """Have ``stepped`` called after each step of an optimizer in this process; ``module`` is torch.optim.optimizer."""
    owner = os.getpid()

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        import torch

        # torch.compile may trace the step, and must see no more than this line
        if not torch.compiler.is_compiling() and os.getpid() == owner:
            stepped(optimizer, args, kwargs)

    module.register_optimizer_step_post_hook(after_step)


def batch_size(iterator: Any) -> int | None:
    """Return a DataLoader's batch size; None if its dataset makes the batches, or ranks share one (accelerate)."""
    batches = iterator._index_sampler
    whole = iterator._auto_collation and not getattr(batches, "split_batches", False)
    return plain_integer(getattr(batches, "batch_size", None)) if whole else None


def plain_integer(value: Any) -> int | None:
    """Return ``value`` if it is an integer, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def after_import(wanted: dict[str, Callable[[Any], None]]) -> None:
    """Call each function with the module of its name once the module has run, or now if it has. It must not raise."""
    missing = {}
    for name, found in wanted.items():
        if name in sys.modules:
            _say(found, sys.modules[name])
        else:
            missing[name] = _saying(found)
    if missing:
        sys.meta_path.insert(0, _Finder(missing))


def import_quickly(name: str) -> None:
    """Have the module ``name`` imported without the garbage collector, as the objects of an import stay anyway.

    This saves about a tenth of the import time of torch 2.13. A collector that is off stays off.
    """
    if name not in sys.modules:
        sys.meta_path.insert(0, _Finder({name: _import_without_collector}))


def _import_without_collector(spec: Any) -> None:
    """Change a spec so that the garbage collector is off while its module's code runs.

    importlib sets the spec's ``_initializing`` to True before that and to False after it, even after an exception. A
    wrapped loader would instead add a line to the traceback of a failed import.
    """
    import gc

    plain: Any = type(spec)

    class WithoutCollector(plain):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "_initializing" and value:
                gc.disable()
            elif name == "_initializing":
                self.__class__ = plain
                if not gc.get_freeze_count():
                    gc.freeze()  # and back, into the oldest generation: the next collection skips them
                    gc.unfreeze()
                gc.enable()

    if plain is type(sys.__spec__) and gc.isenabled():
        spec.__class__ = WithoutCollector


def waited_us() -> float | None:
    """Return how long this thread has waited for a CPU so far; None if the kernel does not count it.

    It waits while it is runnable but does not run: https://docs.kernel.org/scheduler/sched-stats.html.
    """
    try:
        with open("/proc/thread-self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1000
    except (OSError, ValueError, IndexError):
        return None


def count_work(memory: int) -> None:
    """Count optimizer steps, and batches requested from DataLoaders, in the first 16 bytes of ``memory``.

    The guard needs these counts: progress cannot be seen from outside while ranks wait by spinning or load silently.
    libc maps the memory, because Python's mmap would keep a descriptor of its own open.
    """
    import ctypes

    owner, libc = os.getpid(), ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    address: Any = libc.mmap(None, ctypes.c_size_t(16), 3, 1, memory, ctypes.c_long(0))  # read and write, shared
    if address == ctypes.c_void_p(-1).value:
        return
    counts: Any = (ctypes.c_uint64 * 2).from_address(address)

    def stepped(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        counts[0] += 1

    def asked(_iterator: Any) -> None:
        if os.getpid() == owner:
            counts[1] += 1

    def optimizers(module: Any) -> None:
        notice_steps(module, stepped)

    def dataloaders(module: Any) -> None:
        notice(module._BaseDataLoaderIter, "__next__", asked)  # wraps the method that --phases put there

    after_import({"torch.optim.optimizer": optimizers, "torch.utils.data.dataloader": dataloaders})


def keep_data_workers() -> None:
    """Let DataLoader workers survive SIGTERM unless their rank sends it.

    Batch systems may send SIGTERM to every process of a job (Slurm's proctrack/linuxproc, PBS, `systemctl stop`). The
    rank should save then, but cannot if its workers die: torch raises in the rank as soon as one does.
    """

    def before_fork() -> None:
        module = sys.modules.get("torch.utils.data._utils.signal_handling")
        if module is not None and not hasattr(module, _SPARED):
            _say(spare_workers, module)

    os.register_at_fork(before=before_fork)


def spare_workers(module: Any) -> None:
    """Make workers ignore SIGTERM, and the rank kill them instead; ``module`` is torch's ``signal_handling``."""
    import collections
    import multiprocessing.popen_fork
    import signal

    setattr(module, _SPARED, True)
    processes: Any = multiprocessing.popen_fork.Popen
    ask, kill = processes.terminate, processes.kill
    set_handlers, set_pids = module._set_worker_signal_handlers, module._set_worker_pids
    worker_pids: collections.deque[int] = collections.deque(maxlen=1024)  # pids are reused, but not that soon

    def set_handlers_of_worker() -> None:
        set_handlers()
        # not SIG_IGN, which programs that the worker starts would inherit
        signal.signal(signal.SIGTERM, lambda number, frame: None)

    def note_pids(loader: int, pids: tuple[int, ...]) -> None:
        worker_pids.extend(pids)
        set_pids(loader, pids)

    def terminate(process: Any) -> None:
        (kill if process.pid in worker_pids else ask)(process)

    module._set_worker_signal_handlers, module._set_worker_pids = set_handlers_of_worker, note_pids
    processes.terminate = terminate
