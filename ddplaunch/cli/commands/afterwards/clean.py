"""``ddplaunch clean``: ends this user's processes whose launcher is gone, and removes old records, after a question."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ddplaunch.cli.parsing.command import RUN_DIR, Command
from ddplaunch.cli.streams import answer, answer_json, say, tell, tell_findings
from ddplaunch.hosts.local.end_orphans import clean as clean_up
from ddplaunch.hosts.local.end_orphans import leftovers
from ddplaunch.machine.processes.process_table import process_table
from ddplaunch.machine.processes.run_processes import runs_in
from ddplaunch.planning.flag import Flag
from ddplaunch.records.directory import runs_directory
from ddplaunch.records.old_records import OldRecords, old_records, remove_record
from ddplaunch.records.run_states import recorded_at
from ddplaunch.ui.clean_view import (
    Cleanup,
    clean_findings,
    clean_json,
    done_text,
    question,
    work_text,
)
from ddplaunch.ui.terminal import Terminal
from ddplaunch.values.finding import ExitStatus
from ddplaunch.values.words import host_name

_KEEP = 50

COMMAND = Command(
    examples=(
        ("ddplaunch clean --dry-run", "what would be ended and removed; changes nothing"),
        ("ddplaunch clean --keep 10 --yes", "keeps the records of ten runs, asks nothing"),
    ),
    options=(
        Flag("run", "argument", "", "Clean up only this run; keep all records.", "RUN", offers="runs"),
        Flag("yes", "switch", "", "Do not ask for confirmation.", short="-y"),
        Flag("dry_run", "switch", "", "List what would be ended and removed; change nothing."),
        Flag("keep", "integer", "", f"Number of the newest records to keep [{_KEEP}].", "N", least=0),
        Flag("json", "switch", "", "Everything that was found and done, as JSON."),
        RUN_DIR,
    ),
)

_GRACE_S = 5.0


def clean(
    run: str | None,
    yes: bool | None,
    dry_run: bool | None,
    keep: int | None,
    json: bool | None,
    run_dir: str | None,
) -> int:
    """List orphans and old records, ask, end and remove them, and verify that they are gone."""
    now_s = time.time()
    work = work_to_do(runs_directory(run_dir), _KEEP if keep is None else keep, run)
    if not json:
        answer(work_text(work, now_s, Terminal.of(sys.stdout)))
    if work.nothing or dry_run or not _agreed(work, bool(yes), not json):
        if json:
            answer_json(clean_json(work, None, (), host_name(), now_s))
        return ExitStatus.DONE if work.nothing or dry_run else ExitStatus.FINDINGS
    cleaned = clean_up(work.found, _GRACE_S)
    removed, failed = [], []
    for directory in work.records.removable:
        problem = remove_record(directory)
        if problem is None:
            removed.append(directory.name)
        else:
            failed.append(problem)
    if json:
        answer_json(clean_json(work, cleaned, removed, host_name(), now_s))
    tell(done_text(cleaned, len(removed)))
    findings = clean_findings(cleaned, failed)
    tell_findings(findings)
    return ExitStatus.FINDINGS if findings else ExitStatus.DONE


def work_to_do(base: Path, keep: int, run_id: str | None) -> Cleanup:
    """Return everything that could be cleaned; with ``run_id`` only that run's processes."""
    table = process_table()
    found_leftovers = leftovers(table, os.geteuid(), run_id)
    if run_id is not None:
        return Cleanup(found_leftovers, OldRecords((), (), 0), run_id)
    busy = {place for run in runs_in(table) if (place := recorded_at(run)) is not None}
    return Cleanup(found_leftovers, old_records(base, keep, busy, host_name()))


def _agreed(work: Cleanup, yes: bool, listed: bool) -> bool:
    """Return whether to go on: with ``--yes``, or if the user saw the list on the terminal and agrees."""
    if yes:
        return True
    if not listed or sys.stdin is None or not sys.stdin.isatty():
        say("nothing was changed: `ddplaunch clean --yes` does it without a question")
        return False
    tell(question(work))
    agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not agreed:
        say("nothing was changed")
    return agreed
