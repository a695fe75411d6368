"""What `doctor --comm` measured: a picture of all pairs of hosts, and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddplaunch.comm.checks import rate_text, time_text
from ddplaunch.comm.groups import Comm, GroupVerdict, HostGroup, verdicts
from ddplaunch.ui.table import grid
from ddplaunch.ui.terminal import Emphasis, Terminal, cells, visible, wrap
from ddplaunch.values.words import count

#: The sign and the words of a verdict, and how both are painted.
_SHOWN: dict[GroupVerdict, tuple[str, str, Emphasis | None]] = {
    "fine": ("#", "fine", None),
    "slow": ("s", "slow", "warning"),
    "lossy": ("!", "loses packets", "warning"),
    "failed": ("x", "fails", "error"),
}
_LEGEND = ", ".join(f"{sign} {words}" for sign, words, _ in _SHOWN.values())
_BLANK: tuple[str, GroupVerdict] = ("", "fine")
_GAP = 2

#: What stands at (row, column), with its verdict.
_Cells = Mapping[tuple[int, int], tuple[str, GroupVerdict]]


def comm_text(comm: Comm, terminal: Terminal) -> list[str]:
    """Return the lines of the picture: all pairs of hosts where there are some, else this host alone."""
    title = terminal.paint(f"collectives, by {comm.backend}", "bold")
    if len(comm.hosts) == 1:
        told = [_alone(group) for group in comm.inside] or ["one rank alone has nobody to talk to"]
        return [title, *(line for text in told for line in wrap(text, terminal.width, "  ", "    ")), ""]
    found = dict(zip(comm.groups, verdicts(comm), strict=True))
    places = {host: number for number, host in enumerate(comm.hosts)}
    label = len(str(len(comm.hosts))) + 1 + max(cells(visible(host)) for host in comm.hosts)
    numbers = _numbers(found, places)
    column = max((cells(text) for text, _ in numbers.values()), default=1)
    if 2 + label + (column + _GAP) * len(places) <= terminal.width:
        lines = _matrix(comm.hosts, numbers, label, column, terminal, _GAP)
        legend = _legend(comm)
    elif 2 + label + _GAP + len(places) <= terminal.width:
        gap = 1 if 2 + label + _GAP + 2 * len(places) <= terminal.width else 0
        lines = _matrix(comm.hosts, _signs(found, places), label + _GAP, 1, terminal, gap)
        legend = f"{_LEGEND}; blank: not tested together; `--json` has the numbers"
    else:
        lines, legend = _worst(found, terminal.width), "`--json` has the numbers"
    return [title, *lines, *wrap(legend, terminal.width, "  ", "  "), ""]


def _worst(found: Mapping[HostGroup, GroupVerdict], width: int) -> list[str]:
    """Name what is not fine, where the hosts are too many for a picture."""
    lines = []
    for group, verdict in found.items():
        if verdict != "fine":
            lines += wrap(f"{visible(' with '.join(group.hosts))}: {_SHOWN[verdict][1]}", width, "  ", "    ")
    return [*lines, f"  {count(sum(verdict == 'fine' for verdict in found.values()), 'group')} of hosts do well"]


def _alone(group: HostGroup) -> str:
    if group.measured is None:
        return f"{group.ranks} ranks: {group.problem}"
    rate, latency = rate_text(group.measured.bandwidth), time_text(group.measured.latency_us)
    return f"{group.ranks} ranks: {rate}, an all-reduce of 4 bytes takes {latency}"


def _legend(comm: Comm) -> str:
    parts = ["above the diagonal: bit/s between two hosts", "below: time of an all-reduce of 4 bytes"]
    ranks = sorted({group.ranks for group in comm.inside})
    if ranks:
        parts.append(f"on it: bit/s among the {' or '.join(map(str, ranks))} ranks of each host")
    return f"{'; '.join(parts)}; blank: not tested together"


def _numbers(found: Mapping[HostGroup, GroupVerdict], places: Mapping[str, int]) -> _Cells:
    """Bandwidth above the diagonal and on it, latency below."""
    result: dict[tuple[int, int], tuple[str, GroupVerdict]] = {}
    for group, verdict in found.items():
        low, high = min(places[host] for host in group.hosts), max(places[host] for host in group.hosts)
        rate = "fails" if group.measured is None else _short(rate_text(group.measured.bandwidth))
        result[low, high] = (rate, verdict)
        if low != high:
            latency = "" if group.measured is None else time_text(group.measured.latency_us).replace(" ", "")
            result[high, low] = (latency, verdict)
    return result


def _signs(found: Mapping[HostGroup, GroupVerdict], places: Mapping[str, int]) -> _Cells:
    result: dict[tuple[int, int], tuple[str, GroupVerdict]] = {}
    for group, verdict in found.items():
        one, two = places[group.hosts[0]], places[group.hosts[-1]]
        result[one, two] = result[two, one] = (_SHOWN[verdict][0], verdict)
    return result


def _short(rate: str) -> str:
    """Return ``9.4 Gbit/s`` as ``9.4G``; the legend says of what."""
    number, _, unit = rate.partition(" ")
    return number + ("" if unit == "bit/s" else unit[0])


def _matrix(hosts: Sequence[str], shown: _Cells, label: int, column: int, terminal: Terminal, gap: int) -> list[str]:
    """Return a line for each host, its name in ``label`` cells; ``gap`` cells stand in front of each column."""
    digits, numbers = len(str(len(hosts))), range(len(hosts))
    named = [f"{number + 1:>{digits}} {visible(hosts[number])}" for number in numbers]
    names = [f"  {name}{' ' * (label - cells(name))}" for name in named]
    header = [str(number + 1)[-column:].rjust(column + gap) for number in numbers]
    found = [[shown.get((row, number), _BLANK) for number in numbers] for row in numbers]
    return grid(names, header, [[(text, _SHOWN[verdict][2]) for text, verdict in each] for each in found], terminal)


def comm_json(comm: Comm) -> dict[str, Any]:
    """Return every step with its numbers: bytes per second, bytes, microseconds, TCP segments."""
    return {
        "backend": comm.backend,
        "deadline_s": comm.deadline_s,
        "hosts": list(comm.hosts),
        "steps": [_step(group, verdict) for group, verdict in zip(comm.groups, verdicts(comm), strict=True)],
        "untested": [{"host": host, "reason": reason} for host, reason in comm.untested],
    }


def _step(group: HostGroup, verdict: GroupVerdict) -> dict[str, Any]:
    step: dict[str, Any] = {
        "hosts": list(group.hosts),
        "round": group.round,
        "ranks": group.ranks,
        "verdict": verdict,
        "problem": group.problem or None,
        "seconds": round(group.seconds, 3),
        "tcp_segments": group.segments,
        "tcp_resent": group.resent,
    }
    if group.measured is not None:
        step |= {
            "bandwidth_bytes_per_s": round(group.measured.bandwidth),
            "size_bytes": group.measured.size_bytes,
            "latency_us": group.measured.latency_us,
            "latency_most_us": group.measured.latency_most_us,
        }
    return step
