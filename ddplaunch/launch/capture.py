"""Whether and how torchrun gets ddplaunch's plug-in, and how long ranks have to end; refuses to look at the machine.

How long a run may take and may stand still, as the plug-in and the guard are told it; refuses to measure it.

Whether ranks are forked from one process that has torch already, or start cold; refuses to look at the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ddplaunch.launch.launch import Target, Topology, Variable
from ddplaunch.launch.options import Options
from ddplaunch.launch.relaunch import relaunch_policy
from ddplaunch.launch.settings import Settings
from ddplaunch.machine.facts import TorchFacts
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from ddplaunch.values.variable_names import SETTINGS
from ddplaunch.values.words import duration_s

_SHORTEST_S = 1.0


def with_time_limits(settings: Settings, options: Options) -> Settings:
    """Return ``settings`` with ``timeout_s``, ``hang_timeout_s``, ``on_hang`` and ``stacks`` as the options ask.

    A hang is explained by stacks, so that ranks of a run with `--hang-timeout` show theirs. Raises UsageError.
    """
    timeout_s = None if options.timeout is None else _seconds("--timeout", options.timeout)
    hang_timeout_s = None if options.hang_timeout is None else _seconds("--hang-timeout", options.hang_timeout)
    return settings._replace(
        timeout_s=timeout_s,
        hang_timeout_s=hang_timeout_s,
        on_hang=None if options.on_hang is None else _on_hang(options.on_hang, options.hang_timeout),
        stacks=options.stacks.value if options.stacks else timeout_s is not None or hang_timeout_s is not None,
    )


def _seconds(flag: str, said: Resolved[str]) -> float:
    seconds = duration_s(flag, said.value)
    if seconds < _SHORTEST_S:
        raise usage(
            f"`{flag} {said.value}` is less than a second",
            why="importing torch alone takes longer",
            fix=f"`{flag} 10m`",
            where=str(said.source),
        )
    return seconds


def _on_hang(said: Resolved[str], hang_timeout: Resolved[str] | None) -> Literal["report", "stop"]:
    if said.value not in ("report", "stop"):
        raise usage(
            f"`--on-hang {said.value}` is neither report nor stop",
            why="`report` says which rank the others wait for and goes on watching, `stop` ends the run then",
            fix="`--on-hang report` or `--on-hang stop`",
            where=str(said.source),
        )
    if hang_timeout is None:
        raise usage(
            "`--on-hang` without `--hang-timeout`",
            why="nobody watches whether the ranks move",
            fix=f"`--hang-timeout 10m --on-hang {said.value}`",
            where=str(said.source),
        )
    return "stop" if said.value == "stop" else "report"


LOGS_SPECS = "--logs-specs=ddplaunch"
_ALL = "all"

#: Options with which a user decides about the ranks' output, and one whose ranks open their files by themselves.
_DECIDED = (
    "--tee",
    "--redirects",
    "--log-dir",
    "--logs-specs",
    "--local-ranks-filter",
    "--duplicate-stdout-filters",
    "--duplicate-stderr-filters",
    "--run-path",
)
#: What only the guard beside torchrun can do.
_OF_THE_GUARD = (
    "show",
    "verbose",
    "record-metrics",
    "timeout",
    "hang-timeout",
    "on-hang",
    "stacks",
    "start",
    "preload",
    "trace",
    "relaunch",
)
_SHORT = {"-t": "--tee", "-r": "--redirects"}


@dataclass(frozen=True)
class Capture:
    """What is put into the command line, the variable if the plug-in is used, and what a user may not expect."""

    argv: tuple[str, ...] = ()
    variables: tuple[Variable, ...] = ()
    notes: tuple[str, ...] = ()


def decide_capture(
    options: Options,
    topology: Topology,
    torch: TorchFacts | Unavailable,
    plugin: str | Unavailable,
    extra: Sequence[str],
    about: Settings,
) -> Capture:
    """Decide. ``plugin`` is where torchrun finds the entry point, ``extra`` the user's own words to torchrun.

    ``about`` has ``run_id``, ``directory``, and what was decided of the start.
    Raises UsageError for a ``--show`` that names no ranks.
    """
    show = shown_ranks(options.show) if options.show else "0"
    _refuse_absent(options, show, topology.world_size)
    settings = with_time_limits(about, options)
    relaunch_policy(options)  # refused here, with everything else that cannot be
    flags = None if isinstance(torch, Unavailable) else torch.torchrun_flags
    argv, notes = _grace(options, flags, extra)
    if options.capture is not None and not options.capture.value:
        return Capture(argv, (), (*notes, *_without(options, "`--no-capture`")))
    reason = _unusable(flags, plugin, extra)
    if reason is not None:
        return Capture(argv, (), (*notes, f"no capture: {reason}", *_without(options, "no capture")))
    settings = settings._replace(
        node=topology.node_rank.value if topology.node_rank else 0,
        show=show,
        verbose=bool(options.verbose and options.verbose.value),
        max_restarts=options.max_restarts.value if options.max_restarts else 0,
        record_metrics=bool(options.record_metrics and options.record_metrics.value),
        trace=options.trace.value if options.trace else "",
    )
    if options.grace:
        settings = settings._replace(grace_s=options.grace.value)
    variable = Variable(
        SETTINGS,
        settings.to_json(),
        Source("computed"),
        "what records the ranks' output, shows it, and explains a failure",
    )
    return Capture((LOGS_SPECS, *argv), (variable,), notes)


def shown_ranks(said: Resolved[str]) -> str:
    """Return "all", or the ranks in order with commas. Raises UsageError."""
    text = said.value.strip()
    if text == _ALL:
        return text
    ranks = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) < 8 for word in ranks):
        raise usage(
            f"`--show {said.value}` names no ranks",
            why="it takes global ranks with commas, or `all`",
            fix="`--show 0,3`",
            where=str(said.source),
        )
    return ",".join(str(rank) for rank in sorted({int(word) for word in ranks}))


def _refuse_absent(options: Options, show: str, world_size: int) -> None:
    """A rank that never exists would leave the console empty, without a word."""
    absent = [rank for rank in show.split(",") if show != _ALL and int(rank) >= world_size]
    if options.show is not None and absent:
        raise usage(
            f"`--show {options.show.value}`: there is no rank {absent[0]} among {world_size}",
            why=f"ranks count from 0 to {world_size - 1}",
            fix=f"`--show {world_size - 1}`, or `--show all`",
            where=str(options.show.source),
        )


def _grace(
    options: Options, flags: frozenset[str] | None, extra: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if options.grace is None:
        return (), ()
    if _given(extra, ("--shutdown-timeout",)):
        raise usage(
            "`--grace` and `--torchrun-arg --shutdown-timeout`",
            why="both say how long ranks get to end",
            fix="keep `--grace`",
            where=str(options.grace.source),
        )
    if flags is not None and "--shutdown-timeout" not in flags:
        return (), ("`--grace` has no effect: the installed torchrun has no `--shutdown-timeout`, and waits 30 s",)
    return (f"--shutdown-timeout={round(options.grace.value)}",), ()


def _unusable(flags: frozenset[str] | None, plugin: str | Unavailable, extra: Sequence[str]) -> str | None:
    given = _given(extra, _DECIDED)
    if given is not None:
        return f"`{given}` decides where output goes"
    if flags is not None and "--logs-specs" not in flags:
        return "the installed torchrun has no `--logs-specs`, which came with torch 2.3"
    return plugin.reason if isinstance(plugin, Unavailable) else None


def _given(extra: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the first of ``names`` that the user gave to torchrun, however spelled."""
    for word in extra:
        name = word.partition("=")[0].replace("_", "-")
        name = _SHORT.get(name[:2], name) if not name.startswith("--") else name
        if name in names:
            return name
    return None


def _without(options: Options, cause: str) -> tuple[str, ...]:
    said = [f"`--{name}`" for name in _OF_THE_GUARD if _said(options, name)]
    return (f"{' and '.join(said)} without effect: {cause}",) if said else ()


def _said(options: Options, name: str) -> bool:
    if name in ("start", "preload") and (options.start is None or options.start.value != "warm"):
        return False  # cold is what it is then
    return getattr(options, name.replace("-", "_")) is not None


_AS_AUTO = "cold"  # docs/warm-start.md says why


@dataclass(frozen=True)
class Start:
    """Whether ranks are forked, what is imported before they are, and what a user may not expect."""

    warm: bool
    preload: tuple[str, ...] = ()
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
            return Start(True, preload)
    notes = [f"cold start: {reason}"] if reason else []
    if preload and reason is None:
        notes.append("`--preload` without effect: only ranks that `--start warm` forks get what was imported once")
    return Start(False, (), tuple(notes))


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
