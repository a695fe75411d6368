"""Runs as a table and as JSON; refuses to look for them.

Bytes of several ranks as lines with the rank in front; refuses to read files and to change bytes of a single one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from ddplaunch.records.log_files import LogFile
from ddplaunch.records.run_states import RunSummary
from ddplaunch.ui.table import table
from ddplaunch.ui.terminal import Terminal, cells, visible
from ddplaunch.values.codec import plain
from ddplaunch.values.words import age_text, listed

SCHEMA = 1
_RIGHT = {"AGE", "SIZE", "BATCH"}
_GPUS_IN_FULL = 4


def ps_text(runs: Sequence[RunSummary], more: int, now_s: float, me: str, terminal: Terminal) -> str:
    """Return a line for each run, columns that would be empty left out, and how many ended runs are not shown.

    WHO is shown where a run is somebody else's, HOSTS where one has several.
    """
    if not runs:
        return "no runs\n"
    header, rows = _fitting(runs, now_s, me, terminal.width)
    right = frozenset(i for i, name in enumerate(header) if name in _RIGHT)
    # the table indents its lines by two
    lines = [
        line[2:] if line.startswith("  ") else line for line in table(header, rows, Terminal(terminal.width + 2), right)
    ]
    if terminal.styled:
        lines = [_painted(line) for line in lines]
        lines[0] = terminal.paint(lines[0], "dim")
    lines += [f"{visible(run.run_id)}: {visible(run.problem)}" for run in runs if run.problem]
    if more:
        lines.append(f"{more} more ended; `ddplaunch ps --all` lists them")
    return terminal.spell("\n".join(lines)) + "\n"


#: What a narrow terminal does without, first to last; from HOSTS on, long names of scripts are cut as well.
_SPARED = ("host names", "failed rank", "HOSTS", "GPUS", "BATCH")
_SHORT = 10


def _fitting(runs: Sequence[RunSummary], now_s: float, me: str, width: int) -> tuple[list[str], list[list[str]]]:
    """Return header and rows, with less in them the narrower the terminal: what is left out, ``--json`` has."""
    shown: dict[str, list[str]] = {}
    for spared in range(len(_SPARED) + 1):
        columns = _columns(runs, now_s, me, frozenset(_SPARED[:spared]))
        shown = {name: column for name, column in columns.items() if any(column)}
        room = width - sum(max(map(cells, (name, *column))) + 2 for name, column in shown.items() if name != "SCRIPT")
        longest = max(map(cells, shown.get("SCRIPT", [""])))
        least = _SHORT if "HOSTS" in _SPARED[:spared] else longest
        if room >= min(longest, least):
            if longest > room:
                shown["SCRIPT"] = [name if len(name) <= room else name[: room - 1] + "…" for name in shown["SCRIPT"]]
            break
    return list(shown), [list(row) for row in zip(*shown.values(), strict=True)]


def _columns(runs: Sequence[RunSummary], now_s: float, me: str, spared: frozenset[str]) -> dict[str, list[str]]:
    others = any(run.user not in (None, me) for run in runs)
    several = any(len(run.hosts) > 1 for run in runs) or len({run.hosts for run in runs if run.hosts}) > 1
    hosts = [_hosts(run.hosts, "host names" not in spared) if several else "" for run in runs]
    columns = {
        "RUN": [run.run_id for run in runs],
        "STATE": [run.state if "failed rank" in spared else state_text(run) for run in runs],
        "AGE": [age_text(None if run.started_s is None else now_s - run.started_s) for run in runs],
        "SIZE": [size_of(run) for run in runs],
        "BATCH": ["" if run.effective_batch is None else str(run.effective_batch) for run in runs],
        "GPUS": [gpus_text(run.gpus) for run in runs],
        "WHO": [(run.user or "") if others else "" for run in runs],
        "HOSTS": hosts,
        "SCRIPT": [_script(run.script) for run in runs],
    }
    return {name: column for name, column in columns.items() if name not in spared}


def state_text(run: RunSummary) -> str:
    """Return the state in a word, with the exit status and, where it is known, the rank that failed first."""
    if run.state != "failed" or run.exit_status is None:
        return run.state
    rank = "" if run.first_failed_rank is None else f", rank {run.first_failed_rank}"
    return f"failed ({run.exit_status}{rank})"


def size_of(run: RunSummary) -> str:
    """Return the number of processes, ``2x4`` for two nodes of four."""
    if run.nproc_per_node is None:
        return ""
    return f"{run.nnodes}x{run.nproc_per_node}" if (run.nnodes or 1) > 1 else str(run.nproc_per_node)


def gpus_text(gpus: Sequence[str] | None) -> str:
    """Return ``0-3``, ``0,2``, or the number of GPUs where they are named by UUID."""
    if not gpus:
        return ""
    if not all(gpu.isdecimal() for gpu in gpus):
        return f"{len(gpus)} by UUID"
    numbers = [int(gpu) for gpu in gpus]
    if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(gpus) if len(gpus) <= _GPUS_IN_FULL else f"{len(gpus)}"


def _hosts(hosts: Sequence[str], names: bool) -> str:
    if len(hosts) > 1 and not names:
        return str(len(hosts))
    return listed(hosts, 1)


def _script(name: str | None) -> str:
    """Return the last part of a path; a dotted module as it is."""
    return (name or "").rstrip("/").rpartition("/")[2]


def _painted(line: str) -> str:
    for word, emphasis in ((" running ", "good"), (" orphaned ", "error"), (" failed ", "warning")):
        if word in line:
            return line.replace(word, f" {Terminal(styled=True).paint(word.strip(), emphasis)} ", 1)  # type: ignore[arg-type]
    return line


def ps_json(runs: Sequence[RunSummary], more: int, host: str, now_s: float) -> dict[str, Any]:
    """Return everything, with times in seconds since the epoch; ``not_shown`` counts ended runs left out."""
    listed = []
    for run in runs:
        world = None if run.nproc_per_node is None else run.nproc_per_node * (run.nnodes or 1)
        age = None if run.started_s is None else round(now_s - run.started_s, 1)
        directory = None if run.directory is None else str(run.directory)
        listed.append({**plain(run), "directory": directory, "world_size": world, "age_s": age})
    return {"schema": SCHEMA, "host": host, "runs": listed, "not_shown": more}


_LONGEST = 1 << 20  # of a line that does not end
_BAR_S = 2.0  # how often a progress bar that never ends its line is shown


class Lines:
    """Turns what ranks print into what is shown: whole lines, each with its prefix, those that match."""

    def __init__(self, prefix: Callable[[LogFile], bytes] | None, pattern: re.Pattern[bytes] | None) -> None:
        """``prefix`` None shows lines as they are; with no ``pattern`` either, bytes pass untouched."""
        self._prefix = prefix
        self._pattern = pattern
        self._rest: dict[LogFile, bytes] = {}
        self._shown_s: dict[LogFile, float] = {}

    def take(self, file: LogFile, data: bytes) -> bytes:
        """Return what can be shown now; the start of a line is kept until its end comes."""
        if self._prefix is None and self._pattern is None:
            return data
        data = self._rest.pop(file, b"") + data
        cut = data.rfind(b"\n") + 1
        if cut < len(data):
            if len(data) - cut > _LONGEST:
                data, cut = data + b"\n", len(data) + 1
            else:
                self._rest[file] = data[cut:]
        return self._lines(file, data[:cut])

    def bars(self) -> bytes:
        """Return how far progress bars are, which end no line, every two seconds."""
        now_s, shown = time.monotonic(), b""
        for file, rest in list(self._rest.items()):
            if b"\r" in rest and now_s - self._shown_s.get(file, 0) >= _BAR_S:
                self._shown_s[file] = now_s
                head, _, tail = rest.rpartition(b"\r")
                if tail:
                    self._rest[file] = tail
                else:
                    del self._rest[file]
                shown += self._lines(file, head + b"\n")
        return shown

    def end(self) -> bytes:
        """Return the lines that were never ended."""
        left, self._rest = self._rest, {}
        return b"".join(self._lines(file, rest + b"\n") for file, rest in left.items())

    def _lines(self, file: LogFile, data: bytes) -> bytes:
        if not data:
            return b""
        if b"\r" in data:
            data = b"\n".join(_as_on_a_terminal(line) for line in data.split(b"\n"))
        if self._pattern is not None:
            search = self._pattern.search
            data = b"".join([line + b"\n" for line in data[:-1].split(b"\n") if search(line)])
            if not data:
                return b""
        if self._prefix is None:
            return data
        prefix = self._prefix(file)
        return prefix + data[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


def _as_on_a_terminal(line: bytes) -> bytes:
    """Return what is left on the line after its carriage returns: the last text that one of them led to."""
    return next((part for part in reversed(line.split(b"\r")) if part), b"")


def prefix_of(hosts: dict[int, str], dim: bool) -> Callable[[LogFile], bytes]:
    """Return the function that says who speaks: ``[host:rank] ``, ``[node-K:rank] `` where the host is not known."""

    def prefix(file: LogFile) -> bytes:
        text = f"[{hosts.get(file.node, f'node-{file.node}')}:{file.rank}]"
        return (f"\x1b[2m{text}\x1b[0m " if dim else f"{text} ").encode(errors="replace")

    return prefix
