"""``ddplaunch logs``: prints what the ranks of a run wrote, from its record."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from ddplaunch.cli.parsing.command import RECORDED_RUN, RUN_DIR, Command
from ddplaunch.cli.parsing.typed_words import whole_number
from ddplaunch.cli.streams import say, tell, tell_findings
from ddplaunch.cli.which_run import kept_elsewhere, which_run
from ddplaunch.hosts.json_lines import json_line
from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.planning.flag import Flag
from ddplaunch.records.find import read_record
from ddplaunch.records.launchers import Launched, read_processes
from ddplaunch.records.log_files import LogFile, blocks, follow_logs, log_file, log_parts
from ddplaunch.records.run_states import live_run
from ddplaunch.ui.logs_view import Lines, cut_text, prefix_of
from ddplaunch.ui.terminal import Terminal, write
from ddplaunch.values.finding import ExitStatus, usage
from ddplaunch.values.words import host_name, listed, numbers_of

COMMAND = Command(
    examples=(
        ("ddplaunch logs --rank 0 --lines 20", "the last lines of rank 0 of the newest run"),
        ("ddplaunch logs --follow", "what all ranks print, until the run ends"),
    ),
    options=(
        RECORDED_RUN,
        Flag("rank", "text", "", "Ranks: 0, 0,3, 0-7 or all [all].", "RANKS", offers=("0", "all"), short="-r"),
        Flag("follow", "switch", "", "Keep printing new lines, also after restarts, until the run ends.", short="-f"),
        Flag(
            "lines",
            "text",
            "",
            "Start with the last N lines of each output, or all [all; 10 with --follow].",
            "N",
            short="-n",
        ),
        Flag("json", "switch", "", "Every piece of output as a line of JSON."),
        RUN_DIR,
    ),
)

_LAST_LINES = 10  # of each output when following, as in tail(1)
_RANKS = re.compile(r"( *[0-9]{1,6}(-[0-9]{1,6})? *(,|\Z))+\Z")


def logs(
    run: str | None, rank: str | None, follow: bool | None, lines: str | None, json: bool | None, run_dir: str | None
) -> int:
    """Print the ranks' output; with ``follow`` go on until the run is over."""
    directory = which_run(run, run_dir).record
    ranks = parse_ranks(rank)
    last = _LAST_LINES if follow and lines is None else _parse_lines(lines)
    away = kept_elsewhere(directory)
    parts = log_parts(directory, ranks, last)
    if not (parts or follow or away or json):
        raise usage(
            f"the record of {directory.name} holds no output of {'any rank' if rank is None else f'rank {rank}'}",
            why="it has not started yet, does not exist, or was launched with `--no-capture`",
            fix=f"`ddplaunch logs {directory.name} --follow` waits for it",
            code="no-output-recorded",
        )
    asked = f", asking {listed([place.host for place in away.places])} for the rest" if away else ""
    if run is None or asked:
        say(f"output of {directory.name}{asked}")
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    prefix = None if ranks is not None and len(ranks) == 1 else _prefix(directory, away)
    show = Lines(prefix, on_terminal, untouched=on_terminal or not follow)
    tell(cut_text(parts) or "")
    try:
        with ExitStack() as stack:
            later: Iterator[tuple[LogFile | None, bytes]] = iter(())
            positions = {part.file.path: part.end for part in parts}
            if away is not None:
                begin = ["--rank", rank or "all", "--lines", "all" if last is None else str(last)]
                hosts = stack.enter_context(EachHost(away, "logs", "--json", *begin, *["--follow"] * bool(follow)))
                lines_here = follow_logs(directory, ranks, positions, lambda: not hosts.open, over_s=0.1)
                later = _from_hosts(hosts, away, lines_here)
            elif follow:
                later = follow_logs(directory, ranks, positions, is_over(directory))
            for file, data in chain(blocks(parts), later):
                if not write(_line(file, data) if json else show.bars() if file is None else show.take(file, data)):
                    return ExitStatus.DONE
    except KeyboardInterrupt:
        write(b"\n" if on_terminal else b"")
        raise
    write(show.end())
    return ExitStatus.DONE


def _from_hosts(
    hosts: EachHost, away: Launched, lines_here: Iterator[tuple[LogFile | None, bytes]]
) -> Iterator[tuple[LogFile | None, bytes]]:
    """Yield the output of the hosts in ``away`` until all have ended, and that of nodes whose files are here."""
    nodes, told_problems = {place.node for place in away.places}, 0
    for file, data in lines_here:
        if file is None:
            for place, printed in hosts.lines(0.0):
                if printed.get("node") == place.node:
                    file_there = log_file(Path(), place.node, int(printed["attempt"]), str(printed["file"]))
                    yield file_there, printed["text"].encode("utf-8", "surrogateescape")
            tell_findings(hosts.problems[told_problems:])
            told_problems = len(hosts.problems)
        if file is None or file.node not in nodes:
            yield file, data


def _line(file: LogFile | None, data: bytes) -> bytes:
    """Return a piece of output as a line of JSON; bytes that are not UTF-8 are ``\\udcXX`` escapes in its text."""
    if file is None:
        return b""
    text = data.decode("utf-8", "surrogateescape")
    return json_line({"node": file.node, "attempt": file.attempt, "file": file.path.name, "text": text})


def is_over(directory: Path) -> Callable[[], bool]:
    """Return a function that tells whether a run will print no more: it has an outcome, or no process of it runs here.

    Another host's run without an outcome is never over.
    """

    def over() -> bool:
        record = read_record(directory)
        nodes = read_processes(directory)
        if record.outcomes:
            return all(node.node in record.outcomes for node in nodes)
        hosts = {node.host for node in nodes} or {record.host or ""}
        return not hosts - {host_name(), ""} and live_run(directory) is None

    return over


def _prefix(directory: Path, away: Launched | None) -> Callable[[LogFile], bytes]:
    """Return a function that makes the prefix of a rank's lines; ``away`` has the hosts that are asked."""
    hosts = {node.node: node.host for node in read_processes(directory) if node.host}
    hosts |= {} if away is None else {place.node: place.host for place in away.places}
    if not hosts and (name := read_record(directory).host) is not None:
        hosts = {0: name}
    return prefix_of(hosts, Terminal.of(sys.stdout))


def parse_ranks(text: str | None) -> frozenset[int] | None:
    """Return the ranks of ``0``, ``0,3`` or ``0-3``; None for ``all`` and without a text.

    Raises UsageError for anything else.
    """
    if text is None or text == "all":
        return None
    ranks = frozenset(numbers_of(text)) if _RANKS.match(text) else ()
    if not ranks:
        raise usage(
            f"`--rank {text}` names no rank",
            why="ranks are numbers from 0, with commas, as ranges, or `all`",
            fix="`--rank 0`, `--rank 0,3`, `--rank 0-7`, or leave it out",
            where="flag: --rank",
        )
    return ranks


def _parse_lines(text: str | None) -> int | None:
    """Return the number of last lines of each rank to begin with; None for ``all`` and without a text."""
    if text is None or text == "all":
        return None
    why, fix = "it is how many of each rank's last lines to begin with", "`--lines 100`, or `--lines all`"
    return whole_number("--lines", text, "lines", why, fix)
