"""``ddplaunch logs``: prints what the ranks of a run wrote, from its record."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

from ddplaunch.cli.parsing.command import RUN_DIR, Command
from ddplaunch.cli.parsing.typed_words import whole_number
from ddplaunch.cli.streams import say, tell, tell_findings
from ddplaunch.cli.which_run import kept_elsewhere, which_run
from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.hosts.session.frames import Kind
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.planning.flag import Flag
from ddplaunch.records.find import read_record
from ddplaunch.records.launchers import Launched, Place, read_processes
from ddplaunch.records.log_files import LogFile, LogPart, blocks, has_stamps, log_file, log_files, log_parts, part_of
from ddplaunch.records.log_files import follow as follow_files
from ddplaunch.records.own.own_files import open_to_write
from ddplaunch.records.run_states import recorded_at
from ddplaunch.ui.logs_view import Lines, cut_text, prefix_of
from ddplaunch.ui.terminal import Terminal, write
from ddplaunch.values.finding import ExitStatus, UsageError, usage
from ddplaunch.values.words import LENGTH, duration_s, host_name

COMMAND = Command(
    examples=(
        ("ddplaunch logs --rank 0 --lines 20", "the last 20 lines of rank 0 of the newest run"),
        ("ddplaunch logs --grep 'loss|error'", "the lines of all ranks that match"),
    ),
    options=(
        Flag("run", "argument", "", "Id of the run, or a part of it [the newest].", "RUN", offers="runs"),
        Flag("rank", "text", "", "Ranks: 0, 0,3, 0-7 or all [all].", "RANKS", offers=("0", "all"), short="-r"),
        Flag("follow", "switch", "", "Keep printing new lines, also after restarts, until the run ends.", short="-f"),
        Flag(
            "lines",
            "text",
            "",
            "Start with the last N lines of each rank, or all [all; 10 with --follow].",
            "N",
            short="-n",
        ),
        Flag("since", "text", "", "Only lines newer than this: 10m, 2h, or a date and time.", "TIME"),
        Flag("grep", "text", "", "Only lines that match this regular expression.", "PATTERN"),
        RUN_DIR,
    ),
)

_LAST_LINES = 10  # of each rank when following, as tail(1) has it


def logs(
    run: str | None,
    rank: str | None,
    follow: bool | None,
    lines: str | None,
    since: str | None,
    grep: str | None,
    run_dir: str | None,
) -> int:
    """Print what ranks printed; with ``follow`` go on until the run is over."""
    since_s = None if since is None else moment_s(since, time.time())
    pattern = _parse_pattern(grep)
    directory = which_run(run, run_dir).record
    last = _LAST_LINES if follow and since is None and lines is None else _parse_lines(lines)
    return _print(directory, parse_ranks(rank), last, since_s, pattern, bool(follow))


def _print(
    directory: Path,
    ranks: frozenset[int] | None,
    last: int | None,
    since_s: float | None,
    pattern: re.Pattern[bytes] | None,
    follow: bool,
) -> int:
    """Print the ``last`` lines (None: all) of each file of these ranks from ``since_s`` on, and what follows them."""
    files = log_files(directory, ranks)
    away = kept_elsewhere(directory)
    if not files and not follow and away is None:
        raise _nothing_there(directory, ranks)
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    single = ranks is not None and len(ranks) == 1
    prefix = None if single else _prefix(directory, away)
    show = Lines(prefix, pattern, on_terminal, untouched=on_terminal or not follow)
    parts = log_parts(directory, ranks, last)
    asked: dict[str, Any] = {"ranks": None if ranks is None else sorted(ranks), "lines": last}
    with ExitStack() as stack:
        if away is not None and not follow:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ddplaunch-")))
            parts += _brought(away, folder, asked)
        if (cut := cut_text(parts)) is not None:
            tell(cut)
        if not follow:
            _say_order(parts)
        open_ended = all(write(show.take(file, data)) for file, data in blocks(parts, since_s))
    try:
        if open_ended and follow and away is None:
            open_ended = _follow(directory, ranks, show, parts)
        elif open_ended and follow and away is not None:
            asked |= {"follow": True, "since_s": since_s}
            open_ended = _follow_hosts(directory, ranks, show, parts, away, asked)
    except KeyboardInterrupt:
        write(b"\n" if on_terminal else b"")
        raise
    if open_ended:
        write(show.end())
    return ExitStatus.DONE


def _brought(away: Launched, folder: Path, asked: Mapping[str, Any]) -> list[LogPart]:
    """Return what the hosts of ``away`` have of these outputs, put into ``folder``."""
    files: dict[LogFile, float] = {}
    with EachHost(away, "logs", **asked) as hosts:
        while hosts.open:
            for place, kind, body in hosts.frames(1.0):
                if kind is Kind.OUT:
                    file, data, written_s = _told(folder, place, body)
                    files[file] = written_s
                    with open(open_to_write(file.path, os.O_WRONLY | os.O_APPEND), "ab") as copy:
                        copy.write(data)
    tell_findings(hosts.problems)
    for file, written_s in files.items():
        os.utime(file.path, (written_s, written_s))
    return [part_of(file, None) for file in sorted(files, key=lambda each: each.order)]


def _told(directory: Path, place: Place, body: bytes) -> tuple[LogFile, bytes, float]:
    """Return whose output a host has sent, the output, and when its file was last written."""
    head, _, data = body.partition(b"\n")
    said = json.loads(head)
    return log_file(directory, place.node, int(said["attempt"]), str(said["name"])), data, float(said["written_s"])


def _follow(directory: Path, ranks: frozenset[int] | None, show: Lines, parts: Sequence[LogPart]) -> bool:
    """Show new lines until the run is over; return False if the reader of stdout has gone."""
    positions = {part.file.path: part.end for part in parts}
    for file, data in follow_files(directory, ranks, positions, is_over(directory)):
        if not write(show.bars() if file is None else show.take(file, data)):
            return False
    if not directory.is_dir():
        say(f"{directory.name}: its record was removed")
    return True


def _follow_hosts(
    directory: Path,
    ranks: frozenset[int] | None,
    show: Lines,
    parts: Sequence[LogPart],
    away: Launched,
    asked: Mapping[str, Any],
) -> bool:
    """Show what the hosts of ``away`` print until none has more to say, and what nodes print whose files are here."""
    asked_nodes = {place.node for place in away.places}
    positions = {part.file.path: part.end for part in parts}
    with EachHost(away, "logs", **asked) as hosts:
        tell_findings(hosts.problems)
        known = len(hosts.problems)
        for file, data in follow_files(directory, ranks, positions, lambda: not hosts.open):
            shown = show.take(file, data) if file is not None and file.node not in asked_nodes else b""
            if file is None:
                told = [_told(directory, place, body) for place, kind, body in hosts.frames(0.0) if kind is Kind.OUT]
                shown = b"".join(show.take(one, said) for one, said, _ in told)
            if not write(shown + (show.bars() if file is None else b"")):
                return False
    tell_findings(hosts.problems[known:])
    return True


def is_over(directory: Path) -> Callable[[], bool]:
    """Return the question whether a run will print nothing more: it has an outcome, or nothing of it runs here.

    A run of another host, without an outcome, is never over.
    """
    host = host_name()

    def over() -> bool:
        record = read_record(directory)
        if record.outcomes:
            return all(node.node in record.outcomes for node in read_processes(directory))
        hosts = {node.host for node in read_processes(directory)} or {record.host or ""}
        if hosts - {host, ""}:
            return False
        return not any(recorded_at(each) == directory.resolve() for each in runs_in(process_table()))

    return over


def _prefix(directory: Path, away: Launched | None) -> Callable[[LogFile], bytes]:
    """Return what says who speaks, in front of the lines of several ranks; ``away`` are hosts that are asked."""
    hosts = {node.node: node.host for node in read_processes(directory) if node.host}
    hosts |= {} if away is None else {place.node: place.host for place in away.places}
    if not hosts and (name := read_record(directory).host) is not None:
        hosts = {0: name}
    return prefix_of(hosts, Terminal.of(sys.stdout))


def parse_ranks(text: str | None) -> frozenset[int] | None:
    """Return the ranks of ``0``, ``0,3`` or ``0-3``; None for ``all`` and where nothing is said.

    Raises UsageError for anything else.
    """
    if text is None or text == "all":
        return None
    found: set[int] = set()
    for word in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", word.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise usage(
                f"`--rank {text}`: `{word.strip()}` is not a rank",
                why="ranks are numbers from 0, with commas, as ranges, or `all`",
                fix="`--rank 0`, `--rank 0,3`, `--rank 0-7`, or leave it out",
                where="flag: --rank",
            )
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def moment_s(text: str, now_s: float) -> float:
    """Return ``10m`` (ago) or ``2026-11-21 14:30`` (local unless it says otherwise) in seconds since the epoch.

    Raises UsageError for anything else.
    """
    if LENGTH.fullmatch(text.strip()):
        return now_s - duration_s("--since", text)
    try:
        return datetime.fromisoformat(text.strip().replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError, OSError):
        raise usage(
            f"`--since {text}` is neither a length of time nor a moment",
            why="it is a number with s, m, h or d, counted back from now, or a date and time",
            fix='`--since 10m` or `--since "2026-11-21 14:30"`',
            where="flag: --since",
        ) from None


def _parse_lines(text: str | None) -> int | None:
    """Return how many of each rank's last lines to begin with; None for ``all`` and where nothing is said."""
    if text is None or text == "all":
        return None
    why, fix = "it is how many of each rank's last lines to begin with", "`--lines 100`, or `--lines all`"
    return whole_number("--lines", text, "lines", why, fix)


