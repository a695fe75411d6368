"""How long a run may take and may stand still, as the plug-in and the guard are told it; refuses to measure it."""

from __future__ import annotations

from ddplaunch.errors import usage
from ddplaunch.launch.durations import duration_s
from ddplaunch.launch.options import Options
from ddplaunch.values import Resolved

_SHORTEST_S = 1.0


def time_limits(options: Options) -> dict[str, object]:
    """Return ``timeout_s``, ``hang_timeout_s``, ``on_hang`` and ``stacks``, each only where it was asked for.

    A hang is explained by stacks, so that ranks of a run with `--hang-timeout` show theirs. Raises UsageError.
    """
    found: dict[str, object] = {}
    if options.timeout is not None:
        found["timeout_s"] = _seconds("--timeout", options.timeout)
    if options.hang_timeout is not None:
        found["hang_timeout_s"] = _seconds("--hang-timeout", options.hang_timeout)
    if options.on_hang is not None:
        found["on_hang"] = _on_hang(options.on_hang, options.hang_timeout)
    wanted = bool(found) if options.stacks is None else options.stacks.value
    return {**found, "stacks": True} if wanted else found


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


def _on_hang(said: Resolved[str], hang_timeout: Resolved[str] | None) -> str:
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
    return said.value
