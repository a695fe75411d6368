"""Whether ranks are forked from one process that has torch already, or start cold; refuses to look at the machine."""

from __future__ import annotations

from collections.abc import Mapping

from ddplaunch.errors import usage
from ddplaunch.frozen import dataclass
from ddplaunch.launch.options import Options
from ddplaunch.launch.plan import Target
from ddplaunch.values import Resolved

_AS_AUTO = "cold"  # docs/warm-start.md says why


@dataclass(frozen=True)
class Start:
    """``settings`` are what the plug-in is told, ``notes`` what a user may not expect."""

    warm: bool
    settings: Mapping[str, object]
    notes: tuple[str, ...] = ()


def decide_start(options: Options, target: Target | None, shadowing: str | None) -> Start:
    """Decide. ``shadowing`` is a file of the working directory that torchrun would import in a library's place.

    Raises UsageError for a ``--start`` or ``--preload`` that says nothing.
    """
    preload = preloaded(options.preload) if options.preload is not None else ()
    asked = _asked(options.start)
    reason = None
    if asked == "warm":
        reason = _why_cold(target, shadowing)
        if reason is None:
            return Start(True, {"start": "warm", **({"preload": list(preload)} if preload else {})})
    notes = [f"cold start: {reason}"] if reason else []
    if preload and reason is None:
        notes.append("`--preload` without effect: only ranks that `--start warm` forks get what was imported once")
    return Start(False, {}, tuple(notes))


def interpreter_for(python: tuple[str, ...], warm: bool) -> tuple[str, ...]:
    """Return how torchrun's interpreter is started.

    A forked rank has the options of torchrun's interpreter, and torchrun gives a rank ``-u`` and nothing else.
    """
    return (*(word for word in python if word != "-P"), "-u") if warm else python


def preloaded(said: Resolved[str]) -> tuple[str, ...]:
    """Return the modules to import once. Raises UsageError for what cannot be a module's name."""
    names = tuple(name.strip() for name in said.value.split(","))
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise usage(
                f"`--preload {said.value}` names no module: `{name}`",
                why="it takes names as `import` does, with commas",
                fix="`--preload torchvision,transformers`",
                where=str(said.source),
            )
    return tuple(dict.fromkeys(names))


def _asked(said: Resolved[str] | None) -> str:
    if said is None or said.value == "auto":
        return _AS_AUTO
    if said.value not in ("warm", "cold"):
        raise usage(
            f"`--start {said.value}` is neither auto, warm nor cold",
            why="`warm` forks the ranks from one process that has imported torch, `cold` starts an interpreter for "
            "each, `auto` decides (now: cold)",
            fix="`--start warm`",
            where=str(said.source),
        )
    return said.value


def _why_cold(target: Target | None, shadowing: str | None) -> str | None:
    if target is not None and target.kind == "executable":
        return f"`{target.name}` is a program of its own, and only Python files and modules can be forked"
    if shadowing is not None:
        return (
            f"`{shadowing}` in this directory is named like what torchrun imports; a cold start keeps it out by "
            "`python -P`, which ranks must not have"
        )
    return None
