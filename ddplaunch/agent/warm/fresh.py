"""Puts a forked process back to where an interpreter that was just started stands; refuses to start the script.

Every rule stands for a difference that a script could see, and has its line in ``tests/warm/probe.py``, which runs both
ways.
"""

from __future__ import annotations

import builtins
import faulthandler
import importlib
import itertools
import os
import signal
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ddplaunch.agent.rank_site.ddplaunch_marks import PATH, begin
from ddplaunch.agent.rank_site.sitecustomize import register, restore
from ddplaunch.agent.warm import execute
from ddplaunch.agent.warm.request import Request
from ddplaunch.frozen import dataclass


@dataclass(frozen=True)
class Origin:
    """Where a rank comes from.

    ``launcher_path`` is what torchrun's own interpreter had put in front of ``sys.path``, ``launcher_modules`` what was
    found there, ``seed`` torch's at the first fork.
    """

    launcher_path: str | None
    launcher_modules: tuple[str, ...]
    seed: int | None


def become(request: Request, origin: Origin) -> execute.Program:
    """Make this process what `python -u …` would be before its first line; return what runs that line.

    Touches as little as it can: each page that it writes to is one more that ranks do not share. Raises OSError if the
    script cannot be read.
    """
    os.environ.clear()
    os.environ.update(request.environ)
    shows_stacks, marks = restore(os.environ), os.environ.pop(PATH, None)
    sys.orig_argv = list(request.args)
    sys.argv = request.argv
    _main_module()
    program, first = _program(request)
    if first is not None:
        sys.path.insert(0, first)
    if first != origin.launcher_path:
        forget(origin.launcher_modules)
    _signals()
    _faulthandler()
    if shows_stacks:
        register()
    if marks is not None:
        begin(marks)
    _threads()
    _processes()
    _random(origin.seed)
    _logging()
    return program


def _program(request: Request) -> tuple[execute.Program, str | None]:
    """Return what runs the target, and what leads ``sys.path`` meanwhile.

    As the interpreter decides it: the folder of the script with links resolved, the working directory for ``-m``, and
    the folder or archive itself if the target is one (https://docs.python.org/3/using/cmdline.html).
    """
    safe = getattr(sys.flags, "safe_path", False)
    if request.is_module:
        return execute.module(request.target, named_by_user=True), None if safe else str(Path.cwd())
    # `./` and `..` stay as they were typed
    path = request.target if request.target.startswith(os.sep) else f"{Path.cwd()}{os.sep}{request.target}"
    if execute.is_importable(path):
        return execute.module("__main__", named_by_user=False), path
    return execute.script(path), None if safe else str(Path(path).resolve().parent)


def found_in(folder: str) -> list[str]:
    """Return the modules that torchrun found in its own first folder, ``folder``, where a rank may not look."""
    home = Path(folder).resolve()
    if home in {Path(entry).resolve() for entry in sys.path}:
        return []
    tops = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and "." not in name and name != "__main__":
            place = Path(file).parent.parent if Path(file).stem == "__init__" else Path(file).parent
            if place.resolve() == home:
                tops.add(name)
    return [name for name in sys.modules if name.partition(".")[0] in tops]


def forget(names: Iterable[str]) -> None:
    """Drop these modules; who has them already keeps them."""
    for name in names:
        sys.modules.pop(name, None)


def _main_module() -> None:
    main = types.ModuleType("__main__")
    names = (
        {"__builtins__": builtins} if sys.version_info >= (3, 14) else {"__builtins__": builtins, "__annotations__": {}}
    )
    vars(main).update(names)
    main.__loader__ = importlib.machinery.BuiltinImporter
    sys.modules["__main__"] = main


def _signals() -> None:
    """Handlers go, ignored signals stay ignored, as over execve; Python's own three are as at its start."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if handler not in (signal.SIG_DFL, signal.SIG_IGN, None, signal.default_int_handler):
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
