"""Says in one line why ranks cannot be forked, from facts about torchrun's process and about each rank."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddplaunch.agent.rank_site import VARIABLE
from ddplaunch.agent.rank_site.sitecustomize import restore
from ddplaunch.agent.torch_names import POPEN
from ddplaunch.agent.warm.requests import Request, is_python_command
from ddplaunch.machine.files import gpu_devices
from ddplaunch.values.frozen import dataclass

#: Read by C libraries when they are loaded: a rank that is forked later has what torchrun's process had.
_READ_AT_LOAD = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "LD_", "MALLOC_", "GLIBC_TUNABLES", "PYTHON")
_READ_LATER = frozenset({VARIABLE})
#: Have OpenMP bind its threads to the CPUs of the process that loads it.
_PLACES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
#: Ask for something that happens at the start of an interpreter, or at its end, in each rank.
_STARTUP = {
    "PYTHONINSPECT": "opens a prompt when the script ends",
    "PYTHONPROFILEIMPORTTIME": "times each rank's own imports",
    "COVERAGE_PROCESS_START": "measures each rank from its interpreter's start",
    "COVERAGE_PROCESS_CONFIG": "measures each rank from its interpreter's start",
}


@dataclass(frozen=True)
class AgentFacts:
    """torchrun's process at the moment when the template would be forked."""

    orig_argv: tuple[str, ...]
    environ: Mapping[str, str]
    unbuffered: bool
    python_threads: int
    traced: bool
    gpu: str | None
    has_streams: bool
    starts_ranks_as_known: bool
    caller: str | None


def why_no_template(facts: AgentFacts) -> str | None:
    """Return why nothing can be forked from torchrun's process, None if it can."""
    for name, effect in _STARTUP.items():
        if facts.environ.get(name):
            return f"{name} is set, which {effect}"
    options = [word for word in _interpreter_options(facts.orig_argv) if word != "-u"]
    checks = (
        (not facts.starts_ranks_as_known, "this torch starts its ranks in a way unknown to ddplaunch"),
        (bool(options), f"torchrun's interpreter was started with `{' '.join(options)}`, which ranks are not"),
        (not facts.unbuffered, "torchrun's interpreter was not started with `-u`, as ranks are"),
        (facts.python_threads > 1, f"torchrun's process has {facts.python_threads} threads already"),
        (facts.traced, "a debugger or profiler follows torchrun's process"),
        (facts.gpu is not None, f"{facts.gpu} is in use in torchrun's process already, and does not survive a fork"),
        # the template leaves all frames: whatever the caller has in `with` or `finally` would happen twice
        (facts.caller is not None, f"{facts.caller} has called torchrun's functions; `python -m` has to start them"),
        (not facts.has_streams, "torchrun's stdin, stdout or stderr is closed"),
    )
    return next((reason for applies, reason in checks if applies), None)


def why_not_forked(request: Request, python: str, at_load: Mapping[str, str], target_is_file: bool) -> str | None:
    """Return why this rank cannot come from the template, None if it can.

    ``at_load`` is the environment with which torchrun's process was started, ``target_is_file`` whether the script is
    there; Python itself says it best if it is not.
    """
    if not is_python_command(request.args, python):
        return f"`{request.args[0]}` is not the interpreter that runs torchrun ({python})"
    if not request.is_module and not target_is_file:
        return f"{request.target} is no file"
    if not request.siblings:
        return "torchrun does not say how many ranks it starts (LOCAL_WORLD_SIZE)"
    environ = dict(request.environ)
    restore(environ)  # a forked rank needs no folder in PYTHONPATH to be looked at
    places = next((name for name in _PLACES if environ.get(name, "false").lower() not in ("", "false")), None)
    if request.cpus is not None and places:
        return f"{places} is set, which is heeded when torch is loaded, before a rank has CPUs of its own"
    changed = changed_since_load(environ, at_load)
    if changed:
        return f"{changed[0]} was set after torchrun had loaded torch, which reads it only then"
    return None


def changed_since_load(environ: Mapping[str, str], at_load: Mapping[str, str]) -> list[str]:
    """Return the variables that libraries read when they are loaded, and that a rank would have differently."""
    names = {name for name in (*environ, *at_load) if name.startswith(_READ_AT_LOAD)} - _READ_LATER
    return sorted(name for name in names if environ.get(name) != at_load.get(name))


def _interpreter_options(orig_argv: tuple[str, ...]) -> list[str]:
    """Return what stands between the interpreter and what it runs, from ``sys.orig_argv``."""
    options = []
    words = iter(orig_argv[1:])
    for word in words:
        if not word.startswith("-") or word in ("-m", "-c", "-"):
            break
        options.append(word)
        if word in ("-W", "-X"):
            options.append(next(words, ""))
    return options


_TORCH = f"torch{os.sep}distributed{os.sep}"
_STARTERS = ("<frozen runpy>", "runpy.py", "torchrun")


def agent_facts() -> AgentFacts:
    """Return the facts of this process, which has imported torch."""
    return AgentFacts(
        orig_argv=tuple(sys.orig_argv),
        environ=dict(os.environ),
        unbuffered=bool(getattr(sys.__stdout__, "write_through", False)),
        python_threads=threading.active_count(),
        traced=sys.gettrace() is not None or sys.getprofile() is not None,
        gpu=next(iter(gpu_devices("self")), None),
        has_streams=None not in (sys.stdin, sys.stdout, sys.stderr),
        starts_ranks_as_known=POPEN.is_known(),
        caller=foreign_caller([frame.f_code.co_filename for frame, _ in traceback.walk_stack(None)]),
    )


def foreign_caller(files: Sequence[str]) -> str | None:
    """Return the file that called torchrun's functions, None if Python ran torchrun itself.

    ``files`` are those of the stack, the innermost first: the plug-in, then torch's, then nothing but what
    ``python -m`` or the script `torchrun` puts beneath.
    """
    first = next((number for number, file in enumerate(files) if _TORCH in file), 0)
    return next((file for file in files[first:] if _TORCH not in file and Path(file).name not in _STARTERS), None)


def environ_at_load() -> dict[str, str]:
    """Return the environment with which this process was started, whatever it has set since."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if entry)
    environ = {name: value for name, _, value in pairs}
    restore(environ)  # the folder in PYTHONPATH that it had to begin with
    return environ
