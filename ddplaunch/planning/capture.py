"""Whether ddplaunch's plug-in records ranks: options for torchrun, settings for the plug-in."""

from __future__ import annotations

from collections.abc import Sequence

from ddplaunch.planning.flag import Ranks
from ddplaunch.planning.launch import Variable
from ddplaunch.planning.settings import Settings
from ddplaunch.values.finding import usage
from ddplaunch.values.resolved import Resolved, Source, Unavailable, value_of
from ddplaunch.values.variable_names import SETTINGS

LOGS_SPECS = "--logs-specs=ddplaunch"
#: torchrun's options with which a user decides where output goes; with ``--run-path`` ranks open files themselves.
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


def interpreter_for(python: tuple[str, ...], warm: bool) -> tuple[str, ...]:
    """Return the command that starts torchrun's interpreter.

    Forked ranks inherit its options, so a warm start drops ``-P`` and adds ``-u``, which torchrun gives its ranks.
    """
    return (*(word for word in python if word != "-P"), "-u") if warm else python


def why_not(
    capture: Resolved[bool] | None,
    flags: frozenset[str] | Unavailable,
    plugin: str | Unavailable,
    extra: Sequence[str],
) -> str | None:
    """Return why the plug-in is not used, None if it is used.

    ``flags`` are the options of the installed torchrun, ``plugin`` is where torchrun finds the plug-in, ``extra`` are
    the user's own options for torchrun.
    """
    if not value_of(capture, True):
        return "`--no-capture`"
    deciding_word = _given(extra, _DECIDED)
    if deciding_word is not None:
        return f"`{deciding_word}` decides where output goes"
    if not isinstance(flags, Unavailable) and "--logs-specs" not in flags:
        return "the installed torchrun has no `--logs-specs`, which came with torch 2.3"
    return plugin.reason if isinstance(plugin, Unavailable) else None


def settings_variable(settings: Settings) -> Variable:
    """Return the variable in which the plug-in finds its settings."""
    why = "what records the ranks' output, shows it, and explains a failure"
    return Variable(SETTINGS, settings.to_json(), Source("computed"), why)


def refuse_absent(show: Resolved[Ranks] | None, world_size: int) -> None:
    """Raise UsageError if ``--show`` names a rank that never exists: the console would stay empty."""
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


def debugged(debug: Resolved[int] | None, world_size: int) -> list[Variable]:
    """Return the variable for the rank that waits for a debugger. Raises UsageError if that rank never exists."""
    if debug is None:
        return []
    if not 0 <= debug.value < world_size:
        raise usage(
            f"`--debug {debug.value}`: there is no such rank",
            why=f"ranks count from 0 to {world_size - 1}",
            fix=f"`--debug {world_size - 1}`",
        )
    return [Variable("DDPLAUNCH_DEBUG", str(debug.value), debug.source, "this rank waits for a debugger")]


def shutdown_timeout(
    grace_s: Resolved[float] | None, flags: frozenset[str] | Unavailable, extra: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return torchrun's option for ``--grace``, and notes. Raises UsageError if the user typed both options."""
    if grace_s is None:
        return (), ()
    if _given(extra, ("--shutdown-timeout",)):
        raise usage(
            "`--grace` and `--torchrun-arg --shutdown-timeout`",
            why="both say how long ranks get to end",
            fix="keep `--grace`",
            where=str(grace_s.source),
        )
    if not isinstance(flags, Unavailable) and "--shutdown-timeout" not in flags:
        return (), ("`--grace` has no effect: the installed torchrun has no `--shutdown-timeout`, and waits 30 s",)
    return (f"--shutdown-timeout={round(grace_s.value)}",), ()


def _given(extra: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the first of ``names`` that the user gave to torchrun, however spelled."""
    for word in extra:
        name = word.partition("=")[0].replace("_", "-")
        name = _SHORT.get(name[:2], name) if not name.startswith("--") else name
        if name in names:
            return name
    return None
