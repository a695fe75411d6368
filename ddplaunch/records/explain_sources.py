"""What ``explain`` reads: the logs of a recorded run with the facts beside them, files, or a stream."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplaunch.explain.diagnosis import LogSource, RunFacts
from ddplaunch.records.directory import path_text
from ddplaunch.records.find import RunRecord, node_directories, read_record
from ddplaunch.records.outcome import rank_end
from ddplaunch.values.finding import usage
from ddplaunch.values.frozen import dataclass

_OUTPUT = re.compile(r"rank-(\d+)\.(out|err)")
_ATTEMPT = re.compile(r"attempt-(\d+)")
_TORCHRUN = re.compile(r"std(?:out|err)\.log")  # <log-dir>/<run-id>_<random>/attempt_N/<local_rank>/stdout.log
_LOGS = (".log", ".out", ".err", ".txt")


@dataclass(frozen=True)
class Subject:
    """What is explained: logs, what is known beside them, and the record if it is a run's."""

    names: str
    sources: tuple[LogSource, ...]
    facts: RunFacts | None = None
    record: RunRecord | None = None


def recorded_run(directory: Path) -> Subject:
    """Return a run's logs of its last attempt on every node, with the facts that its record holds."""
    record = read_record(directory)
    sources: list[LogSource] = []
    for number, node in node_directories(directory):
        host = (record.outcomes[number].host or None) if number in record.outcomes else None
        attempts = sorted(
            (int(match.group(1)), path) for path in node.iterdir() if (match := _ATTEMPT.fullmatch(path.name))
        )
        for path in sorted(attempts[-1][1].iterdir(), key=_rank_first) if attempts else ():
            if match := _OUTPUT.fullmatch(path.name):
                sources.append(LogSource(str(path.relative_to(directory)), path, int(match.group(1)), host))
        if (node / "launcher.err").is_file():
            sources.append(
                LogSource(str((node / "launcher.err").relative_to(directory)), node / "launcher.err", None, host)
            )
    return Subject(f"run {directory.name}", tuple(sources), _facts(record), record)


def _rank_first(path: Path) -> tuple[int, str]:
    match = _OUTPUT.fullmatch(path.name)
    return (int(match.group(1)) if match else -1, path.name)


def _facts(record: RunRecord) -> RunFacts | None:
    outcomes = record.outcomes.values()
    if not outcomes:
        return facts_of_run(record.run) if record.run else None
    return replace(
        facts_of_run(record.run),
        ranks=tuple(rank_end(each, each.host or None) for outcome in outcomes for each in outcome.last_ranks),
        state=next((outcome.state for outcome in outcomes if outcome.state != "succeeded"), "succeeded"),
    )


def facts_of_run(run: Mapping[str, Any]) -> RunFacts:
    """Return what run.json knows: the plan, and the command as typed."""
    plan, argv = run.get("plan"), run.get("argv")
    return RunFacts(
        plan=plan if isinstance(plan, dict) else None,
        argv=tuple(map(str, argv)) if isinstance(argv, list) else None,
    )


def named_files(words: Sequence[str]) -> Subject:
    """Return the files, folders of logs, and stdin (``-``) that were named.

    Raises UsageError for what cannot be read or is not there.
    """
    sources: list[LogSource] = []
    for word in words:
        path = Path(word)
        if word == "-":
            sources.append(LogSource("stdin", sys.stdin.buffer))
        elif path.is_dir():
            sources += _folder(path)
        else:
            sources.append(LogSource(word, path))
        for source in sources[-1:]:
            _readable(source)
    named = sources[0].name if len(sources) == 1 else f"{len(sources)} logs"
    return Subject(named, tuple(sources))


def _folder(folder: Path) -> list[LogSource]:
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in _LOGS]
    if not found:
        raise usage(
            f"`{folder}` holds no log",
            why=f"files that end in {', '.join(_LOGS)} are looked for there, and in the folders below",
            fix="name the files",
        )
    return [LogSource(path_text(path), path, _rank_of(path)) for path in found]


def _rank_of(path: Path) -> int | None:
    """Return the rank in the paths of torchrun's ``--log-dir`` and of our records; on one node local is global."""
    if match := _OUTPUT.fullmatch(path.name):
        return int(match.group(1))
    return int(path.parent.name) if _TORCHRUN.fullmatch(path.name) and path.parent.name.isdecimal() else None


def _readable(source: LogSource) -> None:
    if not isinstance(source.read, Path):
        return
    try:
        with open(source.read, "rb"):
            pass
    except OSError as error:
        raise usage(
            f"`{source.read}` cannot be read: {error.strerror}",
            why="`explain` reads a log, a recorded run, or describes a code",
            fix="name a file that is there; `ddplaunch ps` lists the recorded runs",
        ) from error
