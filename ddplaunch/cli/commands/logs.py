"""``ddplaunch logs``: prints what the ranks of a run wrote, from its record."""

from __future__ import annotations

import json
import os
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

from ddplaunch.cli.flags import whole_number
from ddplaunch.cli.streams import tell, tell_findings
from ddplaunch.cli.which_run import kept_elsewhere
from ddplaunch.hosts.kubernetes import ClusterJob, ClusterState, job_called, log_words, state_of
from ddplaunch.hosts.session.each_host import EachHost
from ddplaunch.hosts.session.frames import Kind
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.find import read_record
from ddplaunch.records.launchers import Launched, Place, read_processes
from ddplaunch.records.log_files import LogFile, LogPart, blocks, has_stamps, log_file, log_files, log_parts, part_of
from ddplaunch.records.log_files import follow as follow_files
from ddplaunch.records.own.own_files import open_to_write
from ddplaunch.records.run_states import locate_run, recorded_at
from ddplaunch.ui.logs_view import Lines, cut_text, prefix_of
from ddplaunch.ui.terminal import Terminal, write_bytes
from ddplaunch.values.finding import ExitStatus, Finding, RefusedError, UsageError, error, usage
from ddplaunch.values.words import LENGTH, duration_s, host_name

_ASK_AGAIN_S = 2.0
_MOST_PODS = 64
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
    base = runs_directory(os.environ, run_dir, Path.cwd())
    if (job := job_meant(base, run)) is not None:
        if rank is not None:
            raise usage(
                f"`--rank` of {job.name}, a job on Kubernetes",
                why="its pods print what `ddplaunch run` shows in them, and ranks are told apart there",
                fix=f"`ddplaunch logs {job.name} --grep PATTERN`",
                where="flag: --rank",
            )
        return job_logs(job, bool(follow), lines, since, grep)
    directory = locate_run(base, run, run_dir is None)
    ranks = parse_ranks(rank)
    last = _LAST_LINES if follow and since is None else None
    if lines is not None:
        why, fix = "it is how many of each rank's last lines to begin with", "`--lines 100`, or `--lines all`"
        last = None if lines == "all" else whole_number("--lines", lines, "lines", why, fix)
    since_s = None if since is None else moment_s(since, time.time())
    return _print(directory, ranks, last, since_s, _parse_pattern(grep), bool(follow))


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
    screen = _Shown(show, on_terminal)
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
        open_ended = all(write_bytes(show.take(file, data)) for file, data in blocks(parts, since_s))
    try:
        if open_ended and follow and away is None:
            open_ended = _follow(directory, ranks, screen, parts)
        elif open_ended and follow and away is not None:
            asked |= {"follow": True, "since_s": since_s}
            open_ended = _follow_hosts(directory, ranks, screen, parts, away, asked)
    except KeyboardInterrupt:
        write_bytes(b"\n" if on_terminal else b"")
        raise
    if open_ended:
        screen.put(show.end())
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


class _Shown:
    """stdout while a run is followed: on a terminal each progress bar has a line at the bottom, which is drawn anew."""

    def __init__(self, show: Lines, on_terminal: bool) -> None:
        self.show, self._on_terminal = show, on_terminal

    def put(self, lines: bytes, with_bars: bool = False) -> bool:
        """Write these lines, elsewhere ``with_bars`` now and then; return False if nobody reads any more."""
        if not self._on_terminal:
            shown = lines + (self.show.bars() if with_bars else b"")
            return not shown or write_bytes(shown)
        columns, height = shutil.get_terminal_size()
        back, text = self.show.redrawn(lines, columns - 1, height)
        return not (back or text) or write_bytes(text, back)


def _follow(directory: Path, ranks: frozenset[int] | None, screen: _Shown, parts: Sequence[LogPart]) -> bool:
    """Show new lines until the run is over; return False if the reader of stdout has gone."""
    positions = {part.file.path: part.end for part in parts}
    for file, data in follow_files(directory, ranks, positions, is_over(directory)):
        if not screen.put(b"" if file is None else screen.show.take(file, data), with_bars=file is None):
            return False
    if not directory.is_dir():
        tell(f"{directory.name}: its record was removed\n")
    return True


def _follow_hosts(
    directory: Path,
    ranks: frozenset[int] | None,
    screen: _Shown,
    parts: Sequence[LogPart],
    away: Launched,
    asked: Mapping[str, Any],
) -> bool:
    """Show what the hosts of ``away`` print until none has more to say, and what nodes print whose files are here."""
    asked_nodes = {place.node for place in away.places}
    positions = {part.file.path: part.end for part in parts}
    show = screen.show
    with EachHost(away, "logs", **asked) as hosts:
        tell_findings(hosts.problems)
        known = len(hosts.problems)
        for file, data in follow_files(directory, ranks, positions, lambda: not hosts.open):
            shown = show.take(file, data) if file is not None and file.node not in asked_nodes else b""
            if file is None:
                told = [_told(directory, place, body) for place, kind, body in hosts.frames(0.0) if kind is Kind.OUT]
                shown = b"".join(show.take(one, said) for one, said, _ in told)
            if not screen.put(shown, with_bars=file is None):
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


