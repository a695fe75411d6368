"""Shows the measurements of `doctor --comm`: a table with a line for each host, and JSON."""

from __future__ import annotations

from typing import Any

from ddplaunch.comm.checks import rate_text, time_text
from ddplaunch.comm.results import Comm, GroupResult
from ddplaunch.ui.table import table
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.codec import plain


def comm_text(comm: Comm, terminal: Terminal) -> list[str]:
    """Return a line for all ranks together; for several hosts also a table of each one alone and in its best pair."""
    lines = [terminal.paint(f"collectives, by {comm.backend}" if comm.backend else "collectives", "bold")]
    whole = [_sentence(group) for group in comm.groups if group.test == "all"]
    for text in whole or (["one rank alone has nobody to talk to"] if comm.ended else ["nothing was measured"]):
        lines += terminal.lines(text, "  ", "    ")
    if len(comm.hosts) > 1:
        rows = [_row(comm, host) for host in comm.hosts]
        lines += table(rows, terminal, ("ranks", "inside", "best pair", "4 bytes"))
    return [*lines, ""]


def _sentence(group: GroupResult) -> str:
    if group.bandwidth is None or group.latency_us is None or group.problem is not None:
        return f"{group.ranks} ranks: {group.problem}"
    return f"{group.ranks} ranks: {rate_text(group.bandwidth)}, all-reduce of 4 bytes in {time_text(group.latency_us)}"


def _row(comm: Comm, host: str) -> dict[str, str]:
    groups = [group for group in comm.inside if group.hosts == (host,)]
    pairs = [group for group in comm.pairs if host in group.hosts]
    sound = [pair for pair in pairs if pair.problem is None]
    failed = [partner for pair in pairs if pair.problem is not None for partner in pair.hosts if partner != host]
    return {
        "host": host,
        "ranks": str(groups[0].ranks) if groups else "1",
        "inside": _rate(groups) if groups else "",
        "best pair": _rate(sound) if pairs else "",
        "4 bytes": time_text(min(pair.latency_us or 0.0 for pair in sound)) if sound else "",
        "fails with": ", ".join(failed),
    }


def _rate(groups: list[GroupResult]) -> str:
    rates = [group.bandwidth for group in groups if group.bandwidth is not None and group.problem is None]
    return rate_text(max(rates)) if rates else "fails"


def comm_json(comm: Comm) -> dict[str, Any]:
    """Return the whole test as JSON values, with numbers in bytes per second and microseconds."""
    shown: dict[str, Any] = plain(comm)
    return shown
