"""How ranks start, and whether ddplaunch's plug-in records them: torchrun's words for it and the plug-in's settings."""

from __future__ import annotations

from collections.abc import Sequence

from ddplaunch.launch.flag import Ranks
from ddplaunch.launch.launch import Target, Topology, Variable
from ddplaunch.launch.options import Options
from ddplaunch.launch.settings import Settings
from ddplaunch.machine.facts import TorchFacts
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass
from ddplaunch.values.resolved import Resolved, Source, Unavailable
from ddplaunch.values.variable_names import SETTINGS

LOGS_SPECS = "--logs-specs=ddplaunch"
#: torchrun's options by which a user decides about the ranks' output, and one whose ranks open their files themselves.
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
_SHORT = {"-t": "--tee", "-r": "--redirects"}


@dataclass(frozen=True)
class StartDecision:
    """Whether ranks are forked, what is imported before they are, and notes for the plan."""

    warm: bool
    preload: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaptureDecision:
    """The words for torchrun, the variable with the plug-in's settings if it is used, and notes for the plan."""

    argv: tuple[str, ...] = ()
    variables: tuple[Variable, ...] = ()
    notes: tuple[str, ...] = ()


def decide_start(options: Options, target: Target | None, shadowing: str | None) -> StartDecision:
    """Decide whether ranks are forked from one process that has torch.

    ``shadowing`` is a file of the working directory that torchrun would import in a library's place.
    """
    preload = options.preload.value if options.preload else ()
    if options.start is not None and options.start.value == "warm":
        reason = _why_cold(target, shadowing)
        if reason is None:
            return StartDecision(True, preload)
        return StartDecision(False, (), (f"cold start: {reason}",))
    if not preload:
        return StartDecision(False)
    note = "`--preload` without effect: only ranks that `--start warm` forks get what was imported once"
    return StartDecision(False, (), (note,))


def _why_cold(target: Target | None, shadowing: str | None) -> str | None:
    if target is not None and target.kind == "executable":
        return f"`{target.name}` is a program of its own, and only Python files and modules can be forked"
    if shadowing is not None:
        return (
            f"`{shadowing}` in this directory is named like what torchrun imports; a cold start keeps it out by "
            "`python -P`, which ranks must not have"
        )
    return None


def interpreter_for(python: tuple[str, ...], warm: bool) -> tuple[str, ...]:
    """Return how torchrun's interpreter is started.

    A forked rank has the options of torchrun's interpreter, and torchrun gives a rank ``-u`` and nothing else.
    """
    return (*(word for word in python if word != "-P"), "-u") if warm else python


def decide_capture(
    options: Options,
    topology: Topology,
    torch: TorchFacts | Unavailable,
    plugin: str | Unavailable,
    extra: Sequence[str],
    about: Settings,
) -> CaptureDecision:
    """Decide whether the plug-in is used.

    ``plugin`` is where torchrun finds it, ``extra`` are the user's words to torchrun. ``about`` has ``run_id``,
    ``directory`` and the decided start. Raises UsageError for a rank to show that does not exist, and for two values of
    the grace.
    """
    _refuse_absent(options.show, topology.world_size)
    flags = None if isinstance(torch, Unavailable) else torch.torchrun_flags
    argv, notes = _shutdown_timeout(options.grace_s, flags, extra)
    if options.capture is not None and not options.capture.value:
        return CaptureDecision(argv, (), (*notes, *_without_effect(options, "`--no-capture`")))
    reason = _unusable(flags, plugin, extra)
    if reason is not None:
        return CaptureDecision(argv, (), (*notes, f"no capture: {reason}", *_without_effect(options, "no capture")))
    variable = Variable(
        SETTINGS,
        _settings(options, topology, about).to_json(),
        Source("computed"),
        "what records the ranks' output, shows it, and explains a failure",
    )
    return CaptureDecision((LOGS_SPECS, *argv), (variable,), notes)


def _settings(options: Options, topology: Topology, about: Settings) -> Settings:
    show = options.show.value if options.show else (0,)
    limited = with_time_limits(about, options)
    return limited._replace(
        node=topology.node_rank.value if topology.node_rank else 0,
        show=show if show == "all" else ",".join(map(str, show)),
        verbose=bool(options.verbose and options.verbose.value),
        grace_s=options.grace_s.value if options.grace_s else about.grace_s,
        max_restarts=options.max_restarts.value if options.max_restarts else 0,
        record_metrics=bool(options.record_metrics and options.record_metrics.value),
        trace=options.trace.value if options.trace else "",
    )


def with_time_limits(settings: Settings, options: Options) -> Settings:
    """Return ``settings`` with ``timeout_s``, ``hang_timeout_s``, ``on_hang`` and ``stacks`` as the options ask.

    Both time-outs are explained by stacks, so a run with one of them lets its ranks show theirs.
    """
    timeout, hang_timeout = options.timeout_s, options.hang_timeout_s
    return settings._replace(
        timeout_s=timeout.value if timeout else None,
        hang_timeout_s=hang_timeout.value if hang_timeout else None,
        on_hang=options.on_hang.value if options.on_hang else None,
        stacks=options.stacks.value if options.stacks else timeout is not None or hang_timeout is not None,
    )


def _refuse_absent(show: Resolved[Ranks] | None, world_size: int) -> None:
    """Raise UsageError for a rank that never exists: the console would stay empty, without a word."""
    if show is None or show.value == "all":
        return
    absent = next((rank for rank in show.value if rank >= world_size), None)
    if absent is not None:
        raise usage(
            f"`--show {','.join(map(str, show.value))}`: there is no rank {absent} among {world_size}",
            why=f"ranks count from 0 to {world_size - 1}",
            fix=f"`--show {world_size - 1}`, or `--show all`",
            where=str(show.source),
        )


def _shutdown_timeout(
    grace_s: Resolved[float] | None, flags: frozenset[str] | None, extra: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return torchrun's words for the grace, and notes."""
    if grace_s is None:
        return (), ()
    if _given(extra, ("--shutdown-timeout",)):
        raise usage(
            "`--grace` and `--torchrun-arg --shutdown-timeout`",
            why="both say how long ranks get to end",
            fix="keep `--grace`",
            where=str(grace_s.source),
        )
    if flags is not None and "--shutdown-timeout" not in flags:
        return (), ("`--grace` has no effect: the installed torchrun has no `--shutdown-timeout`, and waits 30 s",)
    return (f"--shutdown-timeout={round(grace_s.value)}",), ()


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


def _without_effect(options: Options, cause: str) -> tuple[str, ...]:
    """Return a note on the flags that only the guard beside torchrun could heed."""
    warm = options.start is not None and options.start.value == "warm"  # else ``decide_start`` has said it
    of_the_guard = {
        "--show": options.show,
        "--verbose": options.verbose,
        "--record-metrics": options.record_metrics,
        "--timeout": options.timeout_s,
        "--hang-timeout": options.hang_timeout_s,
        "--on-hang": options.on_hang,
        "--stacks": options.stacks,
        "--start": options.start if warm else None,
        "--preload": options.preload if warm else None,
        "--trace": options.trace,
        "--relaunch": options.relaunch,
    }
    said = [f"`{flag}`" for flag, value in of_the_guard.items() if value is not None]
    return (f"{' and '.join(said)} without effect: {cause}",) if said else ()
