"""Decides from facts whether ranks can be forked, and says in one line why not; refuses to look anything up."""

from __future__ import annotations

from collections.abc import Mapping

from ddplaunch.agent.rank_site.breakpoints import VARIABLE
from ddplaunch.agent.rank_site.sitecustomize import restore
from ddplaunch.agent.warm.request import Request, is_python_command
from ddplaunch.frozen import dataclass

#: Read by C libraries when they are loaded: a rank that is forked later has what torchrun's process had.
_READ_AT_LOAD = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "LD_", "MALLOC_", "GLIBC_TUNABLES", "PYTHON")
_READ_LATER = frozenset({VARIABLE})
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
    cuda: str | None
    has_streams: bool
    popen_parameters: tuple[str, ...] | None
    caller: str | None


def why_no_template(facts: AgentFacts) -> str | None:
    """Return why nothing can be forked from torchrun's process, None if it can."""
    for name, effect in _STARTUP.items():
        if facts.environ.get(name):
            return f"{name} is set, which {effect}"
    options = [word for word in interpreter_options(facts.orig_argv) if word != "-u"]
    checks = (
        (
            facts.popen_parameters != ("self", "args", "env"),
            "this torch starts its ranks in a way unknown to ddplaunch",
        ),
        (bool(options), f"torchrun's interpreter was started with `{' '.join(options)}`, which ranks are not"),
        (not facts.unbuffered, "torchrun's interpreter was not started with `-u`, as ranks are"),
        (facts.python_threads > 1, f"torchrun's process has {facts.python_threads} threads already"),
        (facts.traced, "a debugger or profiler follows torchrun's process"),
        (facts.cuda is not None, f"{facts.cuda} is in use in torchrun's process already, and does not survive a fork"),
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
    restore(environ)  # a forked rank needs no folder in PYTHONPATH to show its stacks
    changed = changed_since_load(environ, at_load)
    if changed:
        return f"{changed[0]} was set after torchrun had loaded torch, which reads it only then"
    return None


def changed_since_load(environ: Mapping[str, str], at_load: Mapping[str, str]) -> list[str]:
    """Return the variables that libraries read when they are loaded, and that a rank would have differently."""
    names = {name for name in (*environ, *at_load) if name.startswith(_READ_AT_LOAD)} - _READ_LATER
    return sorted(name for name in names if environ.get(name) != at_load.get(name))


def interpreter_options(orig_argv: tuple[str, ...]) -> list[str]:
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
