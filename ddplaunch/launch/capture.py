"""Whether and how torchrun gets ddplaunch's plug-in, and how long ranks have to end; refuses to look at the machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ddplaunch.errors import usage
from ddplaunch.frozen import dataclass
from ddplaunch.launch.options import Options
from ddplaunch.launch.plan import Topology, Variable
from ddplaunch.launch.relaunch import relaunch_policy
from ddplaunch.launch.time_limits import time_limits
from ddplaunch.probes.facts import TorchFacts
from ddplaunch.values import Resolved, Source, Unavailable

#: The environment variable with which the plug-in is told its settings; ``agent/protocol.py`` says what they mean.
VARIABLE = "DDPLAUNCH_AGENT"
#: Tells the plug-in when ddplaunch became torchrun, in seconds since 1970, for ``--trace``.
EXECUTED = "DDPLAUNCH_EXECUTED"
LOGS_SPECS = "--logs-specs=ddplaunch"
_DEFAULT_GRACE_S = 30.0  # torchrun's own
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
    about: Mapping[str, object],
) -> Capture:
    """Decide. ``plugin`` is where torchrun finds the entry point, ``extra`` the user's own words to torchrun.

    ``about`` is the run: ``run_id``, ``directory``, and what was decided of its start.
    Raises UsageError for a ``--show`` that names no ranks.
    """
    show = shown_ranks(options.show) if options.show else "0"
    _refuse_absent(options, show, topology.world_size)
    limits = time_limits(options)
    relaunch_policy(options)  # refused here, with everything else that cannot be
    flags = None if isinstance(torch, Unavailable) else torch.torchrun_flags
    argv, notes = _grace(options, flags, extra)
    if options.capture is not None and not options.capture.value:
        return Capture(argv, (), (*notes, *_without(options, "`--no-capture`")))
    reason = _unusable(flags, plugin, extra)
    if reason is not None:
        return Capture(argv, (), (*notes, f"no capture: {reason}", *_without(options, "no capture")))
    settings: dict[str, object] = {
        **about,
        "node": topology.node_rank.value if topology.node_rank else 0,
        "show": show,
        "verbose": bool(options.verbose and options.verbose.value),
        "grace_s": options.grace.value if options.grace else _DEFAULT_GRACE_S,
        "max_restarts": options.max_restarts.value if options.max_restarts else 0,
    }
    settings.update(limits)
    if options.record_metrics and options.record_metrics.value:
        settings["record_metrics"] = True
    if options.trace is not None:
        settings["trace"] = options.trace.value
    variable = Variable(
        VARIABLE,
        json.dumps(settings, separators=(",", ":")),
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
