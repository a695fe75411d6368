"""Hides torch and numpy in a rank until its script imports them, and then checks variables that torch had read.

A new interpreter has no torch before the script imports it, and torch reads some variables only at that moment. A
forked rank has torch; a variable that its script set came too late, unless torch can still take it.
"""

from __future__ import annotations

import atexit
import copy
import ctypes
import logging
import os
import sys
import warnings
import weakref
from pathlib import Path
from types import ModuleType
from typing import Any

_LATE = "ddplaunch: {} came too late: torch was imported before the script; `--start cold` imports it later\n"


class FirstImport:
    """A finder of the modules that are hidden; the script's first import of torch shows them all."""

    def __init__(self) -> None:
        """Hide the modules. Raises OSError without the list of variables."""
        self._names = Path(__file__).parents[2].joinpath("script", "read_at_import.txt").read_text("ascii").split()
        self._environ = dict(os.environ)
        hidden = [name for name in sys.modules if name.partition(".")[0] in ("torch", "numpy")]
        self._modules = {name: sys.modules.pop(name) for name in hidden}
        # an interpreter that never imported torch does not free it at its end either
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._modules))
        if hidden:
            sys.meta_path.insert(0, self)
        finalize: Any = weakref.finalize
        atexit.unregister(finalize._exitfunc)
        finalize._registered_with_atexit = False  # its first use registers a handler, also for the script

    def find_spec(self, name: str, *_: object) -> Any:
        """Return the spec of a hidden module, with this object as its loader; None for other modules."""
        if name not in self._modules:
            return None
        spec: Any = copy.copy(self._modules[name].__spec__)
        spec.loader, spec.loader_state = self, self._modules[name].__spec__
        return spec

    def create_module(self, spec: Any) -> ModuleType:
        """Return the hidden module."""
        return self._modules[spec.name]

    def exec_module(self, module: Any) -> None:
        """Show numpy's modules if numpy is imported, and both if torch is, because torch imports numpy."""
        module.__spec__ = module.__spec__.loader_state
        every = module.__name__ == "torch"
        for name in [name for name in self._modules if every or name.startswith("numpy")]:
            sys.modules[name] = self._modules.pop(name)
        if every:
            sys.meta_path.remove(self)
            weakref.finalize(self, bool).detach()  # torch uses it when it is imported
            for name, logger in logging.root.manager.loggerDict.items():
                if name.startswith("torch"):
                    vars(logger).update(disabled=False)  # by `disable_existing_loggers`: they did not exist yet
            with warnings.catch_warnings():  # lets warnings be shown again, as the filters that torch adds would
                self._take_variables(module)

    def _take_variables(self, torch: Any) -> None:
        late = []
        for name in sorted(self._names):
            value = os.environ.get(name)
            if value == self._environ.get(name):
                continue
            if name == "TORCH_DISTRIBUTED_DEBUG":
                torch.distributed.set_debug_level_from_env()
            elif name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS") and value and value.isdecimal() and int(value):
                torch.set_num_threads(int(value))
            else:
                late.append(name)
        if late:
            sys.stderr.write(_LATE.format(", ".join(late)))