def job_meant(base: Path, name: str | None) -> ClusterJob | None:
    """Return the job on Kubernetes of this name, unless a run here has it."""
    return None if name is None or (base / "runs" / name).is_dir() else job_called(base, name)


def job_logs(
    job: ClusterJob, follow: bool, lines: str | None = None, since: str | None = None, grep: str | None = None
) -> int:
    """Print what the pods of a job wrote; with ``follow`` go on, with new pods too, until the job is over."""
    last = None if lines in (None, "all") else whole_number("--lines", lines or "", "lines", "it is a number", "`100`")
    since_s = None if since is None else max(1, round(time.time() - moment_s(since, time.time())))
    readers: dict[str, subprocess.Popen[bytes]] = {}
    show = Lines(
        lambda file: f"[{file.path.name}] ".encode(),
        _parse_pattern(grep),
        sys.stdout is not None and sys.stdout.isatty(),
    )
    told = ""
    try:
        while True:
            state = state_of(job, os.environ)
            if state.state == "unknown" and not follow:
                raise RefusedError(unanswered(job, state))
            for pod in state.pods if len(readers) < _MOST_PODS else ():
                if pod.name not in readers and pod.phase != "Pending":
                    words = log_words(job, pod, follow, since_s, last)
                    readers[pod.name] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
            if not readers and not follow:
                why, fix = state.why or "no pod of it has started", f"`ddplaunch explain {job.name}` says why"
                if state.state == "gone":
                    why, fix = (
                        "it is no longer in the cluster, nor are its pods",
                        "`--run-dir` in a `--volume` keeps it",
                    )
                raise usage(f"job {job.name} has no output", why=why, fix=fix, code="no-output-recorded")
            if (
                follow
                and not readers
                and told != (told := f"job {job.name} is {state.state}: {state.why}".rstrip(": "))
            ):
                tell(f"{told}\n")
            if not _pass_on(readers, show, until_end=not follow or state.ended) or not follow or state.ended:
                break
        write_bytes(show.end())
    finally:
        for reader in readers.values():
            reader.kill()
            reader.wait()
    return ExitStatus.DONE


def _pass_on(readers: Mapping[str, subprocess.Popen[bytes]], show: Lines, until_end: bool) -> bool:
    """Show what comes for some seconds, or to the end of all; return False if the reader of stdout has gone."""
    with selectors.DefaultSelector() as selector:
        for number, (name, reader) in enumerate(readers.items()):
            if reader.stdout is not None and not reader.stdout.closed:
                selector.register(
                    reader.stdout, selectors.EVENT_READ, (LogFile(Path(name), number, 0, 0, "out"), reader)
                )
        end_s = time.monotonic() + _ASK_AGAIN_S
        while selector.get_map() and (until_end or time.monotonic() < end_s):
            for key, _ in selector.select(_ASK_AGAIN_S / 4):
                file, reader = key.data
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                    reader.stdout.close()
                elif not write_bytes(show.take(file, data)):
                    return False
        if not until_end:
            time.sleep(max(0.0, end_s - time.monotonic()))
    return True


def job_status(job: ClusterJob) -> int:
    """Say how a job on Kubernetes ended, and return 0, the exit status of the pod that failed first, or 1."""
    state = state_of(job, os.environ)
    if state.state == "succeeded":
        return ExitStatus.DONE
    failed = sorted((pod for pod in state.pods if pod.exit_status), key=lambda pod: pod.ended_s or 0)
    status = failed[0].exit_status if failed and failed[0].exit_status else 1
    where = (
        f"pod {failed[0].name} ended first, with exit status {status}" if failed else (state.why or "it says no more")
    )
    what = f"job {job.name} {'was deleted' if state.state == 'gone' else f'is {state.state}'}"
    tell_findings([error("job-failed", what, why=where, fix=f"`ddplaunch explain {job.name}`", where=job.namespace)])
    return status


def unanswered(job: ClusterJob, state: ClusterState) -> Finding:
    """Return the finding for a cluster that does not tell about a job."""
    return error(
        "cluster-unreachable",
        f"the cluster does not tell about {job.name}: {state.why}",
        why=f"kubectl asked for it in namespace {job.namespace}, context {job.context or 'of this pod'}",
        fix="`kubectl cluster-info` shows whether it can be reached",
    )


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
        tell("lines have no timestamps, so output is grouped by rank\n")