def _parse_pattern(text: str | None) -> re.Pattern[bytes] | None:
    try:
        return None if text is None else re.compile(os.fsencode(text))
    except re.error as error:
        raise usage(
            f"`--grep {text}` is not a regular expression: {error.msg}",
            why="lines are searched with Python's `re`",
            fix=f"`--grep {re.escape(text or '')!r}` searches for it as it stands",
            where="flag: --grep",
        ) from error


def _nothing_there(directory: Path, ranks: frozenset[int] | None) -> UsageError:
    there = sorted({file.rank for file in log_files(directory)})
    if there and ranks is not None:
        asked = ", ".join(str(rank) for rank in sorted(ranks)[:4])
        return usage(
            f"the record has nothing of rank {asked}",
            why=f"it has {len(there)} ranks, {there[0]} to {there[-1]}",
            fix=f"`ddplaunch logs {directory.name} --rank {there[0]}`",
            where="flag: --rank",
            code="no-output-recorded",
        )
    return usage(
        f"the record of {directory.name} holds no output",
        why="no rank has started yet, or the run was launched with `--no-capture`",
        fix=f"`ddplaunch logs {directory.name} --follow` waits for it",
        code="no-output-recorded",
    )


def _say_order(parts: Sequence[LogPart]) -> None:
    """Tell where the order of lines is not that in which they were printed."""
    ranks = {part.file.rank for part in parts if part.end > part.start and not has_stamps(part)}
    if len(ranks) > 1:
        say("lines have no timestamps, so output is grouped by rank")
