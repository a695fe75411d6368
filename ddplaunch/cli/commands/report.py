"""``ddplaunch report``: one page about a run, for somebody who was not there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ddplaunch.cli.commands.explain import explained
from ddplaunch.cli.streams import answer, say
from ddplaunch.cli.which_run import with_what_hosts_have
from ddplaunch.records.compare_runs import across_nodes
from ddplaunch.records.directory import path_text, runs_directory
from ddplaunch.records.explain_sources import recorded_run
from ddplaunch.records.find import RunRecord, last_metrics, numbered, read_record
from ddplaunch.records.log_files import LogPart, blocks, log_files, part_of
from ddplaunch.records.own.own_files import write_named
from ddplaunch.records.run_states import locate_run
from ddplaunch.ui.report_view import LogLine, PhasesRow, Report, report_html
from ddplaunch.values.finding import ExitStatus, usage
from ddplaunch.watch.phases import read_phases, settled, summed
from ddplaunch.watch.plot import small_plots
from ddplaunch.watch.recording import read_metrics

_MOST_LINES = 10_000  # of logs in one page
_LEAST_OF_A_FILE = 20


def report(run: str | None, output: str | None, run_dir: str | None) -> int:
    """Write the page; without ``output`` into this directory, by the name of the run."""
    directory = locate_run(runs_directory(os.environ, run_dir, Path.cwd()), run, run_dir is None)
    with with_what_hosts_have(directory) as place:
        record = read_record(place)
        text = report_html(_report(record))
    if output == "-":
        answer(text)
        return ExitStatus.DONE
    path = Path(output or f"ddplaunch-{record.run_id}.html")
    try:
        write_named(path, text)
    except OSError as error:
        raise usage(
            f"`{path}` cannot be written: {error.strerror}",
            why="the report was to go there",
            fix="name a file in a directory that exists and is yours: `--output run.html`",
            where="flag: --output",
        ) from error
    say(f"{record.run_id} is described in {path_text(path.absolute())}")
    return ExitStatus.DONE


def _report(record: RunRecord) -> Report:
    files = log_files(record.directory)
    each = max(_LEAST_OF_A_FILE, _MOST_LINES // max(1, len(files)))
    parts = [part_of(file, each) for file in files][-(_MOST_LINES // each) :]
    lines = _lines(parts)
    samples = read_metrics(record.directory)
    return Report(
        record=record,
        explanation=explained(recorded_run(record.directory)),
        differences=across_nodes(record),
        phases=_phases(record),
        metrics=last_metrics(record.directory),
        plots=small_plots(samples) if samples else (),
        lines=lines,
        left_out=len(parts) < len(files) or any(part.start > 0 or part.cut_bytes for part in parts),
    )


def _phases(record: RunRecord) -> list[PhasesRow]:
    """Return what the steps of the last attempt took, once they had settled."""
    found: list[PhasesRow] = []
    for _, folder in numbered(record.directory, "node"):
        for _, attempt in numbered(folder, "attempt")[-1:]:
            for rank, file in read_phases(attempt).items():
                phases = summed(rank, file.facts, file.lines[settled(file.lines) or 0 :])
                if phases is not None:
                    shares = {name: share for name, share in phases.shares.items() if share is not None}
                    found.append(PhasesRow(rank, phases.step_s, shares, phases.samples_per_s, phases.peak_bytes))
    return sorted(found, key=lambda each: each.rank)


def _lines(parts: Sequence[LogPart]) -> list[LogLine]:
    found: list[LogLine] = []
    begun: dict[Path, bytes] = {}
    for file, data in blocks(parts):
        *whole, begun[file.path] = (begun.get(file.path, b"") + data).split(b"\n")
        found += [LogLine(file.rank, file.attempt, file.stream, line) for line in whole]
    by_path = {part.file.path: part.file for part in parts}
    for path, rest in begun.items():
        if rest:
            found.append(LogLine(by_path[path].rank, by_path[path].attempt, by_path[path].stream, rest))
    return found[-_MOST_LINES:]
