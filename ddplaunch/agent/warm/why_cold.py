"""Says in one line why ranks cannot be forked: what torchrun's process is like, and what each rank needs."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from ddplaunch.agent.rank_site import VARIABLE
from ddplaunch.agent.rank_site.sitecustomize import HERE, restore
from ddplaunch.agent.torch_names import POPEN
from ddplaunch.agent.warm.requests import Request, is_python_command
from ddplaunch.machine.files import gpu_devices

#: Variables that C libraries read when they are loaded: in a forked rank, torchrun's values apply.
_READ_AT_LOAD = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "LD_", "MALLOC_", "GLIBC_TUNABLES", "PYTHON")
#: Variables that make OpenMP bind its threads to the CPUs of the process that loads it.
_PLACES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
#: How ddplaunch starts torchrun. If a program calls torchrun's functions instead, its `with` and `finally` blocks would
#: run again in each fork, which leaves all frames.
_STARTED_AS = ["-u", "-m", "torch.distributed.run"]


def why_no_fork() -> str | None:
    """Return why ranks cannot be forked from this process, which has imported torch; None if they can."""
    customized = next(filter(None, map(_of_user, ("sitecustomize", "usercustomize"))), None)
    gpu = next(iter(gpu_devices("self")), None)
    checks = (
        (not POPEN.is_known(), "this torch starts its ranks in a way unknown to ddplaunch"),
        (sys.orig_argv[1:4] != _STARTED_AS, f"torchrun was not started as `python {' '.join(_STARTED_AS)}`"),
        (sys.gettrace() or sys.getprofile(), "a debugger or profiler follows torchrun's process"),
        (customized, f"{customized} is run by each interpreter that starts"),
        (gpu, f"{gpu} is in use in torchrun's process already, and does not survive a fork"),
    )
    return next((reason for applies, reason in checks if applies), None)


def why_not_forked(request: Request, python: str, at_load: Mapping[str, str]) -> str | None:
    """Return why this rank cannot be forked, None if it can.

    ``at_load`` is the environment with which torchrun's process was started.
    """
    if not is_python_command(request.args, python):
        return f"`{request.args[0]}` is not the interpreter that runs torchrun ({python})"
    environ = dict(request.environ)
    restore(environ)  # a forked rank does not need ddplaunch's folder in PYTHONPATH
    places = next((name for name in _PLACES if environ.get(name, "false").lower() not in ("", "false")), None)
    if request.cpus is not None and places:
        return f"{places} is set, which is heeded when torch is loaded, before a rank has CPUs of its own"
    names = sorted({*environ, *at_load} - {VARIABLE})
    changed = [name for name in names if name.startswith(_READ_AT_LOAD) and environ.get(name) != at_load.get(name)]
    return f"{changed[0]} was set after torchrun had loaded torch, which reads it only then" if changed else None


def _of_user(name: str) -> str | None:
    """Return the file of the module ``name`` if it is neither ddplaunch's nor part of the Python distribution."""
    file: str | None = getattr(sys.modules.get(name), "__file__", None)
    return None if file is None or str(Path(file).parent) in (HERE, sysconfig.get_path("stdlib")) else file


def environ_at_load() -> dict[str, str]:
    """Return the environment with which this process was started, without later changes."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    environ = {name: value for name, _, value in pairs}
    restore(environ)  # without ddplaunch's folder in PYTHONPATH
    return environ
